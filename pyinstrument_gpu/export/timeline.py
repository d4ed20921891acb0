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
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyinstrument_gpu.export.groups import groups
from pyinstrument_gpu.export.lanes import lane_name, lanes_of, outermost_first
from pyinstrument_gpu.export.palette import STEP_COLOR, color_of
from pyinstrument_gpu.export.ranks import offsets_ns_of
from pyinstrument_gpu.export.spans import streams
from pyinstrument_gpu.run import Run

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


class Ranges(NamedTuple):
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

    def take(self, members: NDArray[np.intp]) -> Ranges:
        """Some of the ranges, by position."""
        return Ranges(*(column[members] for column in self))

    def chunks(self, size: int) -> Iterator[Ranges]:
        """The ranges in order, at most `size` at a time."""
        for begin in range(0, len(self.begin_ns), size):
            yield Ranges(*(column[begin : begin + size] for column in self))

    def visible_end_ns(self) -> NDArray[np.int64]:
        """The ends, where a range of no length lasts for 1 ns."""
        return np.maximum(self.end_ns, self.begin_ns + 1)

    def lanes(self) -> Iterator[tuple[int, Ranges]]:
        """The ranges divided into lanes on which they nest, each in the order of
        `outermost_first`."""
        order = outermost_first(self.begin_ns, self.end_ns)
        lanes = lanes_of(self.begin_ns[order], self.end_ns[order])
        for lane, members in groups(lanes):
            yield lane, self.take(order[members])


@dataclass(frozen=True)
class Row:
    """Ranges that nest.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other row of the process: a thread's own number
            where it can be.
        name: the thread's name or, for example, "GPU 0 stream 7".
        on_device: whether the times are the device's.
        ranges: on the timeline, ascending by begin; of those that begin together the outermost
            first.
    """

    id: int
    name: str
    on_device: bool
    ranges: Ranges


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
    run: Run

    @property
    def phases(self) -> int:
        """The labels below this number are those of phases that ended: of spans."""
        return len(self.run.names)

    def rows(self) -> Iterator[Row]:
        """The rows that hold something, made one after the other."""
        threads = self.run.threads
        ids = _UniqueIds()
        thread_ids = ids.assign([thread.native_id for thread in threads])
        for thread, of_thread in _host_ranges(self.run):
            name = threads[thread].name or f"thread {threads[thread].native_id}"
            for lane, ranges in of_thread.lanes():
                row_id = ids.free() if lane else thread_ids[thread]
                yield self._row(row_id, lane_name(name, lane), False, ranges)
        for name, of_stream in _device_ranges(self.run):
            for lane, ranges in of_stream.lanes():
                yield self._row(ids.free(), lane_name(name, lane), True, ranges)

    def _row(self, id: int, name: str, on_device: bool, ranges: Ranges) -> Row:
        begin_ns, end_ns = self._on_timeline(ranges.begin_ns), self._on_timeline(ranges.end_ns)
        return Row(id, name, on_device, ranges._replace(begin_ns=begin_ns, end_ns=end_ns))

    def _on_timeline(self, run_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        # The drift alone is a float: it is small, and so exact.
        drift_ns: NDArray[np.int64] = np.rint(run_ns * (self.rate - 1)).astype(np.int64)
        return run_ns + drift_ns + self.start_ns


def processes_of(runs: Sequence[Run]) -> list[Process]:
    """The runs on one timeline, which begins with the earliest of them."""
    ids = _UniqueIds().assign([run.environment.get("pid", 0) for run in runs])
    return [
        Process(id, _process_name(run), offset_ns, 1.0, _labels(run), run)
        for id, run, offset_ns in zip(ids, runs, offsets_ns_of(runs), strict=True)
    ]


def _process_name(run: Run) -> str:
    program, *arguments = run.environment.get("command") or ["process"]
    name = shlex.join([os.path.basename(program), *arguments])[:_MAX_COMMAND_CHARACTERS]
    rank = run.environment.get("rank")
    return name if rank is None else f"rank {rank}: {name}"


# Phases, phases that were open, steps, the step that was open: in this order.
def _labels(run: Run) -> tuple[Label, ...]:
    phases = [Label(name, color_of(name)) for name in run.names]
    open_phases = [Label(phase.text, phase.color, is_open=True) for phase in phases]
    steps = [Label("step", STEP_COLOR, is_step=True, is_open=is_open) for is_open in (False, True)]
    return (*phases, *open_phases, *steps)


def _host_ranges(run: Run) -> Iterator[tuple[int, Ranges]]:
    """For each thread that did something, what."""
    spans, steps = run.spans, run.steps.array
    # Ends are alike: the outermost stands last, as with spans.
    open_phases = sorted(run.open_phases, key=lambda phase: -phase.depth)
    open_names = [run.path_names[run.paths.index(phase.path)] for phase in open_phases]
    step_is_open = steps["end_ns"] < 0

    threads = _joined(spans["thread"], [phase.thread for phase in open_phases], steps["thread"])
    ranges = Ranges(
        begin_ns=_joined(
            spans["host_begin_ns"], [phase.begin_ns for phase in open_phases], steps["begin_ns"]
        ),
        end_ns=_joined(
            spans["host_end_ns"],
            [run.duration_ns] * len(open_phases),
            np.where(step_is_open, run.duration_ns, steps["end_ns"]),
        ),
        label=_joined(
            spans["phase"],
            [len(run.names) + name for name in open_names],
            2 * len(run.names) + step_is_open,
        ),
        step=_joined(spans["step"], [phase.step for phase in open_phases], steps["index"]),
    )
    # What is open may have begun after the last sign of life.
    ranges = ranges._replace(end_ns=np.maximum(ranges.begin_ns, ranges.end_ns))
    for thread, members in groups(threads):
        yield thread, ranges.take(members)


def _device_ranges(run: Run) -> Iterator[tuple[str, Ranges]]:
    """For each device stream its name and what ran there."""
    columns = ("device_begin_ns", "device_end_ns", "phase", "step")
    for name, members in streams(run.spans):
        yield name, Ranges(*(run.spans[column][members].astype(np.int64) for column in columns))


def _joined(*columns: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(column, np.int64) for column in columns])


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
