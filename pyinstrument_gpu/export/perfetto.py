# SPDX-License-Identifier: Apache-2.0
"""Trace events, which Perfetto (ui.perfetto.dev) shows.

docs/exporters/viewers.md says what becomes what. Times in microseconds are written digit by digit,
never as floats, so they are exact to the nanosecond.

Viewers show the numbers of processes and threads behind their names. So these have the numbers that
the system gave them, but where two have the same: threads one after the other, or of two machines.
All else, whose numbers would mean nothing, are rows of asynchronous events. What is on these is an
event where it begins and another where it ends, and they nest in the order of the file. A viewer
calls such a row by its first event, so that is an end of nothing, which has the name of the row.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.aspects.throughput.utilization import utilization
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name
from pyinstrument_gpu.export.labels import Label, RangeKind, labels_of
from pyinstrument_gpu.export.ranges import NOTHING, Ranges, joined, lane_name, slices_of
from pyinstrument_gpu.export.runs import (
    UniqueIds,
    json_text,
    offsets_ns_of,
    process_name,
    ranks_of,
    run_facts,
)
from pyinstrument_gpu.export.text import (
    TextColumn,
    chunk_rows,
    integers,
    lines,
    texts,
    thousandths,
    without,
)
from pyinstrument_gpu.export.timeline import RunTimeline, Track

_ID_LIMIT = 1 << 31
_PHASES = (RangeKind.PHASE, RangeKind.OPEN_PHASE, RangeKind.GRAPH_PHASE)
_FLOPS = ("model_flops", "hardware_flops", "mfu", "hfu")

_RowEvents: TypeAlias = tuple[NDArray[np.int64], NDArray[np.bool_], list[TextColumn | bytes]]
"""Events of one row: of what range each is, whether it is only the end of it, and how it begins,
with its times."""


def write(runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Write a trace. Takes about a second per million spans."""
    ranks, offsets_ns = ranks_of(runs), offsets_ns_of(runs)
    about = [
        {**run_facts(run), "begin_ns": offset_ns}
        for run, offset_ns in zip(runs, offsets_ns, strict=True)
    ]
    trace = _Trace(sink, {"runs": about})
    pids = UniqueIds(_ID_LIMIT).assign([run.environment.get("pid", 0) for run in runs])
    threads = [thread.native_id for run in runs for thread in run.threads]
    tids = iter(UniqueIds(_ID_LIMIT).assign(threads))
    for run, rank, offset_ns, pid in zip(runs, ranks, offsets_ns, pids, strict=True):
        tid_of_thread = list(itertools.islice(tids, len(run.threads)))
        process = _TraceProcess(trace, RunTimeline(run, offset_ns, advance), pid, tid_of_thread)
        process.write_process(process_name(run, rank if len(runs) > 1 else None), rank)
        process.write_steps()
        process.write_phases()
        process.write_metrics()
        process.write_origin()
    trace.end()


class _Trace:
    """The file: events one after the other.

    Attributes:
        rows: numbers for rows that are not those of threads.
        order: viewers show threads in this order.
        first_flow: the first number for flows that no process has taken.
    """

    def __init__(self, sink: BinaryIO, about: dict[str, Any]) -> None:
        self.rows = itertools.count(1)
        self.order = itertools.count(1)
        self.first_flow = 1
        self._sink = sink
        self._before = b""
        sink.write(b'{"displayTimeUnit":"ns","otherData":%b,"traceEvents":[\n' % json_text(about))

    def write(self, events: bytes) -> None:
        """Write events, each of which ends with a comma and the end of its line."""
        self._sink.write(self._before + events[:-2])
        self._before = b",\n"

    def end(self) -> None:
        self._sink.write(b"\n]}\n")


@dataclass
class _TraceRow:
    """A row of the viewer.

    Attributes:
        heads: how its events begin, up to their times: by `RangeKind`, and then where one ends.
        open: the ranges that have begun and not ended; None if it is the row of a thread, where an
            event is a whole range.
    """

    heads: list[bytes]
    open: Ranges | None = None

    def boundaries(self, new: Ranges) -> tuple[Ranges, NDArray[np.bool_]]:
        """The begins of ranges, and the ends that come before the last of these begins, in an order
        in which they nest: the range of each, and whether it is its end.

        It matters where times are equal: the end of a range stands before the begin of one that
        touches it, and of nested ranges that end together that of the inner one is first.

        Args:
            new: ranges that nest, as `RunTimeline.placed` orders them.
        """
        if self.open is None:
            return new, np.zeros(len(new.number), np.bool_)
        ranges = joined([self.open, new])
        begins = np.arange(len(self.open.number), len(ranges.number))
        # Before which of the new ranges each ends.
        before = np.searchsorted(new.begin_ns, ranges.visible_end_ns())
        is_open = before == len(begins)
        self.open = ranges.some(is_open)
        ends = np.flatnonzero(~is_open)[::-1]  # what began last ends first
        places = np.concatenate([2 * before[ends], 2 * np.arange(len(begins)) + 1])
        order = np.argsort(places, kind="stable")
        return ranges.some(np.concatenate([ends, begins])[order]), order < len(ends)


class _TraceProcess:
    """The events of one run."""

    def __init__(
        self, trace: _Trace, timeline: RunTimeline, pid: int, tid_of_thread: Sequence[int]
    ) -> None:
        self._trace = trace
        self._timeline = timeline
        self._run = timeline.run
        self._pid = pid
        self._tid_of_thread = tid_of_thread
        self._names: Counter[str] = Counter()
        self._first_flow = trace.first_flow
        trace.first_flow += len(self._run.spans)

    def write_process(self, name: str, rank: int) -> None:
        """Name the process, say where it ran, and place it among the others."""
        self._write_metadata("process_name", {"name": name})
        if "host" in self._run.environment:
            labels = f"host {self._run.environment['host']}"
            self._write_metadata("process_labels", {"labels": labels})
        self._write_metadata("process_sort_index", {"sort_index": rank})

    def write_steps(self) -> None:
        threads = [b',"thread":%b' % json_text(thread.name) for thread in self._run.threads]
        for track in self._timeline.steps():
            for numbers, is_end, head in self._events(track, b"step", threads):
                steps = self._run.steps.array[self._timeline.places(numbers)[1]]
                samples, sample = np.unique(steps["samples"], return_inverse=True)
                args: list[TextColumn | bytes] = [
                    *(b',"args":{"step":', integers(steps["index"])),
                    texts(list(map(_samples, samples.tolist())), sample),
                    *(b',"items":', integers(steps["items"])),
                    texts([b',"complete":false', b',"complete":true'], steps["complete"]),
                    texts([b"", b',"open":true'], steps["end_ns"] < 0),
                    *(texts(threads, steps["thread"]), b"}"),
                ]
                name = b',"name":"step ', integers(steps["index"]), b'"'
                self._trace.write(lines([*head, *name, without(args, is_end), b"},\n"]))

    def write_phases(self) -> None:
        """Write the phases and modules of threads, their waits, those of streams, and the batches
        of a loader's workers; and beside a stream how long after its host phase each of its phases
        began. Flows tie the two times of a span together."""
        timeline, labels = self._timeline, labels_of(self._run)
        names = [b',"name":%b' % json_text(label.name) for label in labels]
        args = [b',"args":%b' % json_text(_args(self._run, label))[:-1] for label in labels]
        paths = [b"", *(b',"path":%b' % json_text(path) for path in self._run.paths)]
        flops = [b"", *_flops(self._run, labels)]
        tracks = [
            *((track, b"phase") for track in timeline.threads()),
            *((track, b"sync") for track in timeline.waits()),
            *((track, b"gpu") for track in chain(timeline.streams(), timeline.graphs())),
            *((track, b"batch") for track in timeline.workers()),
        ]
        for track, category in tracks:
            flow = b',"flow_in":true' if track.is_stream else b',"flow_out":true'
            counter = self._counter_head(f"{track.name} queue time")
            for numbers, is_end, head in self._events(track, category, names, args, flops, paths):
                marks = timeline.marks(numbers)
                spans = marks["span"]
                arguments = [
                    texts(args, marks["label"]),
                    texts(flops, np.where(marks["step"] < 0, 0, marks["label"] + 1)),
                    *_unless_missing(b',"bytes":', marks["bytes"]),
                    *_unless_missing(b',"step":', marks["step"]),
                    *_unless_missing(b',"blocked_ns":', marks["blocked_ns"]),
                    *(texts(paths, marks["path"] + 1), b"}"),
                    *_unless_missing(
                        flow + b',"bind_id":', np.where(spans < 0, -1, self._first_flow + spans)
                    ),
                ]
                name = texts(names, marks["label"])
                self._trace.write(lines([*head, name, without(arguments, is_end), b"},\n"]))
                if track.is_stream:
                    self._write_queue_time(counter, self._run.spans[spans[(spans >= 0) & ~is_end]])

    def _write_queue_time(self, counter: bytes, spans: NDArray[np.void]) -> None:
        if not len(spans):
            return
        ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
        begin = thousandths(self._timeline.on_axis(spans["host_begin_ns"]))
        sign, ahead = texts([b"", b"-"], ahead_ns < 0), thousandths(abs(ahead_ns))
        self._trace.write(lines([counter, begin, b',"args":{"us":', sign, ahead, b"}},\n"]))

    def write_metrics(self) -> None:
        """Write each metric as a counter, and memory at the end of steps. Viewers sort these by
        name, so metrics stand together. A trace has no place for what is not finite."""
        run = self._run
        finite = run.metrics[np.isfinite(run.metrics["value"])]
        for name, readings in metrics_by_name(run.metric_names, finite):
            self._write_counter(f"metrics/{name}", readings["host_ns"], readings["value"])
        if run.memory is not None:
            points, steps = run.memory.points, run.steps.closed
            _, kept, at = np.intersect1d(points["step"], steps["index"], return_indices=True)
            used = "resident" if run.memory.device is None else "allocated"
            for name, column in ((used, "allocated_bytes"), ("reserved", "reserved_bytes")):
                known = points[column][kept] >= 0
                self._write_counter(
                    f"memory/{name}_bytes", steps["end_ns"][at][known], points[column][kept][known]
                )

    def write_origin(self) -> None:
        """Write an instant where the step begins in which the first value was not finite."""
        found, steps = self._run.nonfinite, self._run.steps.array
        if found is None or found.origin is None:
            return
        origin = found.origin
        keys = "step", "where", "module", "detail"
        event = {
            "name": f"first {origin.value}: {origin.module or origin.where}",
            "cat": "nonfinite",
            "args": {key: getattr(origin, key) for key in keys},
        }
        for begin_ns in steps["begin_ns"][steps["index"] == origin.step].tolist():
            head = b'{"ph":"i","s":"p","pid":%d,"ts":%b,' % (self._pid, self._time(begin_ns))
            self._trace.write(head + json_text(event)[1:] + b",\n")

    def _write_counter(
        self, name: str, host_ns: NDArray[np.int64], values: NDArray[np.generic]
    ) -> None:
        head = self._counter_head(name)
        for time_ns, value in zip(host_ns.tolist(), values.tolist(), strict=True):
            self._trace.write(
                head + self._time(time_ns) + b',"args":{"value":%b}},\n' % json_text(value)
            )

    def _time(self, host_ns: int) -> bytes:
        """A time of the run as the trace has it, in microseconds."""
        return b"%d.%03d" % divmod(host_ns + self._timeline.start_ns, 1000)

    def _counter_head(self, name: str) -> bytes:
        return b'{"ph":"C","pid":%d,"name":%b,"ts":' % (self._pid, json_text(name))

    def _events(
        self, track: Track, category: bytes, *rest: Sequence[bytes]
    ) -> Iterator[_RowEvents]:
        """The events of a track. Ranges that overlap without nesting go to further rows of the
        viewer, "name (2)" and so on.

        Args:
            category: what they are, but for modules on rows of threads.
            rest: each event has one of each text there behind its times.
        """
        rows: list[_TraceRow] = []
        for by_lane in self._timeline.placed(track):
            for lane in range(len(rows), max(by_lane) + 1):
                rows.append(self._new_row(track, category, lane))
            for lane, ranges in by_lane.items():
                yield from self._parts(rows[lane], *rows[lane].boundaries(ranges), *rest)
        for row in rows:
            if row.open is not None:
                ends = row.open.some(slice(None, None, -1))
                yield from self._parts(row, ends, np.ones(len(ends.number), np.bool_), *rest)

    def _parts(
        self, row: _TraceRow, ranges: Ranges, is_end: NDArray[np.bool_], *rest: Sequence[bytes]
    ) -> Iterator[_RowEvents]:
        for part in slices_of(len(is_end), chunk_rows(row.heads, *rest)):
            (numbers, begin_ns, end_ns), ends = ranges.some(part), is_end[part]
            kinds, _ = self._timeline.places(numbers)
            head: list[TextColumn | bytes] = [
                texts(row.heads, np.where(ends, len(RangeKind), kinds)),
                thousandths(np.where(ends, end_ns, begin_ns)),
            ]
            if row.open is None:
                head += [b',"dur":', thousandths(end_ns - begin_ns)]
            yield numbers, ends, head

    def _new_row(self, track: Track, category: bytes, lane: int) -> _TraceRow:
        """Name a row of the viewer: that of a thread, or another one."""
        if track.thread is not None and lane == 0:
            tid = self._tid_of_thread[track.thread]
            self._write_metadata("thread_name", {"name": track.name}, tid)
            self._write_metadata("thread_sort_index", {"sort_index": next(self._trace.order)}, tid)
            head = b'{"ph":"X","cat":"%b","pid":%d,"tid":%d,"ts":'
            own = {RangeKind.MODULE: b"module", RangeKind.COMPILATION: b"compilation"}
            categories = [own.get(kind, category) for kind in RangeKind]
            return _TraceRow([head % (each, self._pid, tid) for each in categories])
        # Viewers make one row of those of a process that have the same name.
        others = self._names[track.name] + (track.thread is not None)
        self._names[track.name] += 1
        number = next(self._trace.rows)
        begin, end = (
            b'{"ph":"%b","cat":"%b","pid":%d,"id2":{"local":"0x%x"},"ts":'
            % (phase, category, self._pid, number)
            for phase in (b"b", b"e")
        )
        self._trace.write(
            b'%b0.000,"name":%b},\n' % (end, json_text(lane_name(track.name, others)))
        )
        return _TraceRow([*([begin] * len(RangeKind)), end], NOTHING)

    def _write_metadata(self, name: str, args: dict[str, Any], tid: int | None = None) -> None:
        of = {"ph": "M", "pid": self._pid} | ({} if tid is None else {"tid": tid})
        self._trace.write(b"%b,\n" % json_text(of | {"name": name, "args": args}))


def _args(run: Run, label: Label) -> dict[str, object]:
    """The first arguments of events."""
    args: dict[str, object] = {}
    if label.kind is RangeKind.WAIT:
        site = run.syncs.sites[label.of]
        args = {"file": site.file, "line": site.line, "function": site.function}
        args |= {} if site.library is None else {"library": run.name_of_line(site.library)}
        args |= {"allowed": True} if site.is_allowed else {}
    elif label.kind is RangeKind.MODULE:
        passed = ModulePass(label.of % len(ModulePass))
        args = {"module": label.name, "kind": passed.name.lower()}
    elif label.kind is RangeKind.COMPILATION and run.compilations is not None:
        one = run.compilations.compilations[label.of]
        args = {"file": one.file, "line": one.line, "function": one.function}
        args |= {} if one.reason is None else {"reason": one.reason}
    elif label.kind in _PHASES:
        args = {"path": run.paths[label.of]}
        args |= {"open": True} if label.kind is RangeKind.OPEN_PHASE else {}
    return args


def _flops(run: Run, labels: Sequence[Label]) -> Iterator[bytes]:
    """Arguments of phases within steps: what is known of their floating-point operations."""
    used = utilization(run)
    rows = {} if used is None else {row.name: row for row in used.phases}
    for label in labels:
        row = rows.get(run.paths[label.of]) if label.kind in _PHASES else None
        known = {} if row is None else {name: getattr(row, name) for name in _FLOPS}
        yield b"".join(
            b",%b:%b" % (json_text(name), json_text(value))
            for name, value in known.items()
            if value is not None
        )


def _unless_missing(key: bytes, values: NDArray[np.int64]) -> list[TextColumn | bytes]:
    present = values >= 0
    return [texts([b"", key], present), integers(values)] if present.any() else []


def _samples(samples: float) -> bytes:
    return b',"samples":%b' % json_text(samples) if math.isfinite(samples) else b""
