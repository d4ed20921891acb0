# SPDX-License-Identifier: Apache-2.0
"""NVTXT, the text that ImportNvtxt of Nsight Systems makes a report of.

A run is a process. Its rows are its threads, with steps around their phases and modules in them,
where they waited for a device, the device streams, and the values of metrics. What does not nest
goes to a further row, "name (2)". docs/exporters/viewers.md says what is moved or replaced, because
Nsight cannot show it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.labels import Colors, Label, RangeKind, labels_of
from pyinstrument_gpu.export.ranges import NOTHING, Ranges, joined, lane_name, slices_of
from pyinstrument_gpu.export.runs import UniqueIds, offsets_ns_of, process_name
from pyinstrument_gpu.export.text import chunk_rows, integers, lines, texts
from pyinstrument_gpu.export.timeline import RunTimeline

_ID_LIMIT = 1 << 24
"""Nsight Systems packs the numbers of processes and threads into 24 bits each."""

_CONTROL = re.compile("[\x00-\x1f\x7f]")


def write(runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    sink.write(
        b"# Phases recorded by pyinstrument_gpu. Nsight Systems shows them after\n"
        b"#   ImportNvtxt --cmd create -n THIS.nvtxt -o REPORT.nsys-rep\n"
        b"TimeBase = Relative\n"
        b'SetFileDisplayName, "pyinstrument_gpu"\n'
        b"@RangePush, Time, Color, Message\n"
        b"@RangePop, Time\n"
    )
    names = _UniqueNames()
    pids = UniqueIds(_ID_LIMIT).assign([run.environment.get("pid", 0) for run in runs])
    for run, pid, offset_ns in zip(runs, pids, offsets_ns_of(runs), strict=True):
        _write_process(RunTimeline(run, offset_ns, advance), pid, names, sink)


def _write_process(timeline: RunTimeline, pid: int, names: _UniqueNames, sink: BinaryIO) -> None:
    sink.write(b"ProcessId = %d\n" % pid)
    sink.write(b"NameProcess, %d, %b\n" % (pid, names.quoted(process_name(timeline.run))))
    ids = UniqueIds(_ID_LIMIT)
    thread_ids = ids.assign([thread.native_id for thread in timeline.run.threads])
    labels = labels_of(timeline.run, Colors())  # as live ranges, which know no others
    for track in chain(
        timeline.threads(with_steps=True), timeline.waits(), timeline.streams(), timeline.metrics()
    ):
        rows: dict[int, _EventWriter] = {}
        id_of_lane = [] if track.thread is None else [thread_ids[track.thread]]
        for by_lane in timeline.placed(track):
            id_of_lane += [ids.free() for _ in range(len(id_of_lane), max(by_lane) + 1)]
            for lane, ranges in by_lane.items():
                id = id_of_lane[lane]
                sink.write(b"ThreadId = %d\n" % id)
                if id not in rows:
                    name = names.quoted(lane_name(track.name, lane))
                    sink.write(b"NameOsThread, %d, %d, %b\n" % (pid, id, name))
                    rows[id] = _EventWriter(timeline, labels)
                sink.writelines(rows[id].certain(ranges))
        for id, row in rows.items():
            if len(rows) > 1:
                sink.write(b"ThreadId = %d\n" % id)
            sink.writelines(row.rest())


class _UniqueNames:
    """Names that ImportNvtxt keeps: of processes or rows of the same name it names the last one
    only, whatever process the rows are of. So each has one space more behind it than that before.
    """

    def __init__(self) -> None:
        self._taken: set[bytes] = set()

    def quoted(self, name: str) -> bytes:
        quoted = _quoted(name)
        while quoted in self._taken:
            quoted = quoted[:-1] + b" " + quoted[-1:]
        self._taken.add(quoted)
        return quoted


class _EventWriter:
    """Writes the events of a thread, of which it gets its ranges a part at a time.

    A pop is written where no later push can come before it. The ranges that began last wait for the
    next part: how far they can be moved depends on what begins next.
    """

    def __init__(self, timeline: RunTimeline, labels: Sequence[Label]) -> None:
        self._timeline = timeline
        self._no_label = len(labels)
        self._waiting = NOTHING
        self._open_ends_ns = np.empty(0, np.int64)
        heads, tails = zip(*map(_around_number, labels), strict=True)
        self._heads, self._tails = (*heads, b""), (*tails, b"\n")

    def certain(self, part: Ranges) -> Iterator[bytes]:
        ranges = joined([self._waiting, part])
        last_ns = int(ranges.begin_ns[-1])
        first_waiting = int(np.searchsorted(ranges.begin_ns, last_ns))
        self._waiting = ranges.some(slice(first_waiting, None))
        yield from self._events(ranges.some(slice(first_waiting)), last_ns)

    def rest(self) -> Iterator[bytes]:
        return self._events(self._waiting, np.iinfo(np.int64).max)

    def _events(self, ranges: Ranges, until_ns: int) -> Iterator[bytes]:
        """The pushes of ranges, and the pops until the next push, in the order of time. Where they
        meet, pops come first."""
        begin_ns, end_ns = _drawable(ranges, until_ns)
        end_ns = np.sort(np.concatenate([self._open_ends_ns, end_ns]))
        pops = int(np.searchsorted(end_ns, until_ns, "right"))
        end_ns, self._open_ends_ns = end_ns[:pops], end_ns[pops:]
        time_ns = np.concatenate([end_ns, begin_ns])
        order = np.argsort(time_ns, kind="stable")

        # A pop has the label behind the last, and no number.
        marks = self._timeline.marks(ranges.number)
        label = np.append(np.full(pops, self._no_label), marks["label"])
        number = np.where(marks["kind"] == RangeKind.STEP, marks["step"], -1)
        number = np.append(np.full(pops, -1), number)
        value = self._values(ranges) if (marks["kind"] == RangeKind.METRIC).any() else []
        value = [b""] * pops + value if value else []

        for chunk in slices_of(len(order), chunk_rows(self._heads, self._tails)):
            rows = order[chunk]
            columns = [
                texts((b"RangePush, ", b"RangePop, "), rows < pops),
                integers(time_ns[rows]),
                texts(self._heads, label[rows]),
                integers(number[rows]),
                texts(value, rows) if value else b"",
                texts(self._tails, label[rows]),
            ]
            yield lines(columns)

    def _values(self, ranges: Ranges) -> list[bytes]:
        """Return what follows the names of metrics."""
        _, places = self._timeline.places(ranges.number)
        return [b"%.6g" % value for value in self._timeline.run.metrics["value"][places].tolist()]


def _drawable(ranges: Ranges, next_ns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begins and ends as Nsight can show them, in the order of `ranges`; the next begin after all
    of these is `next_ns`."""
    begin_ns, end_ns = ranges.begin_ns, ranges.visible_end_ns()
    position = np.arange(len(begin_ns))
    is_first = np.diff(begin_ns, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(is_first, position, 0))
    next_first = np.append(np.flatnonzero(is_first)[1:], len(begin_ns))[np.cumsum(is_first) - 1]
    next_begin_ns = np.append(begin_ns, next_ns)[next_first]
    room_ns = np.minimum(end_ns, next_begin_ns) - begin_ns - 1
    return begin_ns + np.minimum(position - first, room_ns), end_ns


def _around_number(label: Label) -> tuple[bytes, bytes]:
    """Return what stands before and after the number of a step or the value of a metric, which
    other labels do not have."""
    quoted = _quoted(label.name + (" " if label.kind in (RangeKind.STEP, RangeKind.METRIC) else ""))
    quote = quoted[-1:]
    return b", 0x%08X, %b" % (label.color, quoted[:-1]), label.suffix.encode() + quote + b"\n"


def _quoted(text: str) -> bytes:
    text = without_surrogates(_CONTROL.sub(" ", text))
    if text.endswith("\\"):
        text += " "
    if '"' in text and "'" in text:
        text = text.replace('"', "'")
    quote = "'" if '"' in text else '"'
    return f"{quote}{text}{quote}".encode()
