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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.groups import groups
from pyinstrument_gpu.export.lanes import lane_name, lanes_of, outermost_first
from pyinstrument_gpu.export.ranks import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.spans import has_device_times, streams
from pyinstrument_gpu.export.text import (
    Column,
    chunk_rows,
    integers,
    lines,
    texts,
    thousandths,
    without_surrogates,
)
from pyinstrument_gpu.run import SPAN_DTYPE, Run

_NUMBERS_BYTES = 400  # no event's numbers and constant parts are wider


def write(runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Write runs as one trace, each as a process.

    Takes about a second per million spans. The text goes out as it is made; what is needed besides
    the runs is some 110 bytes per span of the busiest thread, to sort them.

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
        process.write_device()
    trace.end()


def _about(run: Run, offset_ns: int) -> dict[str, Any]:
    facts = ("host", "rank", "pid", "started", "version", "command", "torch", "gpus")
    return {
        **{fact: run.environment[fact] for fact in facts if fact in run.environment},
        "begin_ns": offset_ns,
        "duration_ns": run.duration_ns,
        "complete": run.complete,
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "notes": run.notes,
    }


def _process_name(run: Run, rank: int, runs: int) -> str:
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
        begin_ns, end_ns: the ranges, in the order in which they ended.
        rest: of some ranges, by their numbers, what follows the times in their events.
        rest_bytes: no range has more there, apart from its numbers.
    """

    name: str
    category: str
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    rest: Callable[[NDArray[np.intp]], list[Column | bytes]]
    rest_bytes: int


class _Process:
    """The events of one run."""

    def __init__(self, trace: _Trace, run: Run, offset_ns: int) -> None:
        self._trace = trace
        self._run = run
        self._offset_ns = offset_ns
        self._pid = next(trace.ids)
        self._spans = _with_open_phases(run)
        self._labels = _labels(run)
        self._label_bytes = max(map(len, self._labels), default=0)
        self._first_flow = trace.first_flow
        trace.first_flow += len(self._spans)

    def write_name(self, name: str, rank: int) -> None:
        """Name the process and place it among the others."""
        self._write_metadata("process", None, name, rank)

    def write_steps(self) -> None:
        """Write the steps, on a track of their own."""
        steps = self._run.steps.array
        is_open = steps["end_ns"] < 0
        now_ns = np.maximum(steps["begin_ns"], self._run.duration_ns)
        samples, sample = np.unique(steps["samples"], return_inverse=True)
        sample_texts = [_samples(value) for value in samples.tolist()]
        threads = [b',"thread":%b' % _json(thread.name) for thread in self._run.threads]

        def rest(rows: NDArray[np.intp]) -> list[Column | bytes]:
            some = steps[rows]
            return [
                *(b',"name":"step ', integers(some["index"])),
                *(b'","args":{"step":', integers(some["index"])),
                texts(sample_texts, sample[rows]),
                *(b',"items":', integers(some["items"])),
                texts([b',"complete":false', b',"complete":true'], some["complete"]),
                texts([b"", b',"open":true'], is_open[rows]),
                *(texts(threads, some["thread"]), b"}"),
            ]

        track = _Track(
            name="steps",
            category="step",
            begin_ns=steps["begin_ns"],
            end_ns=np.where(is_open, now_ns, steps["end_ns"]),
            rest=rest,
            rest_bytes=max(map(len, threads), default=0),
        )
        for _, events in self._events(track):
            self._trace.write(events)

    def write_phases(self, advance: Callable[[int], None]) -> None:
        """Write what each thread did, the main thread first."""
        threads = self._run.threads
        main = self._run.environment.get("pid")  # on Linux also the number of its main thread
        by_thread = list(groups(self._spans["thread"]))
        for thread, members in sorted(by_thread, key=lambda one: threads[one[0]].native_id != main):
            name = threads[thread].name or f"thread {threads[thread].native_id}"
            for rows, events in self._events(self._track(name, "host", members)):
                self._trace.write(events)
                advance(int(np.count_nonzero(members[rows] < len(self._run.spans))))

    def write_device(self) -> None:
        """Write what each device stream did, and beside it how long after its host phase each of
        its phases began."""
        for name, members in streams(self._spans):
            track = self._track(name, "device", members)
            counter = b'{"ph":"C","pid":%d,"name":%b,"ts":' % (
                self._pid,
                _json(f"{name} run-ahead"),
            )
            for rows, events in self._events(track):
                self._trace.write(events)
                spans = self._spans[members[rows]]
                ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
                begin = thousandths(spans["host_begin_ns"] + self._offset_ns)
                sign, ahead = texts([b"", b"-"], ahead_ns < 0), thousandths(abs(ahead_ns))
                columns: list[Column | bytes]
                columns = [counter, begin, b',"args":{"us":', sign, ahead, b"}},\n"]
                self._trace.write(lines(columns))

    def _track(self, name: str, side: str, members: NDArray[np.intp]) -> _Track:
        """The track of spans by their times on one side, "host" or "device"."""
        flow = b',"flow_out":true,"bind_id":' if side == "host" else b',"flow_in":true,"bind_id":'

        def rest(rows: NDArray[np.intp]) -> list[Column | bytes]:
            spans = self._spans[members[rows]]
            flows = np.where(has_device_times(spans), self._first_flow + members[rows], -1)
            return [
                texts(self._labels, spans["path"]),
                *_unless_missing(b',"step":', spans["step"]),
                *_unless_missing(b',"blocked_ns":', spans["blocked_ns"]),
                b"}",
                *_unless_missing(flow, flows),
            ]

        spans = self._spans
        return _Track(
            name=name,
            category="phase" if side == "host" else "gpu",
            begin_ns=spans[f"{side}_begin_ns"][members],
            end_ns=spans[f"{side}_end_ns"][members],
            rest=rest,
            rest_bytes=self._label_bytes,
        )

    def _events(self, track: _Track) -> Iterator[tuple[NDArray[np.intp], bytes]]:
        """The events of a track, with the numbers of their ranges."""
        order = outermost_first(track.begin_ns, track.end_ns)
        lanes = lanes_of(track.begin_ns[order], track.end_ns[order])
        heads = [self._new_lane(track, lane) for lane in range(lanes.max(initial=-1) + 1)]
        count = chunk_rows(_NUMBERS_BYTES + track.rest_bytes)
        for first in range(0, len(order), count):
            rows = order[first : first + count]
            begin_ns = track.begin_ns[rows]
            head = texts(heads, lanes[first : first + count])
            begin = thousandths(begin_ns + self._offset_ns)
            duration = thousandths(track.end_ns[rows] - begin_ns)
            columns = [head, begin, b',"dur":', duration, *track.rest(rows), b"},\n"]
            yield rows, lines(columns)

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


def _with_open_phases(run: Run) -> NDArray[np.void]:
    """The spans, and behind them the open phases up to the end of the run; their paths are those of
    `_labels`."""
    if not run.open_phases:
        return run.spans
    rows = np.zeros(len(run.open_phases), SPAN_DTYPE)
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        rows[column] = -1
    # Ends are alike: the outermost stands last, as with spans.
    for row, phase in zip(rows, sorted(run.open_phases, key=lambda one: -one.depth), strict=True):
        row["path"] = len(run.paths) + run.paths.index(phase.path)
        row["step"], row["depth"], row["thread"] = phase.step, phase.depth, phase.thread
        row["host_begin_ns"] = phase.begin_ns
        row["host_end_ns"] = max(phase.begin_ns, run.duration_ns)
    return np.concatenate([run.spans, rows])


def _labels(run: Run) -> list[bytes]:
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
