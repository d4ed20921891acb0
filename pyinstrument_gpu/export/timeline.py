# SPDX-License-Identifier: Apache-2.0
"""A run as tracks of ranges, which every format of a timeline is written from.

A range is a number and two times; what it was is asked by its number. Spans have their places in
`Run.spans`, the phases that were open follow, and then the steps. Passes through modules have
numbers below 0: of a pass and a phase that begin and end together the phase is the outer. A phase
or step that was still open ends where the run ends.

The ranges of one track need not nest: two tasks of one event loop overlap. Each has a lane, and
those of one lane nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.lanes import Lanes
from pyinstrument_gpu.export.ranges import Ranges, RangeTable, by_begin, range_tables, slices_of
from pyinstrument_gpu.export.tour import Tour
from pyinstrument_gpu.model.distinct import distinct
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SPAN_DTYPE, has_device_times
from pyinstrument_gpu.model.syncs import SyncSite

_NEVER_NS = np.iinfo(np.int64).max
_STREAM_STEP_DTYPE = np.dtype(
    [("place", "<i8"), ("step", "<i8"), ("begin_ns", "<i8"), ("end_ns", "<i8")]
)
"""A step on a stream; `step` is its place in `Run.steps`."""

_HOST_TIMES = itemgetter("host_begin_ns", "host_end_ns")
_DEVICE_TIMES = itemgetter("device_begin_ns", "device_end_ns")


@dataclass(frozen=True)
class Track:
    """What one thread or stream did.

    Attributes:
        name: the thread's name or, for example, "GPU 0 stream 1".
        tables: its ranges.
        thread: index into `Run.threads`, where its ranges are the phases of a thread.
        is_stream: whether its times are those of a device.
        content: what its ranges are.
    """

    name: str
    tables: tuple[RangeTable, ...]
    thread: int | None = None
    is_stream: bool = False
    content: Literal["phases", "syncs", "metrics"] = "phases"


@dataclass(frozen=True)
class Timeline:
    """The tracks of a run, placed on a time axis that several runs may share.

    Attributes:
        run: the run.
        start_ns: where it begins on the axis.
        rate: ns of the axis per ns of the run.
        advance: called with a number of spans whenever so many more of `threads` are done with.
    """

    run: RunData
    start_ns: int
    advance: Callable[[int], None]
    rate: float = 1.0

    def threads(self, *, with_steps: bool = False) -> list[Track]:
        """The phases and modules of each thread that did something, with its steps around them if
        asked for."""
        run = self.run
        tables = _by_key(
            range_tables(run.spans, _threads, _HOST_TIMES),
            range_tables(self._open_phases, _threads, _HOST_TIMES, self._first_open_phase),
            range_tables(run.module_spans, _threads, _HOST_TIMES, self._first_module),
            self._steps_by(_threads) if with_steps else (),
        )
        return [Track(self._thread_name(each), of, each) for each, of in tables.items()]

    def steps(self) -> Iterator[Track]:
        """All steps as one track, if there are any."""
        for _, table in self._steps_by(lambda steps: np.zeros(len(steps), np.int64)):
            yield Track("steps", (table,))

    def streams(self, *, with_steps: bool = False) -> Iterator[Track]:
        """The phases and modules of each device stream that have times there, of each device the
        default stream first. If asked for, with
        its steps around them, each from the first begin of its phases there to the last end."""
        run = self.run
        devices = np.array([*(stream.device for stream in run.streams), -1], np.int64)

        def place(spans: NDArray[np.void], device: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
            place = device.astype(np.int64) << 32 | spans["stream"].astype(np.uint32)
            return np.where(has_device_times(spans), place, -1)

        def place_of_modules(spans: NDArray[np.void]) -> NDArray[np.int64]:
            return place(spans, devices[np.maximum(spans["stream"], -1)])

        tables = _by_key(
            range_tables(run.spans, lambda spans: place(spans, spans["device"]), _DEVICE_TIMES),
            range_tables(run.module_spans, place_of_modules, _DEVICE_TIMES, self._first_module),
            self._steps_on_streams(place) if with_steps else (),
        )
        found = []
        for where, of in tables.items():
            stream = np.int64(where).astype(np.int32)
            name = run.streams[stream].name if stream >= 0 else ""
            track = Track(f"GPU {where >> 32} {name}".rstrip(), of, is_stream=True)
            is_default = stream >= 0 and run.streams[stream].is_default
            found.append((where >> 32, not is_default, where, track))
        yield from (track for *_, track in sorted(found, key=itemgetter(0, 1, 2)))

    def _steps_on_streams(
        self, place: Callable[[NDArray[np.void], NDArray[np.integer[Any]]], NDArray[np.int64]]
    ) -> Iterator[tuple[int, RangeTable]]:
        spans, steps = self.run.spans, self.run.steps.array
        found = np.empty(0, _STREAM_STEP_DTYPE)
        for part in slices_of(len(spans)):
            some = spans[part]
            where = place(some, some["device"])
            step = np.searchsorted(steps["index"], some["step"])
            wanted = (where >= 0) & (some["step"] >= 0) & (step < len(steps))
            wanted[wanted] = steps["index"][step[wanted]] == some["step"][wanted]
            rows = np.empty(np.count_nonzero(wanted), _STREAM_STEP_DTYPE)
            rows["place"], rows["step"] = where[wanted], step[wanted]
            rows["begin_ns"], rows["end_ns"] = _DEVICE_TIMES(some[wanted])
            found = _first_to_last(np.concatenate([found, rows]))
        for where in distinct(found["place"]).tolist():
            of_stream = found[found["place"] == where]
            numbers = of_stream["step"] + self.first_step
            steps_there = Ranges(numbers, of_stream["begin_ns"], of_stream["end_ns"])
            yield where, partial(_windows, steps_there)

    def syncs(self) -> Iterator[Track]:
        """Where each thread waited for a device. A wait whose price is unknown has no length. Their
        numbers are places in `Run.syncs.events`."""

        def times(syncs: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            return syncs["begin_ns"], syncs["begin_ns"] + np.maximum(syncs["duration_ns"], 0)

        for thread, table in range_tables(self.run.syncs.events, _threads, times):
            yield Track(f"{self._thread_name(thread)} waits", (table,), content="syncs")

    def metrics(self) -> Iterator[Track]:
        """The values of each metric: from when one was read to when the next one was, or the run
        ended. Their numbers are places in `Run.metrics`."""
        metrics, last_ns = self.run.metrics, self.run.duration_ns
        for name in distinct(metrics["name"].astype(np.int64)).tolist():
            places = np.flatnonzero(metrics["name"] == name)
            places = places[np.argsort(metrics["host_ns"][places], kind="stable")]
            begin_ns = metrics["host_ns"][places]
            end_ns = np.maximum(np.append(begin_ns[1:], last_ns), begin_ns)
            values = Ranges(places.astype(np.int64), begin_ns, end_ns)
            track = f"metrics/{self.run.metric_names[name]}"
            yield Track(track, (partial(_windows, values),), content="metrics")

    def placed(self, track: Track) -> Iterator[tuple[Ranges, NDArray[np.intp]]]:
        """The ranges of a track on the axis, with their lanes, some ten thousand at a time: those
        of a lane by begin, ascending, and of those that begin together the outermost first. Those
        of a stream have the times of a `Tour`."""
        lanes = Lanes()
        tours: dict[int, Tour] = {}
        for ranges in by_begin(*track.tables):
            lane = lanes.place(ranges)
            if track.thread is not None:
                yield self._ranges_on_axis(ranges), lane
                is_span = (ranges.number >= 0) & (ranges.number < self._first_open_phase)
                self.advance(int(np.count_nonzero(is_span)))
            elif not track.is_stream:
                yield self._ranges_on_axis(ranges), lane
            else:
                for each in distinct(lane).tolist():
                    tour = tours.setdefault(each, Tour(self._host_times))
                    yield from self._all_on(each, tour.some(ranges.some(lane == each)))
        for each, tour in sorted(tours.items()):
            yield from self._all_on(each, tour.rest())

    def _all_on(self, lane: int, ranges: Ranges) -> Iterator[tuple[Ranges, NDArray[np.intp]]]:
        if len(ranges.number):
            yield self._ranges_on_axis(ranges), np.full(len(ranges.number), lane, np.intp)

    def _ranges_on_axis(self, ranges: Ranges) -> Ranges:
        return Ranges(ranges.number, self.on_axis(ranges.begin_ns), self.on_axis(ranges.end_ns))

    def _host_times(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        is_module, is_step = numbers < 0, numbers >= self.first_step
        is_phase = ~(is_module | is_step)
        begin_ns, end_ns = np.empty((2, len(numbers)), np.int64)
        for mask, records in (
            (is_phase, self.phases_at(numbers[is_phase])),
            (is_module, self.modules_at(numbers[is_module])),
        ):
            begin_ns[mask], end_ns[mask] = _HOST_TIMES(records)
        steps = self.steps_at(numbers[is_step])
        begin_ns[is_step] = steps["begin_ns"]
        end_ns[is_step] = np.where(steps["end_ns"] < 0, _NEVER_NS, steps["end_ns"])
        return begin_ns, end_ns

    def on_axis(self, run_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        # The drift alone is a float: it is small, and so exact.
        drift_ns: NDArray[np.int64] = np.rint(run_ns * (self.rate - 1)).astype(np.int64)
        return run_ns + drift_ns + self.start_ns

    def phases_at(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Spans and open phases by their numbers (`SPAN_DTYPE`)."""
        is_open = numbers >= self._first_open_phase
        if not is_open.any():
            return self.run.spans[numbers]
        phases = np.empty(len(numbers), SPAN_DTYPE)
        phases[~is_open] = self.run.spans[numbers[~is_open]]
        phases[is_open] = self._open_phases[numbers[is_open] - self._first_open_phase]
        return phases

    def steps_at(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Steps by their numbers (`STEP_DTYPE`)."""
        return self.run.steps.array[numbers - self.first_step]

    def modules_at(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Passes through modules by their numbers (`MODULE_SPAN_DTYPE`)."""
        return self.run.module_spans[numbers - self._first_module]

    @property
    def first_step(self) -> int:
        """The number of the first step; all phases have lower ones."""
        return self._first_open_phase + len(self.run.open_phases)

    @property
    def _first_module(self) -> int:
        return -len(self.run.module_spans)

    @property
    def _first_open_phase(self) -> int:
        return len(self.run.spans)

    @cached_property
    def _open_phases(self) -> NDArray[np.void]:
        run = self.run
        rows = np.zeros(len(run.open_phases), SPAN_DTYPE)
        for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
            rows[column] = -1
        # Ends are alike: the outermost stands last, as with spans.
        phases = sorted(run.open_phases, key=lambda phase: -phase.depth)
        rows["path"] = [run.paths.index(phase.path) for phase in phases]
        rows["phase"] = run.path_names[rows["path"]]
        for column in ("step", "depth", "thread"):
            rows[column] = [getattr(phase, column) for phase in phases]
        rows["host_begin_ns"] = [phase.begin_ns for phase in phases]
        rows["host_end_ns"] = np.maximum(rows["host_begin_ns"], run.duration_ns)
        return rows

    def _steps_by(
        self, keys: Callable[[NDArray[np.void]], NDArray[np.int64]]
    ) -> Iterator[tuple[int, RangeTable]]:
        def times(steps: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            # An open step may have begun after the last sign of life.
            begin_ns, end_ns = steps["begin_ns"], steps["end_ns"]
            open_end_ns = np.maximum(begin_ns, self.run.duration_ns)
            return begin_ns, np.where(end_ns < 0, open_end_ns, end_ns)

        return range_tables(self.run.steps.array, keys, times, self.first_step)

    def _thread_name(self, thread: int) -> str:
        of = self.run.threads[thread]
        return of.name or f"thread {of.native_id}"


def sync_name(run: RunData, site: SyncSite) -> str:
    """What the waits at a place are called, "wait: .item() train.py:57" for example."""
    return f"wait: {site.kind.label} {run.name_of_line(site.program)}"


def _first_to_last(rows: NDArray[np.void]) -> NDArray[np.void]:
    """One row for each stream and step, ascending, from the first begin to the last end."""
    rows = rows[np.lexsort((rows["step"], rows["place"]))]
    is_new = (np.diff(rows["place"], prepend=-1) != 0) | (np.diff(rows["step"], prepend=-1) != 0)
    firsts = np.flatnonzero(is_new)
    merged = rows[firsts]
    if len(firsts):
        merged["begin_ns"] = np.minimum.reduceat(rows["begin_ns"], firsts)
        merged["end_ns"] = np.maximum.reduceat(rows["end_ns"], firsts)
    return merged


def _windows(ranges: Ranges) -> Iterator[Ranges]:
    for part in slices_of(len(ranges.number)):
        yield ranges.some(part)


def _by_key(*tables: Iterable[tuple[int, RangeTable]]) -> dict[int, tuple[RangeTable, ...]]:
    """The tables of each key, ascending."""
    found: dict[int, list[RangeTable]] = {}
    for key, table in chain(*tables):
        found.setdefault(key, []).append(table)
    return {key: tuple(found[key]) for key in sorted(found)}


def _threads(records: NDArray[np.void]) -> NDArray[np.int64]:
    return records["thread"].astype(np.int64)
