# SPDX-License-Identifier: Apache-2.0
"""A run as tracks of ranges, which every format of a timeline, and that of the page, is made from.

A range is a number and two times; what it was is asked by its number. All that a run has is
numbered, kind by kind: its waits for devices, passes through modules, spans, phases that were open,
steps, values of metrics, compilations, phases in graphs and batches of workers, each by their
places in the run. So of a pass and a phase that begin and end together the phase has the higher
number, and is the outer. A phase or step that was still open ends where the run ends.

The ranges of one track need not nest: two tasks of one event loop overlap. Each has a lane, and
those of one lane nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, has_device_times
from pyinstrument_gpu.export.labels import RangeKind
from pyinstrument_gpu.export.ranges import (
    Lanes,
    Ranges,
    RangeTable,
    by_begin,
    range_tables,
    slices_of,
)

MARK_DTYPE = np.dtype(
    [
        (name, "<i8")
        for name in ("kind", "label", "step", "path", "depth", "blocked_ns", "bytes", "span")
    ]
)
"""What a range was: its `RangeKind`; its label, an index into `labels_of`; the index of its step;
of a wait, a module or a compilation the path around it; of a phase its depth; how long the host was
blocked in it; of a wait its bytes; and of a phase with a range on a stream its place in
`Run.spans`. -1 is missing."""

_HOST_TIMES = itemgetter("host_begin_ns", "host_end_ns")
_DEVICE_TIMES = itemgetter("device_begin_ns", "device_end_ns")

_GetKeys: TypeAlias = Callable[[NDArray[np.void]], NDArray[np.int64]]
_GetTimes: TypeAlias = Callable[[NDArray[np.void]], tuple[NDArray[np.int64], NDArray[np.int64]]]


def _all_alike(records: NDArray[np.void]) -> NDArray[np.int64]:
    return np.zeros(len(records), np.int64)


# Of each kind where its marks stand in its records, and which of its labels a record has.
_STEP_AND_PATH = {"step": "step", "path": "path"}
_COLUMNS = {
    RangeKind.WAIT: _STEP_AND_PATH | {"blocked_ns": "duration_ns", "bytes": "bytes"},
    RangeKind.MODULE: _STEP_AND_PATH,
    RangeKind.PHASE: {"step": "step", "depth": "depth", "blocked_ns": "blocked_ns"},
    RangeKind.OPEN_PHASE: {"step": "step", "depth": "depth"},
    RangeKind.STEP: {"step": "index"},
    RangeKind.METRIC: {"step": "step"},
    RangeKind.COMPILATION: _STEP_AND_PATH,
    RangeKind.GRAPH_PHASE: {"step": "step"},
    RangeKind.BATCH: {},
}
_LABELS: Mapping[RangeKind, Callable[[NDArray[np.void]], NDArray[Any]]] = {
    RangeKind.WAIT: itemgetter("site"),
    RangeKind.MODULE: lambda passes: passes["module"] * len(ModulePass) + passes["kind"],
    RangeKind.PHASE: itemgetter("path"),
    RangeKind.OPEN_PHASE: itemgetter("path"),
    RangeKind.STEP: lambda steps: steps["end_ns"] < 0,
    RangeKind.METRIC: itemgetter("name"),
    RangeKind.COMPILATION: itemgetter("number"),
    RangeKind.GRAPH_PHASE: itemgetter("path"),
    RangeKind.BATCH: _all_alike,
}


@dataclass(frozen=True)
class Track:
    """The track of one thread or stream.

    Attributes:
        name: the thread's name or, for example, "GPU 0 stream 1".
        tables: its ranges.
        thread: index into `Run.threads`, where its ranges are the phases of a thread.
        is_stream: whether its times are those of a device.
    """

    name: str
    tables: tuple[RangeTable, ...]
    thread: int | None = None
    is_stream: bool = False


@dataclass(frozen=True)
class RunTimeline:
    """The tracks of a run, placed on a time axis that several runs may share.

    Attributes:
        run: the run.
        start_ns: where it begins on the axis.
        advance: called with a number of spans whenever so many more of `threads` are done with.
    """

    run: Run
    start_ns: int = 0
    advance: Callable[[int], None] = lambda spans: None

    def threads(self, *, with_steps: bool = False, with_waits: bool = False) -> list[Track]:
        """The phases, modules and compilations of each thread that did something, the main thread
        first; if asked for, with its steps around them, and where it waited for a device."""
        tables = _by_key(
            self._tables(RangeKind.PHASE, _threads, _HOST_TIMES),
            self._tables(RangeKind.OPEN_PHASE, _threads, _HOST_TIMES),
            self._tables(RangeKind.MODULE, _threads, _HOST_TIMES),
            self._tables(RangeKind.COMPILATION, _threads, _HOST_TIMES),
            self._tables(RangeKind.STEP, _threads, self.step_times) if with_steps else (),
            self._tables(RangeKind.WAIT, _threads, wait_times) if with_waits else (),
        )
        main = self.run.environment.get("pid")  # on Linux also the number of its main thread
        order = sorted(tables, key=lambda each: self.run.threads[each].native_id != main)
        return [Track(self._thread_name(each), tables[each], each) for each in order]

    def steps(self) -> Iterator[Track]:
        """Yield all steps as one track, if there are any."""
        for _, table in self._tables(RangeKind.STEP, _all_alike, self.step_times):
            yield Track("steps", (table,))

    def streams(self) -> Iterator[Track]:
        """The phases and modules of each device stream that have times there, of each device the
        default stream first. Those that gave the stream nothing to do have no range there."""
        run = self.run
        devices = np.array([*(stream.device for stream in run.streams), -1], np.int64)

        def place(spans: NDArray[np.void], device: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
            place = device.astype(np.int64) << 32 | spans["stream"].astype(np.uint32)
            return np.where(_lasted_on_device(spans), place, -1)

        def place_of_spans(spans: NDArray[np.void]) -> NDArray[np.int64]:
            return place(spans, spans["device"])

        def place_of_modules(spans: NDArray[np.void]) -> NDArray[np.int64]:
            return place(spans, devices[np.maximum(spans["stream"], -1)])

        tables = _by_key(
            self._tables(RangeKind.PHASE, place_of_spans, _DEVICE_TIMES),
            self._tables(RangeKind.MODULE, place_of_modules, _DEVICE_TIMES),
        )
        found = []
        for where, of in tables.items():
            stream = np.int64(where).astype(np.int32)
            name = run.streams[stream].name if stream >= 0 else ""
            track = Track(f"GPU {where >> 32} {name}".rstrip(), of, is_stream=True)
            is_default = stream >= 0 and run.streams[stream].is_default
            found.append((where >> 32, not is_default, where, track))
        yield from (track for *_, track in sorted(found, key=itemgetter(0, 1, 2)))

    def graphs(self) -> Iterator[Track]:
        """The phases inside CUDA graphs of each device, as far as their places are known."""
        known = self.run.graph_phases
        graphs = () if known is None else known.graphs
        devices = np.array([graph.device for graph in graphs], np.int64)

        def device(runs: NDArray[np.void]) -> NDArray[np.int64]:
            return np.where(runs["device_begin_ns"] >= 0, devices[runs["graph"]], -1)

        for each, table in self._tables(RangeKind.GRAPH_PHASE, device, _DEVICE_TIMES):
            yield Track(f"GPU {each} in graphs", (table,))

    def workers(self) -> Iterator[Track]:
        """The batches that each worker of the loader made, as far as their times are known."""
        for worker, table in self._tables(RangeKind.BATCH, itemgetter("worker"), _HOST_TIMES):
            yield Track(f"loader worker {worker}", (table,))

    def waits(self) -> Iterator[Track]:
        """Yield where each thread waited for a device. A wait of unknown price has no length."""
        for thread, table in self._tables(RangeKind.WAIT, _threads, wait_times):
            yield Track(f"{self._thread_name(thread)} waits", (table,))

    def metrics(self) -> Iterator[Track]:
        """The values of each metric: from when one was read to when the next one was, or the run
        ended."""
        metrics, last_ns = self.run.metrics, self.run.duration_ns
        for name in distinct(metrics["name"].astype(np.int64)).tolist():
            places = np.flatnonzero(metrics["name"] == name)
            places = places[np.argsort(metrics["host_ns"][places], kind="stable")]
            begin_ns = metrics["host_ns"][places]
            end_ns = np.maximum(np.append(begin_ns[1:], last_ns), begin_ns)
            values = Ranges(places + self._firsts[RangeKind.METRIC], begin_ns, end_ns)
            yield Track(f"metrics/{self.run.metric_names[name]}", (partial(_windows, values),))

    def placed(self, track: Track) -> Iterator[dict[int, Ranges]]:
        """The ranges of a track on the axis by lane, some ten thousand at a time: those of a lane
        by begin, ascending, and of those that begin together the outermost first."""
        lanes = Lanes()
        for ranges in by_begin(*track.tables):
            place = lanes.place(ranges)
            yield {
                lane: self._ranges_on_axis(ranges.some(place == lane))
                for lane in distinct(place).tolist()
            }
            if track.thread is not None:
                kinds, _ = self.places(ranges.number)
                self.advance(int(np.count_nonzero(kinds == RangeKind.PHASE)))

    def _ranges_on_axis(self, ranges: Ranges) -> Ranges:
        return Ranges(ranges.number, self.on_axis(ranges.begin_ns), self.on_axis(ranges.end_ns))

    def on_axis(self, run_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return run_ns + self.start_ns

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each range's `RangeKind`, and its place among all that the run has of it."""
        kinds = np.searchsorted(self._firsts, numbers, side="right") - 1
        return kinds, numbers - self._firsts[kinds]

    def marks(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Return what ranges were (`MARK_DTYPE`)."""
        marks = np.full(len(numbers), -1, MARK_DTYPE)
        for kind, here, places in self._by_kind(numbers):
            rows = self._records[kind][places]
            marks["kind"][here] = kind
            marks["label"][here] = self._first_labels[kind] + _LABELS[kind](rows)
            for name, column in _COLUMNS[kind].items():
                marks[name][here] = rows[column]
            if kind is RangeKind.PHASE:
                marks["span"][here] = np.where(_lasted_on_device(rows), places, -1)
        return marks

    def _by_kind(
        self, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[RangeKind, NDArray[np.bool_], NDArray[np.int64]]]:
        """The kinds that are there, of which numbers they are, and the places of these."""
        kinds, places = self.places(numbers)
        for kind in distinct(kinds).tolist():
            here = kinds == kind
            yield RangeKind(kind), here, places[here]

    @cached_property
    def _records(self) -> tuple[NDArray[np.void], ...]:
        """The records of the run, by `RangeKind`."""
        run = self.run
        phases = run.spans, self._open_phases()
        in_graphs = run.spans[:0] if run.graph_phases is None else run.graph_phases.runs
        rest = run.steps.array, run.metrics, run.compilation_spans, in_graphs, run.loader_batches
        return run.syncs.events, run.module_spans, *phases, *rest

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """The number of the first range, by `RangeKind`."""
        return np.cumsum([0, *map(len, self._records[:-1])])

    @cached_property
    def _first_labels(self) -> NDArray[np.int64]:
        """The first label by `RangeKind`, as `labels_of` orders them."""
        run = self.run
        modules, paths = len(run.module_names) * len(ModulePass), len(run.path_names)
        compilations = 0 if run.compilations is None else len(run.compilations.compilations)
        counts = [0, len(run.syncs.sites), modules, paths, paths, 2, len(run.metric_names)]
        in_graphs = 0 if run.graph_phases is None else paths
        return np.cumsum([*counts, compilations, in_graphs])

    def _open_phases(self) -> NDArray[np.void]:
        run = self.run
        rows = np.zeros(len(run.open_phases), SPAN_DTYPE)
        for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
            rows[column] = -1
        # Ends are alike: the outermost stands last, as with spans.
        phases = sorted(run.open_phases, key=lambda phase: -phase.depth)
        rows["path"] = [run.paths.index(phase.path) for phase in phases]
        for column in ("step", "depth", "thread"):
            rows[column] = [getattr(phase, column) for phase in phases]
        rows["host_begin_ns"] = [phase.begin_ns for phase in phases]
        rows["host_end_ns"] = np.maximum(rows["host_begin_ns"], run.duration_ns)
        return rows

    def _tables(
        self, kind: RangeKind, keys: _GetKeys, times: _GetTimes
    ) -> Iterator[tuple[int, RangeTable]]:
        return range_tables(self._records[kind], keys, times, int(self._firsts[kind]))

    def step_times(self, steps: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begins and ends of steps; the one that is open ends where the run does."""
        # It may have begun after the last heartbeat.
        begin_ns, end_ns = steps["begin_ns"], steps["end_ns"]
        open_end_ns = np.maximum(begin_ns, self.run.duration_ns)
        return begin_ns, np.where(end_ns < 0, open_end_ns, end_ns)

    def _thread_name(self, thread: int) -> str:
        of = self.run.threads[thread]
        return of.name or f"thread {of.native_id}"


def _lasted_on_device(spans: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which spans gave a stream something to do."""
    return has_device_times(spans) & (spans["device_end_ns"] > spans["device_begin_ns"])


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


def wait_times(waits: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begins and ends of waits (`SYNC_DTYPE`); one whose price is unknown has no length."""
    return waits["begin_ns"], waits["begin_ns"] + np.maximum(waits["duration_ns"], 0)
