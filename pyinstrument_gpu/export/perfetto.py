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
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.lanes import lane_name
from pyinstrument_gpu.export.process_name import process_name
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.run_facts import json_text, run_facts
from pyinstrument_gpu.export.text import Column, chunk_rows, integers, lines, texts, thousandths
from pyinstrument_gpu.export.timeline import Timeline, Track, sync_name
from pyinstrument_gpu.export.unique_ids import UniqueIds
from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import has_device_times
from pyinstrument_gpu.model.syncs import SyncSite

_ID_LIMIT = 1 << 31


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
        process.write_syncs()
        process.write_device()
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
        self._labels = _labels(self._run)
        self._paths_of_modules = [b""]
        if len(self._run.module_spans):
            self._paths_of_modules += [b',"path":%b' % json_text(path) for path in self._run.paths]
        self._first_flow = trace.first_flow
        trace.first_flow += timeline.first_step

    def write_steps(self) -> None:
        threads = [b',"thread":%b' % json_text(thread.name) for thread in self._run.threads]

        def rest(numbers: NDArray[np.int64]) -> list[Column | bytes]:
            steps = self._timeline.steps_at(numbers)
            samples, sample = np.unique(steps["samples"], return_inverse=True)
            return [
                *(b',"name":"step ', integers(steps["index"])),
                *(b'","args":{"step":', integers(steps["index"])),
                texts(list(map(_samples, samples.tolist())), sample),
                *(b',"items":', integers(steps["items"])),
                texts([b',"complete":false', b',"complete":true'], steps["complete"]),
                texts([b"", b',"open":true'], steps["end_ns"] < 0),
                *(texts(threads, steps["thread"]), b"}"),
            ]

        for track in self._timeline.steps():
            self._write_track(track, ["step"], rest, [threads])

    def write_phases(self) -> None:
        main = self._run.environment.get("pid")  # on Linux also the number of its main thread

        def is_other(track: Track) -> bool:
            return track.thread is None or self._run.threads[track.thread].native_id != main

        for track in sorted(self._timeline.threads(), key=is_other):
            self._write_phases_on(track, b',"flow_out":true,"bind_id":', ["phase", "module"])

    def write_syncs(self) -> None:
        syncs = self._run.syncs
        labels = [_sync_label(self._run, site) for site in syncs.sites]
        paths = [b"", *(b',"path":%b' % json_text(path) for path in self._run.paths)]

        def rest(numbers: NDArray[np.int64]) -> list[Column | bytes]:
            some = syncs.events[numbers]
            return [
                texts(labels, some["site"]),
                *(b',"bytes":', integers(some["bytes"])),
                *_unless_missing(b',"step":', some["step"]),
                *_unless_missing(b',"blocked_ns":', some["duration_ns"]),
                *(texts(paths, some["path"] + 1), b"}"),
            ]

        for track in self._timeline.syncs():
            self._write_track(track, ["sync"], rest, [labels, paths])

    def write_device(self) -> None:
        """Write what each device stream did, and beside it how long after its host phase each of
        its phases began."""
        categories = ["gpu", "gpu_module"]
        for track in self._timeline.streams():
            counter = self._counter_head(f"{track.name} run-ahead")

            def write_run_ahead(numbers: NDArray[np.int64], counter: bytes = counter) -> None:
                spans = self._run.spans[numbers[numbers >= 0]]
                if not len(spans):
                    return
                ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
                begin = thousandths(self._timeline.on_axis(spans["host_begin_ns"]))
                sign, ahead = texts([b"", b"-"], ahead_ns < 0), thousandths(abs(ahead_ns))
                self._trace.write(lines([counter, begin, b',"args":{"us":', sign, ahead, b"}},\n"]))

            flow = b',"flow_in":true,"bind_id":'
            self._write_phases_on(track, flow, categories, write_run_ahead)

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

    def _write_phases_on(
        self,
        track: Track,
        flow: bytes,
        categories: Sequence[str],
        then: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        """Write the phases and modules of a thread or stream, which are of two categories; `flow`
        ties the two times of a span together."""

        def rest(numbers: NDArray[np.int64]) -> list[Column | bytes]:
            label, step, blocked_ns, flows, path = np.full((5, len(numbers)), -1)
            is_module = numbers < 0
            of_phases = numbers[~is_module]
            phases = self._timeline.phases_at(of_phases)
            is_open = of_phases >= len(self._run.spans)
            label[~is_module] = phases["path"] + len(self._run.paths) * is_open
            step[~is_module], blocked_ns[~is_module] = phases["step"], phases["blocked_ns"]
            flow_ids = np.where(has_device_times(phases), self._first_flow + of_phases, -1)
            flows[~is_module] = flow_ids

            modules = self._timeline.modules_at(numbers[is_module])
            of_module = modules["module"] * len(ModulePass) + modules["kind"]
            label[is_module] = 2 * len(self._run.paths) + of_module
            step[is_module], path[is_module] = modules["step"], modules["path"]
            return [
                texts(self._labels, label),
                *_unless_missing(b',"step":', step),
                *_unless_missing(b',"blocked_ns":', blocked_ns),
                *([texts(self._paths_of_modules, path + 1)] if len(modules) else []),
                b"}",
                *_unless_missing(flow, flows),
            ]

        self._write_track(track, categories, rest, [self._labels, self._paths_of_modules], then)

    def _write_track(
        self,
        track: Track,
        categories: Sequence[str],
        rest: Callable[[NDArray[np.int64]], list[Column | bytes]],
        rest_texts: Sequence[Sequence[bytes]],
        then: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        """Write the ranges of a track. Those that overlap without nesting go to further tracks of
        the viewer, "name (2)" and so on.

        Args:
            categories: that of the ranges, and then that of modules, if there may be some.
            rest: of some ranges, by their numbers, what follows the times in their events.
            rest_texts: each range has one of each there.
            then: called with the numbers of the ranges written since its last call.
        """
        heads: list[bytes] = []
        for placed, lanes in self._timeline.placed(track):
            for lane in range(len(heads) // len(categories), lanes.max() + 1):
                heads += self._new_lane(track, lane, categories)
            for part in slices_of(len(lanes), chunk_rows(heads, *rest_texts)):
                ranges = placed.some(part)
                is_module = ranges.number < 0
                head = texts(heads, len(categories) * lanes[part] + is_module)
                begin = thousandths(ranges.begin_ns)
                duration = thousandths(ranges.end_ns - ranges.begin_ns)
                columns = [head, begin, b',"dur":', duration, *rest(ranges.number), b"},\n"]
                self._trace.write(lines(columns))
                if then is not None:
                    then(ranges.number)

    def _new_lane(self, track: Track, lane: int, categories: Sequence[str]) -> list[bytes]:
        """Name a viewer's track; returns how its events of each category begin."""
        is_thread = track.thread is not None and lane == 0
        tids = self._trace.tids
        tid = self._tid_of_thread[track.thread or 0] if is_thread else tids.lowest_free()
        name = lane_name(track.name, lane)
        self._write_metadata("thread_name", {"name": name}, tid)
        self._write_metadata("thread_sort_index", {"sort_index": next(self._trace.order)}, tid)
        head = b'{"ph":"X","cat":"%b","pid":%d,"tid":%d,"ts":'
        return [head % (category.encode(), self._pid, tid) for category in categories]

    def write_process(self, name: str, rank: int) -> None:
        """Name the process, say where it ran, and place it among the others."""
        self._write_metadata("process_name", {"name": name})
        if "host" in self._run.environment:
            labels = f"host {self._run.environment['host']}"
            self._write_metadata("process_labels", {"labels": labels})
        self._write_metadata("process_sort_index", {"sort_index": rank})

    def _write_metadata(self, name: str, args: dict[str, Any], tid: int | None = None) -> None:
        of = {"ph": "M", "pid": self._pid} | ({} if tid is None else {"tid": tid})
        self._trace.write(b"%b,\n" % json_text(of | {"name": name, "args": args}))


def _sync_label(run: RunData, site: SyncSite) -> bytes:
    """What the events of a site have behind their times."""
    args: dict[str, object] = {"file": site.file, "line": site.line, "function": site.function}
    args |= {} if site.library is None else {"library": run.name_of_line(site.library)}
    args |= {"allowed": True} if site.is_allowed else {}
    return b',"name":%b,"args":%b' % (
        json_text(sync_name(run, site)),
        json_text(args)[:-1],
    )


def _labels(run: RunData) -> list[bytes]:
    """What the events of each path have behind their times, then those of its open phases, and
    then those of each module in each kind of pass."""
    labels = [
        b',"name":%b,"args":{"path":%b' % (json_text(run.names[name]), json_text(path))
        for name, path in zip(run.path_names.tolist(), run.paths, strict=True)
    ]
    modules = [
        b',"name":%b,"args":{"module":%b,"kind":"%b"' % (name, name, kind.name.lower().encode())
        for name in map(json_text, run.module_names)
        for kind in ModulePass
    ]
    return [*labels, *(label + b',"open":true' for label in labels), *modules]


def _unless_missing(key: bytes, values: NDArray[np.int64]) -> list[Column | bytes]:
    present = values >= 0
    return [texts([b"", key], present), integers(values)] if present.any() else []


def _samples(samples: float) -> bytes:
    return b',"samples":%b' % json_text(samples) if math.isfinite(samples) else b""
