# SPDX-License-Identifier: Apache-2.0
"""Trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

docs/exporters/perfetto.md says what becomes what. Times in microseconds are written digit by digit,
never as floats, so they are exact to the nanosecond. Processes and threads have the numbers that
the system gave them, as viewers show these behind their names, but where two have the same: threads
one after the other, or of two machines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.labels import Kind, Label, labels_of
from pyinstrument_gpu.export.lanes import lane_name
from pyinstrument_gpu.export.process_name import process_name
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.run_facts import json_text, run_facts
from pyinstrument_gpu.export.text import Column, chunk_rows, integers, lines, texts, thousandths
from pyinstrument_gpu.export.timeline import Timeline, Track
from pyinstrument_gpu.export.unique_ids import UniqueIds
from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData

_ID_LIMIT = 1 << 31

_CATEGORIES = {
    Kind.WAIT: b"sync",
    Kind.MODULE: b"module",
    Kind.PHASE: b"phase",
    Kind.OPEN_PHASE: b"phase",
    Kind.STEP: b"step",
}
_CATEGORIES_ON_STREAMS = {Kind.MODULE: b"gpu_module", Kind.PHASE: b"gpu"}


def write(runs: Sequence[RunData], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Takes about a second per million spans."""
    ranks, offsets_ns = ranks_of(runs), offsets_ns_of(runs)
    about = [
        {**run_facts(run), "begin_ns": offset_ns}
        for run, offset_ns in zip(runs, offsets_ns, strict=True)
    ]
    trace = _Trace(sink, {"runs": about})
    pids = UniqueIds(_ID_LIMIT).assign([run.environment.get("pid", 0) for run in runs])
    # Of all runs, before any track takes a free one.
    threads = [thread.native_id for run in runs for thread in run.threads]
    tids = iter(trace.tids.assign(threads))
    for run, rank, offset_ns, pid in zip(runs, ranks, offsets_ns, pids, strict=True):
        tid_of_thread = list(itertools.islice(tids, len(run.threads)))
        process = _Process(trace, Timeline(run, offset_ns, advance), pid, tid_of_thread)
        process.write_process(process_name(run, rank if len(runs) > 1 else None), rank)
        process.write_steps()
        process.write_phases()
        process.write_metrics()
    trace.end()


class _Trace:
    """The file: events one after the other.

    Attributes:
        tids: numbers for tracks.
        order: viewers show tracks in this order.
        first_flow: the first number for flows that no process has taken.
    """

    def __init__(self, sink: BinaryIO, about: dict[str, Any]) -> None:
        self.tids = UniqueIds(_ID_LIMIT)
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


class _Process:
    """The events of one run."""

    def __init__(
        self, trace: _Trace, timeline: Timeline, pid: int, tid_of_thread: Sequence[int]
    ) -> None:
        self._trace = trace
        self._timeline = timeline
        self._run = timeline.run
        self._pid = pid
        self._tid_of_thread = tid_of_thread
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
            for numbers, head in self._parts(track, threads):
                steps = self._run.steps.array[self._timeline.places(numbers)[1]]
                samples, sample = np.unique(steps["samples"], return_inverse=True)
                columns = [
                    *head,
                    *(b',"name":"step ', integers(steps["index"])),
                    *(b'","args":{"step":', integers(steps["index"])),
                    texts(list(map(_samples, samples.tolist())), sample),
                    *(b',"items":', integers(steps["items"])),
                    texts([b',"complete":false', b',"complete":true'], steps["complete"]),
                    texts([b"", b',"open":true'], steps["end_ns"] < 0),
                    *(texts(threads, steps["thread"]), b"}},\n"),
                ]
                self._trace.write(lines(columns))

    def write_phases(self) -> None:
        """Write the phases and modules of threads, their waits, and those of streams; and beside a
        stream how long after its host phase each of its phases began. Flows tie the two times of a
        span together."""
        timeline = self._timeline
        labels = [_label(self._run, label) for label in labels_of(self._run)]
        paths = [b"", *(b',"path":%b' % json_text(path) for path in self._run.paths)]
        for track in chain(timeline.threads(), timeline.waits(), timeline.streams()):
            flow = b',"flow_in":true' if track.is_stream else b',"flow_out":true'
            counter = self._counter_head(f"{track.name} run-ahead")
            for numbers, head in self._parts(track, labels, paths):
                marks = timeline.marks(numbers)
                spans = marks["span"]
                columns = [
                    *head,
                    texts(labels, marks["label"]),
                    *_unless_missing(b',"bytes":', marks["bytes"]),
                    *_unless_missing(b',"step":', marks["step"]),
                    *_unless_missing(b',"blocked_ns":', marks["blocked_ns"]),
                    *(texts(paths, marks["path"] + 1), b"}"),
                    *_unless_missing(
                        flow + b',"bind_id":', np.where(spans < 0, -1, self._first_flow + spans)
                    ),
                    b"},\n",
                ]
                self._trace.write(lines(columns))
                if track.is_stream:
                    self._write_run_ahead(counter, self._run.spans[spans[spans >= 0]])

    def _write_run_ahead(self, counter: bytes, spans: NDArray[np.void]) -> None:
        if not len(spans):
            return
        ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
        begin = thousandths(self._timeline.on_axis(spans["host_begin_ns"]))
        sign, ahead = texts([b"", b"-"], ahead_ns < 0), thousandths(abs(ahead_ns))
        self._trace.write(lines([counter, begin, b',"args":{"us":', sign, ahead, b"}},\n"]))

    def write_metrics(self) -> None:
        """Write each metric as a counter. Viewers sort these by name, so metrics stand together.
        A trace has no place for what is not finite."""
        run = self._run
        heads = [self._counter_head(f"metrics/{name}") for name in run.metric_names]
        for metric in run.metrics[np.isfinite(run.metrics["value"])].tolist():
            _, _, host_ns, name, value = metric
            microseconds, rest = divmod(host_ns + self._timeline.start_ns, 1000)
            self._trace.write(
                heads[name]
                + b'%d.%03d,"args":{"value":%b}},\n' % (microseconds, rest, json_text(value))
            )

    def _counter_head(self, name: str) -> bytes:
        return b'{"ph":"C","pid":%d,"name":%b,"ts":' % (self._pid, json_text(name))

    def _parts(
        self, track: Track, *rest: Sequence[bytes]
    ) -> Iterator[tuple[NDArray[np.int64], list[Column | bytes]]]:
        """The numbers of some ranges of a track, and how their events begin, up to their times.
        Those that overlap without nesting go to further tracks of the viewer, "name (2)" and so on.

        Args:
            rest: each range has one of each text there behind that.
        """
        heads: list[bytes] = []
        for placed, lanes in self._timeline.placed(track):
            for lane in range(len(heads) // len(Kind), lanes.max() + 1):
                heads += self._new_lane(track, lane)
            kinds, _ = self._timeline.places(placed.number)
            for part in slices_of(len(lanes), chunk_rows(heads, *rest)):
                ranges = placed.some(part)
                head = texts(heads, len(Kind) * lanes[part] + kinds[part])
                duration = thousandths(ranges.end_ns - ranges.begin_ns)
                yield ranges.number, [head, thousandths(ranges.begin_ns), b',"dur":', duration]

    def _new_lane(self, track: Track, lane: int) -> list[bytes]:
        """Name a viewer's track; returns how its events of each kind begin."""
        is_thread = track.thread is not None and lane == 0
        tids = self._trace.tids
        tid = self._tid_of_thread[track.thread or 0] if is_thread else tids.lowest_free()
        name = lane_name(track.name, lane)
        self._write_metadata("thread_name", {"name": name}, tid)
        self._write_metadata("thread_sort_index", {"sort_index": next(self._trace.order)}, tid)
        categories = _CATEGORIES_ON_STREAMS if track.is_stream else _CATEGORIES
        head = b'{"ph":"X","cat":"%b","pid":%d,"tid":%d,"ts":'
        return [head % (categories.get(kind, b""), self._pid, tid) for kind in Kind]

    def _write_metadata(self, name: str, args: dict[str, Any], tid: int | None = None) -> None:
        of = {"ph": "M", "pid": self._pid} | ({} if tid is None else {"tid": tid})
        self._trace.write(b"%b,\n" % json_text(of | {"name": name, "args": args}))


def _label(run: RunData, label: Label) -> bytes:
    """What events have behind their times: a name, and the first of their arguments."""
    args: dict[str, object] = {}
    if label.kind is Kind.WAIT:
        site = run.syncs.sites[label.of]
        args = {"file": site.file, "line": site.line, "function": site.function}
        args |= {} if site.library is None else {"library": run.name_of_line(site.library)}
        args |= {"allowed": True} if site.is_allowed else {}
    elif label.kind is Kind.MODULE:
        passed = ModulePass(label.of % len(ModulePass))
        args = {"module": label.name, "kind": passed.name.lower()}
    elif label.kind in (Kind.PHASE, Kind.OPEN_PHASE):
        args = {"path": run.paths[label.of]}
        args |= {"open": True} if label.kind is Kind.OPEN_PHASE else {}
    return b',"name":%b,"args":%b' % (json_text(label.name), json_text(args)[:-1])


def _unless_missing(key: bytes, values: NDArray[np.int64]) -> list[Column | bytes]:
    present = values >= 0
    return [texts([b"", key], present), integers(values)] if present.any() else []


def _samples(samples: float) -> bytes:
    return b',"samples":%b' % json_text(samples) if math.isfinite(samples) else b""
