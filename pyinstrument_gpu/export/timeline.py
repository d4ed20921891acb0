# SPDX-License-Identifier: Apache-2.0
"""Runs as rows of ranges that nest, the way a timeline shows them.

Each run is a process. Its rows are its threads, with steps around their phases, and behind them
one row for every device stream whose times are known. A step or phase that was still open ends
where the run ends, and its label says so.

Ranges of one thread need not nest: two tasks of one event loop overlap. What does not nest goes to
a further row, "name (2)".
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.groups import groups
from pyinstrument_gpu.export.lanes import Lanes, lane_name
from pyinstrument_gpu.export.palette import STEP_COLOR, color_of
from pyinstrument_gpu.export.ranges import Ranges, RangeTable, by_begin, range_table, slices_of
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of
from pyinstrument_gpu.export.spans import of_streams, of_threads, step_times
from pyinstrument_gpu.model.run_data import RunData

ID_LIMIT = 1 << 24
"""Nsight Systems packs the numbers of processes and threads into 24 bits each."""

_MAX_COMMAND_CHARACTERS = 200


@dataclass(frozen=True)
class Label:
    """What a range is called, and how it looks."""

    text: str
    color: int
    is_step: bool = False
    is_open: bool = False


class LabelledRanges(NamedTuple):
    """Ranges as columns.

    Attributes:
        begin_ns, end_ns: in ns since the run, or the timeline, began.
        label: index into `Process.labels`.
        step: index of the step, -1 none.
    """

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    label: NDArray[np.int64]
    step: NDArray[np.int64]

    def some(self, rows: NDArray[np.intp] | slice) -> LabelledRanges:
        """Those at some places."""
        return LabelledRanges(*(column[rows] for column in self))

    def chunks(self, size: int) -> Iterator[LabelledRanges]:
        """The ranges in order, at most `size` at a time."""
        for begin in range(0, len(self.begin_ns), size):
            yield self.some(slice(begin, begin + size))

    def visible_end_ns(self) -> NDArray[np.int64]:
        """The ends, where a range of no length lasts for 1 ns."""
        return np.maximum(self.end_ns, self.begin_ns + 1)


@dataclass(frozen=True)
class RowPart:
    """Ranges that nest: a stretch of a row, or all of it. None begins before those of the part
    before, some of which may still be open.

    Attributes:
        is_first: whether no other part of this row came before.
        id: below `ID_LIMIT`, unlike that of any other row of the process: a thread's own number
            where it can be.
        name: the thread's name or, for example, "GPU 0 stream 1".
        on_device: whether the times are the device's.
        ranges: on the timeline, ascending by begin; of those that begin together the outermost
            first.
    """

    is_first: bool
    id: int
    name: str
    on_device: bool
    ranges: LabelledRanges


@dataclass(frozen=True)
class Process:
    """A run on the timeline.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other process: its own number where it can be.
        name: its rank and command.
        start_ns: where the run begins on the timeline.
        rate: ns of the timeline per ns of the run.
        labels: what its ranges are called.
        run: the run.
    """

    id: int
    name: str
    start_ns: int
    rate: float
    labels: tuple[Label, ...]
    run: RunData

    @property
    def phases(self) -> int:
        """The labels below this number are those of phases that ended: of spans."""
        return len(self.run.names)

    def tracks(self) -> Iterator[Iterator[RowPart]]:
        """For each thread that did something, and then each stream, its rows, a stretch at a time.
        To be read one after the other."""
        threads = self.run.threads
        ids = _UniqueIds()
        thread_ids = ids.assign([thread.native_id for thread in threads])
        spans = of_threads(self.run)
        for thread in sorted(spans.keys() | self._others.threads()):
            name = threads[thread].name or f"thread {threads[thread].native_id}"
            tables = [spans[thread]] if thread in spans else []
            tables += self._others.of_thread(thread)
            yield self._parts(tables, name, {0: thread_ids[thread]}, ids)
        for name, of_stream in of_streams(self.run):
            yield self._parts([of_stream], name, {}, ids)

    def _parts(
        self, tables: Sequence[RangeTable], name: str, id_of_lane: dict[int, int], ids: _UniqueIds
    ) -> Iterator[RowPart]:
        on_device = not id_of_lane
        seen = set()
        placed = Lanes()
        for stretch in by_begin(*tables):
            for lane, members in groups(placed.place(stretch)):
                if lane not in id_of_lane:
                    id_of_lane[lane] = ids.free()
                yield RowPart(
                    is_first=lane not in seen,
                    id=id_of_lane[lane],
                    name=lane_name(name, lane),
                    on_device=on_device,
                    ranges=self._ranges(stretch.some(members)),
                )
                seen.add(lane)

    def _ranges(self, window: Ranges) -> LabelledRanges:
        """Ranges on the timeline, with what their numbers stand for."""
        spans = self.run.spans
        label, step = np.empty((2, len(window.number)), np.int64)
        is_span = window.number < len(spans)
        of_span, other = window.number[is_span], window.number[~is_span]
        label[is_span], step[is_span] = spans["phase"][of_span], spans["step"][of_span]
        label[~is_span], step[~is_span] = self._others.label_and_step(other)
        begin_ns, end_ns = self._on_timeline(window.begin_ns), self._on_timeline(window.end_ns)
        return LabelledRanges(begin_ns, end_ns, label, step)

    @cached_property
    def _others(self) -> _OpenPhasesAndSteps:
        return _OpenPhasesAndSteps(self.run)

    def _on_timeline(self, run_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        # The drift alone is a float: it is small, and so exact.
        drift_ns: NDArray[np.int64] = np.rint(run_ns * (self.rate - 1)).astype(np.int64)
        return run_ns + drift_ns + self.start_ns


def processes_of(runs: Sequence[RunData]) -> list[Process]:
    """The runs on one timeline, which begins with the earliest of them."""
    ids = _UniqueIds().assign([run.environment.get("pid", 0) for run in runs])
    return [
        Process(id, _process_name(run), offset_ns, 1.0, _labels(run), run)
        for id, run, offset_ns in zip(ids, runs, offsets_ns_of(runs), strict=True)
    ]


def _process_name(run: RunData) -> str:
    program, *arguments = run.environment.get("command") or ["process"]
    name = shlex.join([os.path.basename(program), *arguments])[:_MAX_COMMAND_CHARACTERS]
    rank = run.environment.get("rank")
    return name if rank is None else f"rank {rank}: {name}"


# Phases, phases that were open, steps, the step that was open: in this order.
def _labels(run: RunData) -> tuple[Label, ...]:
    phases = [Label(name, color_of(name)) for name in run.names]
    open_phases = [Label(phase.text, phase.color, is_open=True) for phase in phases]
    steps = [Label("step", STEP_COLOR, is_step=True, is_open=is_open) for is_open in (False, True)]
    return (*phases, *open_phases, *steps)


class _OpenPhasesAndSteps:
    """What a thread did beside its spans. Numbers follow those of the spans: first the open phases,
    of which, ends being alike, the outermost is last as with spans; then the steps."""

    def __init__(self, run: RunData) -> None:
        phases = sorted(run.open_phases, key=lambda phase: -phase.depth)
        names = [run.path_names[run.paths.index(phase.path)] for phase in phases]
        self._phase_label = np.array(names, np.int64) + len(run.names)
        self._phase_step = np.array([phase.step for phase in phases], np.int64)
        self._phase_thread = np.array([phase.thread for phase in phases], np.int64)
        self._phase_begin_ns = np.array([phase.begin_ns for phase in phases], np.int64)
        self._steps = run.steps.array
        self._step_label = 2 * len(run.names)
        self._first_phase = len(run.spans)
        self._first_step = self._first_phase + len(phases)
        self._run = run

    def threads(self) -> set[int]:
        found = set(self._phase_thread.tolist())
        for part in slices_of(len(self._steps)):
            found.update(np.unique(self._steps["thread"][part]).tolist())
        return found

    def of_thread(self, thread: int) -> list[RangeTable]:
        def read_phases(part: slice) -> Ranges:
            rows = np.flatnonzero(self._phase_thread == thread)
            begin_ns = self._phase_begin_ns[rows]
            return Ranges(
                rows + self._first_phase, begin_ns, np.maximum(begin_ns, self._run.duration_ns)
            )

        def read_steps(part: slice) -> Ranges:
            rows = np.flatnonzero(self._steps["thread"][part] == thread)
            times = step_times(self._run, self._steps[part][rows])
            return Ranges(rows + (self._first_step + part.start), *times)

        return [
            range_table([slice(None)], read_phases),
            range_table(slices_of(len(self._steps)), read_steps),
        ]

    def label_and_step(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        label, step = np.empty((2, len(numbers)), np.int64)
        is_step = numbers >= self._first_step
        phases, rows = numbers[~is_step] - self._first_phase, numbers[is_step] - self._first_step
        label[~is_step], step[~is_step] = self._phase_label[phases], self._phase_step[phases]
        step_is_open = self._steps["end_ns"][rows] < 0
        label[is_step], step[is_step] = self._step_label + step_is_open, self._steps["index"][rows]
        return label, step


class _UniqueIds:
    """Gives out numbers from 1 to below `ID_LIMIT`, each once."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._next = 1

    def assign(self, wanted: Sequence[int]) -> list[int]:
        """For each its wanted number, or a free one where that cannot be."""
        ids: list[int | None] = []
        for number in wanted:
            possible = 0 < number < ID_LIMIT and number not in self._taken
            ids.append(number if possible else None)
            if possible:
                self._taken.add(number)
                self._next = max(self._next, number + 1)
        return [self.free() if number is None else number for number in ids]

    def free(self) -> int:
        """A number above all others where there is one: rows are shown in the order of theirs."""
        while self._next in self._taken or self._next >= ID_LIMIT:
            self._next = self._next + 1 if self._next < ID_LIMIT else 1
        self._taken.add(self._next)
        return self._next
