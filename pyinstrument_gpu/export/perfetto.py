# SPDX-License-Identifier: Apache-2.0
"""Trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

docs/exporters/perfetto.md says what becomes what. Every range is one complete event ("X") with its
begin and duration in microseconds, written digit by digit, never as floats, so they are exact to
the nanosecond. Processes and threads get small numbers of their own: a viewer can tell neither
threads that were given the same number one after the other nor those of two machines apart.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.lanes import Lanes, lane_name
from pyinstrument_gpu.export.ranges import (
    Ranges,
    RangeTable,
    by_begin,
    range_table,
    range_tables_by_key,
    slices_of,
)
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.spans import of_streams, of_threads, step_times
from pyinstrument_gpu.export.text import Column, chunk_rows, integers, lines, texts, thousandths
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SPAN_DTYPE, has_device_times
from pyinstrument_gpu.model.surrogates import without_surrogates
from pyinstrument_gpu.model.syncs import SyncSite
from pyinstrument_gpu.model.thread import Thread

_NUMBERS_BYTES = 400  # no event's numbers and constant parts are wider


def write(runs: Sequence[RunData], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Write runs as one trace, each as a process.

    Takes about a second per million spans. The text goes out as it is made; memory does not grow
    with the number of spans.

    Args:
        runs: the ranks of one job, or a single run.
        sink: a binary stream.
        advance: called with the number of spans done since its last call.

    Raises:
        ExportError: there are several runs, and one does not know when it began.
    """
    ranks, offsets_ns = ranks_of(runs), offsets_ns_of(runs)
    about = [_about(run, offset_ns) for run, offset_ns in zip(runs, offsets_ns, strict=True)]
    trace = _Trace(sink, {"runs": about})
    for run, rank, offset_ns in zip(runs, ranks, offsets_ns, strict=True):
        process = _Process(trace, run, offset_ns)
        process.write_name(_process_name(run, rank, len(runs)), rank)
        process.write_steps()
        process.write_phases(advance)
        process.write_syncs()
        process.write_device()
        process.write_metrics()
    trace.end()


def _about(run: RunData, offset_ns: int) -> dict[str, Any]:
    facts = ("host", "rank", "pid", "started", "version", "command", "torch", "gpus")
    return {
        **{fact: run.environment[fact] for fact in facts if fact in run.environment},
        "begin_ns": offset_ns,
        "duration_ns": run.duration_ns,
        "complete": run.complete,
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "notes": run.notes,
    }


def _process_name(run: RunData, rank: int, runs: int) -> str:
    parts = [f"rank {rank}"] if "rank" in run.environment or runs > 1 else []
    parts += [
        f"{fact} {run.environment[fact]}" for fact in ("host", "pid") if fact in run.environment
    ]
    return ", ".join(parts) or "run"


class _Trace:
    """The file: events one after the other.

    Attributes:
        ids: numbers for processes and tracks; viewers show tracks in this order.
        first_flow: the first number for flows that no process has taken.
    """

    def __init__(self, sink: BinaryIO, about: dict[str, Any]) -> None:
        self.ids = itertools.count(1)
        self.first_flow = 1
        self._sink = sink
        self._before = b""
        sink.write(b'{"displayTimeUnit":"ns","otherData":%b,"traceEvents":[\n' % _json(about))

    def write(self, events: bytes) -> None:
        """Write events, each of which ends with a comma and the end of its line."""
        self._sink.write(self._before + events[:-2])
        self._before = b",\n"

    def end(self) -> None:
        self._sink.write(b"\n]}\n")


@dataclass(frozen=True)
class _Track:
    """What one thread or stream did, or the steps.

    Attributes:
        name: what stands beside it. Ranges that overlap without nesting go to further tracks,
            "name (2)" and so on.
        category: that of its events.
        tables: the ranges.
        rest: of some ranges, by their numbers, what follows the times in their events.
        rest_bytes: no range has more there, apart from its numbers.
    """

    name: str
    category: str
    tables: Sequence[RangeTable]
    rest: Callable[[NDArray[np.intp]], list[Column | bytes]]
    rest_bytes: int


class _Process:
    """The events of one run."""

    def __init__(self, trace: _Trace, run: RunData, offset_ns: int) -> None:
        self._trace = trace
        self._run = run
        self._offset_ns = offset_ns
        self._pid = next(trace.ids)
        self._open = _open_phases(run)
        self._labels = _labels(run)
        self._label_bytes = max(map(len, self._labels), default=0)
        self._first_flow = trace.first_flow
        trace.first_flow += len(run.spans) + len(self._open)

    def write_name(self, name: str, rank: int) -> None:
        """Name the process and place it among the others."""
        self._write_metadata("process", None, name, rank)

    def write_steps(self) -> None:
        """Write the steps, on a track of their own."""
        steps = self._run.steps.array
        threads = [b',"thread":%b' % _json(thread.name) for thread in self._run.threads]

        def rest(rows: NDArray[np.intp]) -> list[Column | bytes]:
            some = steps[rows]
            samples, sample = np.unique(some["samples"], return_inverse=True)
            return [
                *(b',"name":"step ', integers(some["index"])),
                *(b'","args":{"step":', integers(some["index"])),
                texts(list(map(_samples, samples.tolist())), sample),
                *(b',"items":', integers(some["items"])),
                texts([b',"complete":false', b',"complete":true'], some["complete"]),
                texts([b"", b',"open":true'], some["end_ns"] < 0),
                *(texts(threads, some["thread"]), b"}"),
            ]

        def read(part: slice) -> Ranges:
            return Ranges(np.arange(part.start, part.stop), *step_times(self._run, steps[part]))

        track = _Track(
            name="steps",
            category="step",
            tables=[range_table(slices_of(len(steps)), read)],
            rest=rest,
            rest_bytes=max(map(len, threads), default=0),
        )
        for _, events in self._events(track):
            self._trace.write(events)

    def write_phases(self, advance: Callable[[int], None]) -> None:
        """Write what each thread did, the main thread first."""
        threads = self._run.threads
        main = self._run.environment.get("pid")  # on Linux also the number of its main thread
        spans = of_threads(self._run)
        found = sorted(spans.keys() | set(self._open["thread"].tolist()))
        for thread in sorted(found, key=lambda thread: threads[thread].native_id != main):
            tables = [spans[thread]] if thread in spans else []
            tables.append(self._open_phases(thread))
            track = self._track(_thread_name(threads[thread]), "host", tables)
            for rows, events in self._events(track):
                self._trace.write(events)
                advance(int(np.count_nonzero(rows < len(self._run.spans))))

    def _open_phases(self, thread: int) -> RangeTable:
        def read(part: slice) -> Ranges:
            rows = np.flatnonzero(self._open["thread"] == thread)
            some = self._open[rows]
            number = rows + len(self._run.spans)
            return Ranges(number, some["host_begin_ns"], some["host_end_ns"])

        return range_table([slice(None)], read)

    def write_syncs(self) -> None:
        """Write where each thread waited for a device, on a track of its own below the threads. A
        wait whose price is unknown has no length."""
        run, syncs = self._run, self._run.syncs
        labels = [_sync_label(site) for site in syncs.sites]
        paths = [b',"path":%b' % _json(path) for path in run.paths]
        events = syncs.events

        def rest(rows: NDArray[np.intp]) -> list[Column | bytes]:
            some = events[rows]
            return [
                texts(labels, some["site"]),
                *(b',"bytes":', integers(some["bytes"])),
                *_unless_missing(b',"step":', some["step"]),
                *_unless_missing(b',"blocked_ns":', some["duration_ns"]),
                *([texts([b"", *paths], some["path"] + 1)] if paths else []),
                b"}",
            ]

        for thread, table in range_tables_by_key(events, _threads_of, _times_of_syncs):
            track = _Track(
                name=f"{_thread_name(run.threads[thread])} waits",
                category="sync",
                tables=[table],
                rest=rest,
                rest_bytes=max(map(len, labels)) + max(map(len, paths), default=0),
            )
            for _, text in self._events(track):
                self._trace.write(text)

    def write_device(self) -> None:
        """Write what each device stream did, and beside it how long after its host phase each of
        its phases began."""
        for name, table in of_streams(self._run):
            track = self._track(name, "device", [table])
            counter = b'{"ph":"C","pid":%d,"name":%b,"ts":' % (
                self._pid,
                _json(f"{name} run-ahead"),
            )
            for rows, events in self._events(track):
                self._trace.write(events)
                spans = self._run.spans[rows]
                ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
                begin = thousandths(spans["host_begin_ns"] + self._offset_ns)
                sign, ahead = texts([b"", b"-"], ahead_ns < 0), thousandths(abs(ahead_ns))
                columns: list[Column | bytes]
                columns = [counter, begin, b',"args":{"us":', sign, ahead, b"}},\n"]
                self._trace.write(lines(columns))

    def write_metrics(self) -> None:
        """Write each metric as a counter. Viewers sort these by name, so metrics stand together.
        A trace has no place for what is not finite."""
        run = self._run
        heads = [
            b'{"ph":"C","pid":%d,"name":%b,"ts":' % (self._pid, _json(f"metrics/{name}"))
            for name in run.metric_names
        ]
        for metric in run.metrics[np.isfinite(run.metrics["value"])].tolist():
            _, _, host_ns, name, value = metric
            microseconds, rest = divmod(host_ns + self._offset_ns, 1000)
            self._trace.write(
                heads[name]
                + b'%d.%03d,"args":{"value":%b}},\n' % (microseconds, rest, _json(value))
            )

    def _track(self, name: str, side: str, tables: Sequence[RangeTable]) -> _Track:
        """The track of spans by their times on one side, "host" or "device"."""
        flow = b',"flow_out":true,"bind_id":' if side == "host" else b',"flow_in":true,"bind_id":'

        def rest(rows: NDArray[np.intp]) -> list[Column | bytes]:
            spans = self._spans(rows)
            flows = np.where(has_device_times(spans), self._first_flow + rows, -1)
            return [
                texts(self._labels, spans["path"]),
                *_unless_missing(b',"step":', spans["step"]),
                *_unless_missing(b',"blocked_ns":', spans["blocked_ns"]),
                b"}",
                *_unless_missing(flow, flows),
            ]

        return _Track(
            name=name,
            category="phase" if side == "host" else "gpu",
            tables=tables,
            rest=rest,
            rest_bytes=self._label_bytes,
        )

    def _events(self, track: _Track) -> Iterator[tuple[NDArray[np.intp], bytes]]:
        """The events of a track, with the numbers of their ranges."""
        count = chunk_rows(_NUMBERS_BYTES + track.rest_bytes)
        heads: list[bytes] = []
        placed = Lanes()
        for stretch in by_begin(*track.tables):
            lanes = placed.place(stretch)
            heads += [self._new_lane(track, lane) for lane in range(len(heads), lanes.max() + 1)]
            for first in range(0, len(lanes), count):
                some = stretch.some(slice(first, first + count))
                head = texts(heads, lanes[first : first + count])
                begin = thousandths(some.begin_ns + self._offset_ns)
                duration = thousandths(some.end_ns - some.begin_ns)
                columns = [head, begin, b',"dur":', duration, *track.rest(some.number), b"},\n"]
                yield some.number, lines(columns)

    def _spans(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Spans, and behind them the open phases, by their numbers."""
        spans = self._run.spans
        is_open = numbers >= len(spans)
        if not is_open.any():
            return spans[numbers]
        rows = np.empty(len(numbers), SPAN_DTYPE)
        rows[~is_open] = spans[numbers[~is_open]]
        rows[is_open] = self._open[numbers[is_open] - len(spans)]
        return rows

    def _new_lane(self, track: _Track, lane: int) -> bytes:
        """Name a viewer's track; returns how its events begin."""
        tid = next(self._trace.ids)
        self._write_metadata("thread", tid, lane_name(track.name, lane), tid)
        return b'{"ph":"X","cat":"%b","pid":%d,"tid":%d,"ts":' % (
            track.category.encode(),
            self._pid,
            tid,
        )

    def _write_metadata(self, kind: str, tid: int | None, name: str, sort_index: int) -> None:
        of = {"ph": "M", "pid": self._pid} | ({} if tid is None else {"tid": tid})
        named = of | {"name": f"{kind}_name", "args": {"name": name}}
        placed = of | {"name": f"{kind}_sort_index", "args": {"sort_index": sort_index}}
        self._trace.write(b"%b,\n%b,\n" % (_json(named), _json(placed)))


def _thread_name(thread: Thread) -> str:
    return thread.name or f"thread {thread.native_id}"


def _threads_of(rows: NDArray[np.void]) -> NDArray[np.int64]:
    return rows["thread"].astype(np.int64)


def _times_of_syncs(syncs: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return syncs["begin_ns"], syncs["begin_ns"] + np.maximum(syncs["duration_ns"], 0)


def _sync_label(site: SyncSite) -> bytes:
    """What the events of a site have behind their times."""
    place = f"{os.path.basename(site.file)}:{site.line}"
    args = {"file": site.file, "line": site.line, "function": site.function}
    args |= {"allowed": True} if site.is_allowed else {}
    return b',"name":%b,"args":%b' % (_json(f"wait: {site.kind.label} {place}"), _json(args)[:-1])


def _open_phases(run: RunData) -> NDArray[np.void]:
    """The open phases as spans up to the end of the run; their paths are those of `_labels`."""
    rows = np.zeros(len(run.open_phases), SPAN_DTYPE)
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        rows[column] = -1
    # Ends are alike: the outermost stands last, as with spans.
    for row, phase in zip(rows, sorted(run.open_phases, key=lambda one: -one.depth), strict=True):
        row["path"] = len(run.paths) + run.paths.index(phase.path)
        row["step"], row["depth"], row["thread"] = phase.step, phase.depth, phase.thread
        row["host_begin_ns"] = phase.begin_ns
        row["host_end_ns"] = max(phase.begin_ns, run.duration_ns)
    return rows


def _labels(run: RunData) -> list[bytes]:
    """What the events of each path have behind their times, then those of its open phases."""
    labels = [
        b',"name":%b,"args":{"path":%b' % (_json(run.names[name]), _json(path))
        for name, path in zip(run.path_names.tolist(), run.paths, strict=True)
    ]
    return [*labels, *(label + b',"open":true' for label in labels)]


def _unless_missing(key: bytes, values: NDArray[np.int64]) -> list[Column | bytes]:
    present = values >= 0
    return [texts([b"", key], present), integers(values)] if present.any() else []


def _samples(samples: float) -> bytes:
    return b',"samples":%b' % _json(samples) if math.isfinite(samples) else b""


def _json(value: Any) -> bytes:
    # Not as ASCII: Perfetto shows the escapes of what is beyond it as they are.
    return without_surrogates(json.dumps(value, ensure_ascii=False)).encode()
