# SPDX-License-Identifier: Apache-2.0
"""Made-up recordings, written tick by tick.

A `Recording` keeps every state that the file went through, beside the truth that a reader has to
find in it.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import (
    COLLECTIVE_ITEM,
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    NONE,
    SPAN_ITEM,
    STEP_ITEM,
    STREAM_ITEM,
    TIME_UNFINISHED,
    columns,
)
from pyinstrument_gpu.core.file.state import (
    DeviceTimingSummary,
    OpenPhaseState,
    OpenStepState,
    State,
)
from pyinstrument_gpu.core.file.statistics import StatisticsDocument
from pyinstrument_gpu.core.record import Stream, Thread, named_streams
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, fold_spans
from pyinstrument_gpu.core.steps import StepTotals, fold_steps
from tests.helpers.encoders import (
    encode_collective_groups,
    encode_json,
    encode_stalls,
    encode_state,
    encode_statistics,
    encode_text,
    encode_thread,
)
from tests.helpers.run_writer import RunWriter

OPERATIONS = ("all_reduce", "broadcast")
_STREAM_PLACES = [(0, 0), (0, 77), (1, 2)]


def merged(
    *folded: dict[tuple[int, Scope], PhaseStatistics],
) -> dict[tuple[int, Scope], PhaseStatistics]:
    """Statistics of parts of a run as those of all of them."""
    keys = dict.fromkeys(key for part in folded for key in part)
    return {
        key: PhaseStatistics.merge([part[key] for part in folded if key in part]) for key in keys
    }


def clocks_of_points(points: NDArray[np.void]) -> list[DeviceClock]:
    """The clocks of devices 0 and 1."""
    return [
        DeviceClock(device, of["device_ns"], of["run_ns"], of["uncertainty_ns"])
        for device in (0, 1)
        for of in [points[points["device"] == device]]
    ]


class Recording:
    """A made-up recording.

    Attributes:
        versions: the bytes of the file after each tick; the last is that of the stopped recording.
        names, paths, threads: all there are; a path is its parent (-1 none) and its name.
        spans, self_ns, steps: all that was ever recorded, also what the file no longer holds.
        device_times: all items of that log; unfinished ones are those that never became known.
        clock_points: all items of the log of device clocks.
        collectives: all collective operations, in the order in which they were created.
        stalls: every stall as it was ever written, with and without its end.
        watermarks: for each STATISTICS document the numbers of spans, steps and device times that
            it covers.
        states: every STATE document.
    """

    def __init__(self, seed: int, ticks: int = 12, max_slots: int = 1 << 32) -> None:
        self._random = random.Random(seed)
        self._writer = RunWriter(self._random.getrandbits(64), max_slots)
        self.versions: list[bytes] = []
        self.watermarks: list[tuple[int, int, int]] = []
        self.states: list[State] = []
        self.names: list[str] = []
        self.paths: list[tuple[int, int]] = []
        self.threads: list[Thread] = []
        self._raw_spans: list[tuple[int, ...]] = []
        self._raw_steps: list[tuple[Any, ...]] = []
        self._raw_times: list[tuple[int, int, int]] = []
        self._raw_points: list[tuple[int, ...]] = []
        self._used_streams: list[int] = []
        self._pending: list[tuple[int, int, int, int]] = []
        self._device_now_ns = [random.Random(seed).randrange(10**15), 10**6]
        self._collectives_random = random.Random(-seed)  # so that all else is as without them
        self._raw_collectives: list[tuple[int, ...]] = []
        self.groups: list[ProcessGroup] = []
        self.stalls: list[Stall] = []
        self._dropped: list[int] = []
        self._serial = 0
        self._open: tuple[int, int] | None = None
        self._now_ns = 1000
        self._writer.write_document(BlockType.ENVIRONMENT, encode_json({"host": f"h{seed}"}))
        for tick in range(ticks):
            self._tick(final=tick == ticks - 1, with_statistics=tick % 4 == 3)
        self.device_times = np.array(self._raw_times, DEVICE_TIME_ITEM)
        self.clock_points = np.array(self._raw_points, DEVICE_CLOCK_ITEM)
        self.collectives = columns(
            np.array(self._raw_collectives, COLLECTIVE_ITEM), COLLECTIVE_DTYPE, is_p2p=False
        )
        self.spans, self.self_ns = self._span_columns()
        self.steps = self._step_columns()

    @property
    def final(self) -> bytes:
        return self.versions[-1]

    @property
    def streams(self) -> tuple[Stream, ...]:
        return named_streams(_STREAM_PLACES[number] for number in self._used_streams)

    @property
    def timed_spans(self) -> NDArray[np.int64]:
        """For each of `device_times` its span."""
        times = np.array(self._raw_times, DEVICE_TIME_ITEM)
        spans: NDArray[np.int64] = (times["where"] & np.uint64((1 << 40) - 1)).astype(np.int64)
        return spans

    def fold(self, spans: NDArray[np.intp]) -> dict[tuple[int, Scope], PhaseStatistics]:
        """The statistics of the spans with these numbers, without device times."""
        raw = np.array(self._raw_spans, dtype=SPAN_ITEM)[spans]
        host_ns = durations_ns_of(raw, "host_")
        return fold_spans(raw["path"], self._scopes(raw), host=host_ns, self_host=raw["self_ns"])

    def fold_device_times(
        self, numbers: NDArray[np.intp]
    ) -> dict[tuple[int, Scope], PhaseStatistics]:
        """The statistics of the device times with these numbers."""
        times = np.array(self._raw_times, DEVICE_TIME_ITEM)
        numbers = numbers[times["duration_ns"][numbers] >= 0]
        raw = np.array(self._raw_spans, dtype=SPAN_ITEM)[self.timed_spans[numbers]]
        return fold_spans(raw["path"], self._scopes(raw), device=times["duration_ns"][numbers])

    def fold_all(
        self, spans: NDArray[np.intp], device_times: NDArray[np.intp]
    ) -> dict[tuple[int, Scope], PhaseStatistics]:
        """The statistics of these spans and these device times."""
        return merged(self.fold(spans), self.fold_device_times(device_times))

    def _scopes(self, raw: NDArray[np.void]) -> NDArray[np.int64]:
        outside = (raw["step"] == NONE) | np.isin(raw["step"], self._dropped)
        return np.where(outside, Scope.OUTSIDE, np.where(raw["flags"] & 1, 0, 1))

    def fold_steps(self, steps: NDArray[np.intp]) -> StepTotals:
        return fold_steps(self.steps[steps])

    def _tick(self, final: bool, with_statistics: bool) -> None:
        counts = len(self.names), len(self.paths), len(self.threads), len(self._dropped)
        steps, spans = len(self._raw_steps), len(self._raw_spans)
        streams = len(self._used_streams)
        for _ in range(self._random.randrange(40, 80)):
            self._step()
        open_step = None if final else self._leave_step_open()
        times, points = len(self._raw_times), len(self._raw_points)
        self._work_on_devices(final)
        names, paths, threads, dropped = counts
        writer = self._writer
        writer.append(BlockType.NAMES, [encode_text(name) for name in self.names[names:]])
        writer.append(
            BlockType.PATHS,
            [struct.pack("<II", parent & NONE, name) for parent, name in self.paths[paths:]],
        )
        writer.append(BlockType.THREADS, [encode_thread(one) for one in self.threads[threads:]])
        writer.append(
            BlockType.DROPPED_STEPS,
            [struct.pack("<I", serial) for serial in self._dropped[dropped:]],
        )
        self._append(BlockType.STEPS, self._raw_steps[steps:], STEP_ITEM)
        self._append(BlockType.SPANS, self._raw_spans[spans:], SPAN_ITEM)
        new_streams = [_STREAM_PLACES[number] for number in self._used_streams[streams:]]
        stream_items = [(handle, device, 0) for device, handle in new_streams]
        self._append(BlockType.STREAMS, stream_items, STREAM_ITEM)
        self._append(BlockType.DEVICE_CLOCKS, self._raw_points[points:], DEVICE_CLOCK_ITEM)
        self._append(BlockType.DEVICE_TIMES, self._raw_times[times:], DEVICE_TIME_ITEM)
        self._communicate()
        if with_statistics:
            self._stall(tick=len(self.versions))
        if final or with_statistics:
            covered = len(self._raw_spans), len(self._raw_steps), len(self._raw_times)
            self.watermarks.append(covered)
            self.steps = self._step_columns()
            document = StatisticsDocument(
                *self.watermarks[-1],
                self.fold_steps(np.arange(len(self._raw_steps))),
                self.fold_all(np.arange(covered[0]), np.arange(covered[2])),
            )
            writer.write_document(BlockType.STATISTICS, encode_statistics(document))
        history_dropped = {
            "span_history": writer.history_dropped[BlockType.SPANS],
            "step_history": writer.history_dropped[BlockType.STEPS],
            "device_history": writer.history_dropped[BlockType.DEVICE_TIMES],
        }
        state = State(
            now_ns=self._now_ns,
            final=final,
            anchor={"run_ns": self._now_ns, "monotonic_ns": 5},
            spans=len(self._raw_spans),
            steps=len(self._raw_steps),
            device_times=len(self._raw_times),
            step_drops=len(self._dropped),
            collectives=len(self._raw_collectives),
            dropped={cause: count for cause, count in history_dropped.items() if count},
            harvester_cpu_ns=len(self.versions),
            phases_recorded=len(self._raw_spans),
            open_step=open_step,
            open_phases=()
            if open_step is None
            else (OpenPhaseState(0, 0, self._now_ns - 5, open_step.serial, 0),),
            device=DeviceTimingSummary(
                1 + len(self.versions),
                2 * len(self._raw_times),
                7 * self._now_ns,
                self._pending_by_path(),
            ),
        )
        self.states.append(state)
        writer.write_document(BlockType.STATE, encode_state(state))
        self.versions.append(bytes(writer.data))

    def _communicate(self) -> None:
        """Collective operations since the last tick, from the third tick on also of a new group."""
        draw = self._collectives_random
        if len(self.versions) in (0, 2):
            number = len(self.groups)
            self.groups.append(ProcessGroup(str(number), f"group {number}", (0, number), "gloo"))
        begin = len(self._raw_collectives)
        for number in range(begin, begin + draw.randrange(5, 40)):
            created_ns = 1000 * number + draw.randrange(1000)
            started_ns = draw.choice((-1, created_ns + 5))
            group, operation = draw.randrange(len(self.groups)), draw.randrange(len(OPERATIONS))
            times_ns = (created_ns, started_ns, -1, -1)
            self._raw_collectives.append((*times_ns, number, 64, group, operation, 0))
        self._append(BlockType.COLLECTIVES, self._raw_collectives[begin:], COLLECTIVE_ITEM)
        known = Collectives(tuple(self.groups), OPERATIONS, was_read=True)
        self._writer.write_document(BlockType.COLLECTIVE_GROUPS, encode_collective_groups(known))

    def _stall(self, tick: int) -> None:
        """One that is noticed, while the one before is over by now."""
        before = [replace(one, ended_ns=one.noticed_ns + 7) for one in self.stalls[-1:]]
        progress = (GroupProgress("0", tick, None, None, "all_reduce"),)
        stacks = (("MainThread", f"a line\nanother, at tick {tick}"),)
        path = self.names[0].replace("/", "%2F")
        new = Stall(
            since_ns=tick,
            noticed_ns=tick + 50,
            limit_ns=30,
            step=tick,
            paths=((0, path),),
            stacks=stacks,
            groups=progress,
        )
        self.stalls += [*before, new]
        content = encode_stalls([*before, new], [path])
        self._writer.write_document(BlockType.STALLS, content)

    def _work_on_devices(self, final: bool) -> None:
        """Complete some of the pending work, in any order, and read the devices' clocks."""
        self._random.shuffle(self._pending)
        kept = []
        for work in self._pending:
            span, stream, begin_ns, duration_ns = work
            if self._random.random() < 0.3:
                kept.append(work)
            else:
                self._raw_times.append((span | stream << 40, begin_ns, duration_ns))
        if final:
            for span, stream, _, _ in kept:
                self._raw_times.append((span | stream << 40 | TIME_UNFINISHED << 56, -1, -1))
            kept = []
        self._pending = kept
        for device, device_ns in enumerate(self._device_now_ns):
            uncertainty_ns = self._random.randrange(100, 5000)
            self._raw_points.append((device, 0, device_ns, self._now_ns, uncertainty_ns))

    def _pending_by_path(self) -> tuple[tuple[int, int], ...]:
        paths = [self._raw_spans[span][4] for span, _, _, _ in self._pending]
        return tuple((path, paths.count(path)) for path in sorted(set(paths)))

    def _append(
        self, block_type: BlockType, records: list[tuple[Any, ...]], dtype: np.dtype[Any]
    ) -> None:
        self._writer.append_records(block_type, np.array(records, dtype))

    def _step(self) -> None:
        # A step that was seen open is not dropped later: its spans would have two truths.
        may_drop = self._open is None
        serial, begin_ns = self._open or self._begin_step()
        self._open = None
        for name in self._random.sample(("data", "forward", "backward", "a/b", "\ud800"), 3):
            path = self._path(-1, name)
            self._span(path, serial)
            if name == "forward" and self._random.random() < 0.3:
                self._span(self._path(path, f"inner{self._random.randrange(4)}"), serial)
        if self._random.random() < 0.05:
            self._span(self._path(-1, "outside"), NONE)
        if may_drop and self._random.random() < 0.08:
            self._dropped.append(serial)
            return
        samples = self._random.choice((32.0, 7.0, float("nan")))
        complete = self._random.random() < 0.9
        self._raw_steps.append((serial, 0, begin_ns, self._now_ns, samples, 1, int(complete)))

    def _span(self, path: int, serial: int) -> None:
        duration_ns = int(self._random.lognormvariate(9, 3))
        self_ns = self._random.randrange(duration_ns + 1)
        begin_ns = self._now_ns
        self._now_ns += duration_ns + 1
        for device, drift in enumerate((50e-6, -80e-6)):
            self._device_now_ns[device] += duration_ns + 1 + round(duration_ns * drift)
        thread = self._thread(self._random.choice((0, 0, 0, 1)))
        flags = int(thread == 0 and serial != NONE)
        if self._random.random() < 0.6:
            flags |= SpanFlag.DEVICE
            self._enqueue(duration_ns)
        depth = 0 if self.paths[path][0] < 0 else 1
        span = (begin_ns, begin_ns + duration_ns, self_ns, serial, path, thread, depth, flags)
        self._raw_spans.append(span)

    def _enqueue(self, duration_ns: int) -> None:
        """Device work of the span that is recorded next."""
        number = self._random.randrange(len(_STREAM_PLACES))
        if number not in self._used_streams:
            self._used_streams.append(number)
        begin_ns = self._device_now_ns[_STREAM_PLACES[number][0]] - self._random.randrange(1000)
        work_ns = self._random.randrange(2 * duration_ns + 1)
        stream = self._used_streams.index(number)
        self._pending.append((len(self._raw_spans), stream, begin_ns, work_ns))

    def _begin_step(self) -> tuple[int, int]:
        self._serial += 1
        return self._serial - 1, self._now_ns

    def _leave_step_open(self) -> OpenStepState:
        self._open = serial, begin_ns = self._begin_step()
        self._span(self._path(-1, "data"), serial)
        return OpenStepState(serial=serial, thread=0, begin_ns=begin_ns, samples=3.0, items=1)

    def _index(self, serial: int) -> int:
        if serial == NONE or serial in self._dropped:
            return -1
        return serial - sum(dropped < serial for dropped in self._dropped)

    def _span_columns(self) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        spans = np.empty(len(self._raw_spans), SPAN_DTYPE)
        index_of = {raw[3]: self._index(raw[3]) for raw in self._raw_spans}
        for row, raw in enumerate(self._raw_spans):
            begin_ns, end_ns, _, serial, path, thread, depth, flags = raw
            name = self.paths[path][1]
            missing = -1
            spans[row] = (
                *(name, path, index_of[serial], depth, thread, missing, missing),
                *(begin_ns, end_ns, missing, missing, missing, flags),
            )
        clocks = clocks_of_points(self.clock_points)
        for where, begin_ns, duration_ns in self._raw_times:
            row, number = where & (1 << 40) - 1, where >> 40 & 0xFFFF
            device = self.streams[number].device
            spans[row]["stream"], spans[row]["device"] = number, device
            if duration_ns < 0:
                spans[row]["flags"] |= SpanFlag.DEVICE_UNFINISHED
                continue
            ends = np.array([begin_ns, begin_ns + duration_ns])
            ends = clocks[device].on_run_axis(ends)
            spans[row]["device_begin_ns"], spans[row]["device_end_ns"] = ends
        return spans, np.array([raw[2] for raw in self._raw_spans], dtype=np.int64)

    def _step_columns(self) -> NDArray[np.void]:
        return np.array(
            [
                (self._index(serial), begin_ns, end_ns, samples, items, bool(flags), thread)
                for serial, thread, begin_ns, end_ns, samples, items, flags in self._raw_steps
            ],
            dtype=STEP_DTYPE,
        )

    def _path(self, parent: int, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        path = (parent, self.names.index(name))
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)

    def _thread(self, number: int) -> int:
        while len(self.threads) <= number:
            self.threads.append(Thread(1000 + len(self.threads), f"thread {len(self.threads)}"))
        return number
