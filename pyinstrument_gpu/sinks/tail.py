# SPDX-License-Identifier: Apache-2.0
"""The run log as it grows: what was written since the last look, as a `RunUpdate`.

The native module hands over what is new (`_C.take_tap`), so a look costs what is new and not what
is there. Spans are summed by step and path at once. A step is handed over when its spans are known
to be there: one look after it closed, for the last of them may still have been in a thread's
buffer, and then when its device times are known, but not after `_LOOKS_FOR_DEVICE_TIMES`. Values
of metrics are handed over as they come.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.format.codecs import (
    DEVICE_TIME_ITEM,
    DROPPED_STEP_ITEM,
    METRIC_ITEM,
    NONE,
    PATH_ITEM,
    SPAN_INDEX_BITS,
    SPAN_ITEM,
    STEP_COMPLETE,
    STEP_ITEM,
    State,
    decode_names,
    decode_state,
    decode_statistics,
)
from pyinstrument_gpu.format.framing import BlockType
from pyinstrument_gpu.model.schema import METRIC_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.sinks.phase_times import keys_of, phase_times, rows_of, step_of, summed
from pyinstrument_gpu.sinks.update import RunUpdate, Totals, steps_of_metrics

_RECORD = struct.Struct("<IIQ")
_LOOKS_FOR_DEVICE_TIMES = 8

_SPAN_INDEX_MASK = np.uint64((1 << SPAN_INDEX_BITS) - 1)


class _Record(NamedTuple):
    first: int
    payload: memoryview


class RunTail:
    """Follows the log of the recording that is active."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self._environment = environment
        self._names: list[str] = []
        self._paths: list[str] = []
        self._dropped_steps = np.empty(0, DROPPED_STEP_ITEM)
        self._state = State()
        self._statistics: bytes | None = None
        self._spans_seen = 0
        self._spans_missed = 0
        # Of steps up to this serial spans may have been missed.
        self._unknown_up_to = -1
        # The last step that was handed over, and its end.
        self._handed_over_up_to = -1
        self._handed_over_end_ns = -1
        # Of steps that were not handed over, by serial.
        self._steps = np.empty(0, STEP_ITEM)
        self._looks: NDArray[np.int64] = np.empty(0, np.int64)
        self._sums = rows_of(np.empty(0, np.int64))
        # The spans among them whose device times are still to come: index, ascending, and key.
        self._waiting = np.empty((2, 0), np.int64)
        self._metric_names: list[str] = []
        self._metrics = np.empty(0, METRIC_ITEM)

    def look(self, taken: bytes, final: bool = False) -> RunUpdate:
        """What is new.

        Args:
            taken: from `_C.take_tap`.
            final: whether the recording has stopped and nothing more will come.
        """
        if taken:  # and with it all that stood in the buffers of threads at the last look
            self._looks += 1
        # All records of a type at once: there is one for every 20 ms.
        for block_type, records in _by_type(taken):
            self._take(block_type, records)
        self._note_missed_spans()
        done = len(self._steps) if final else self._done()
        return self._hand_over(done, final)

    def _take(self, block_type: int, records: list[_Record]) -> None:
        payload = b"".join(record.payload for record in records)
        if block_type == BlockType.NAMES:
            names = decode_names(memoryview(payload))
            self._names.extend(name.replace("%", "%25").replace("/", "%2F") for name in names)
        elif block_type == BlockType.PATHS:
            for parent, name in np.frombuffer(payload, PATH_ITEM).tolist():
                text = self._names[name]
                self._paths.append(text if parent == NONE else f"{self._paths[parent]}/{text}")
        elif block_type == BlockType.DROPPED_STEPS:
            # The last ones known may come again.
            serials = np.frombuffer(payload, DROPPED_STEP_ITEM)
            self._dropped_steps = np.union1d(self._dropped_steps, serials)
        elif block_type == BlockType.STEPS:
            steps = np.frombuffer(payload, STEP_ITEM)
            self._steps = np.append(self._steps, steps)
            self._looks = np.append(self._looks, np.zeros(len(steps), np.int64))
        elif block_type == BlockType.SPANS:
            index = [
                record.first + np.arange(len(record.payload) // SPAN_ITEM.itemsize)
                for record in records
            ]
            self._take_spans(np.concatenate(index), np.frombuffer(payload, SPAN_ITEM))
        elif block_type == BlockType.DEVICE_TIMES:
            self._take_device_times(np.frombuffer(payload, DEVICE_TIME_ITEM))
        elif block_type == BlockType.METRIC_NAMES:
            self._metric_names.extend(decode_names(memoryview(payload)))
        elif block_type == BlockType.METRICS:
            self._metrics = np.frombuffer(payload, METRIC_ITEM)
        elif block_type == BlockType.STATE:
            self._state = decode_state(payload)
        elif block_type == BlockType.STATISTICS:
            self._statistics = payload

    def _take_spans(self, index: NDArray[np.int64], items: NDArray[np.void]) -> None:
        self._spans_seen += len(items)
        too_late = max(self._handed_over_up_to, self._unknown_up_to)
        wanted = (items["step"] != NONE) & (items["step"].astype(np.int64) > too_late)
        items, index = items[wanted], index[wanted]
        on_step_thread = (items["flags"] & SpanFlag.STEP_THREAD) != 0
        scopes = np.where(on_step_thread, int(Scope.STEP), int(Scope.OTHER_THREADS))
        keys = keys_of(items["step"], items["path"], scopes)
        host_ns = items["host_end_ns"] - items["host_begin_ns"]
        self._sums = summed(self._sums, rows_of(keys, count=1, host_ns=host_ns))
        waits = (items["flags"] & SpanFlag.DEVICE) != 0
        self._waiting = np.append(self._waiting, np.stack([index[waits], keys[waits]]), axis=1)

    def _take_device_times(self, items: NDArray[np.void]) -> None:
        spans = (items["where"] & _SPAN_INDEX_MASK).astype(np.int64)
        waiting, keys = self._waiting
        place = np.searchsorted(waiting, spans)
        here = np.isin(spans, waiting)
        place, durations_ns = place[here], items["duration_ns"][here]
        known = durations_ns >= 0  # -1: the device had not finished when the recording gave up
        rows = rows_of(keys[place][known], timed=1, device_ns=durations_ns[known])
        self._sums = summed(self._sums, rows)
        self._waiting = np.delete(self._waiting, place, axis=1)

    def _note_missed_spans(self) -> None:
        # Missed by the tap, or lost on the way to the log: STATE counts every one.
        missed = self._state.phases_recorded - self._spans_seen
        if missed == self._spans_missed:
            return
        self._spans_missed = missed
        newest = int(self._steps["serial"].max(initial=0)) if len(self._steps) else -1
        if self._state.open_step is not None:
            newest = max(newest, self._state.open_step.serial)
        # The next one may have opened while the last spans were counted.
        self._unknown_up_to = max(self._unknown_up_to, newest + 1)
        self._forget_up_to(self._unknown_up_to)

    def _done(self) -> int:
        """How many of the steps can be handed over: not one before those in front of it."""
        waits = np.isin(self._steps["serial"], step_of(self._waiting[1]))
        done = (self._looks >= 1) & (~waits | (self._looks >= _LOOKS_FOR_DEVICE_TIMES))
        return len(done) if done.all() else int(done.argmin())

    def _hand_over(self, done: int, final: bool) -> RunUpdate:
        metrics, metric_steps = self._hand_over_metrics()
        items = self._steps[:done]
        if done:
            self._handed_over_up_to = int(items["serial"][-1])
            self._handed_over_end_ns = int(items["end_ns"][-1])
        times = phase_times(self._sums[np.isin(step_of(self._sums["key"]), items["serial"])])
        times["step"] = self._indices(times["step"])
        self._steps, self._looks = self._steps[done:], self._looks[done:]
        self._forget_up_to(self._handed_over_up_to)

        steps = np.empty(done, STEP_DTYPE)
        for column in ("thread", "begin_ns", "end_ns", "samples", "items"):
            steps[column] = items[column]
        steps["index"] = self._indices(items["serial"])
        steps["complete"] = items["flags"] & STEP_COMPLETE
        anchor = self._environment["anchor"]
        return RunUpdate(
            environment=self._environment,
            began_realtime_ns=anchor["realtime_ns"] - anchor["run_ns"],
            paths=tuple(self._paths),
            steps=steps,
            phase_times=times,
            metric_names=tuple(self._metric_names),
            metrics=metrics,
            metric_steps=metric_steps,
            dropped=self._state.dropped,
            phases_recorded=self._state.phases_recorded,
            final=final,
            decode_totals=partial(_decode_totals, self._statistics, tuple(self._paths)),
        )

    def _hand_over_metrics(self) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        items, self._metrics = self._metrics, self._metrics[:0]
        metrics = np.empty(len(items), METRIC_DTYPE)
        for column in ("update", "host_ns", "name", "value"):
            metrics[column] = items[column]
        # All steps that were dropped before one with a value are in the log before that value.
        of_none = (items["step"] == NONE) | np.isin(items["step"], self._dropped_steps)
        metrics["step"] = np.where(of_none, -1, self._indices(items["step"]))
        serials = np.append(self._handed_over_up_to, self._steps["serial"].astype(np.int64))
        indices = np.where(serials < 0, -1, self._indices(serials))
        ends_ns = np.append(self._handed_over_end_ns, self._steps["end_ns"])
        return metrics, steps_of_metrics(metrics, indices, ends_ns)

    def _forget_up_to(self, serial: int) -> None:
        self._sums = self._sums[step_of(self._sums["key"]) > serial]
        self._waiting = self._waiting[:, step_of(self._waiting[1]) > serial]

    def _indices(self, serials: NDArray[Any]) -> NDArray[np.int64]:
        return serials.astype(np.int64) - np.searchsorted(self._dropped_steps, serials)


def _by_type(taken: bytes) -> list[tuple[int, list[_Record]]]:
    """The records of each type, in the order of the types, so that none comes before what it refers
    to."""
    found: dict[int, list[_Record]] = {}
    view = memoryview(taken)
    while view:
        block_type, length, first = _RECORD.unpack_from(view)
        end = _RECORD.size + length
        found.setdefault(block_type, []).append(_Record(first, view[_RECORD.size : end]))
        view = view[end:]
    return sorted(found.items())


def _decode_totals(statistics: bytes | None, paths: tuple[str, ...]) -> Totals | None:
    if statistics is None:
        return None
    document = decode_statistics(statistics)
    by_path: dict[int, list[PhaseStatistics]] = {}
    for (path, _), phase in sorted(document.phases.items()):
        by_path.setdefault(path, []).append(phase)
    # A path that is newer than the tables comes with the next look.
    phases = {
        paths[path]: PhaseStatistics.merge(parts)
        for path, parts in by_path.items()
        if path < len(paths)
    }
    return Totals(phases, document.step_totals)
