# SPDX-License-Identifier: Apache-2.0
"""The steps of a run: each of them, those that a profiler has slowed, and sums over all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.statistics import Statistic


@dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        index: its number, counted from the start of the run.
        begin_ns: begin, in ns since the run began.
        end_ns: end; -1 when the step was still open.
        samples: number of samples; None when unknown.
        items: number of items taken from the loader.
        complete: whether the step ran to its end, not left by an exception or break.
        thread: the thread that opened the step, as an index into `Run.threads`.
    """

    index: int
    begin_ns: int
    end_ns: int
    samples: float | None
    items: int
    complete: bool
    thread: int

    @property
    def duration_ns(self) -> int | None:
        """End minus begin; None when the step was still open."""
        return None if self.end_ns < 0 else self.end_ns - self.begin_ns


class Steps(Sequence[Step]):
    """The steps of a run in order, as a sequence of `Step` over one numpy array.

    Attributes:
        array: the steps as columns (`STEP_DTYPE`), ascending by index.
    """

    def __init__(self, array: NDArray[np.void] | None = None) -> None:
        self.array = np.empty(0, STEP_DTYPE) if array is None else array

    @classmethod
    def with_open(cls, closed: NDArray[np.void], open_step: Step | None) -> Steps:
        """Closed steps as an array of `STEP_DTYPE`, and behind them the one that is open."""
        if open_step is None:
            return cls(closed)
        # Where its samples are None, numpy makes NaN of it.
        return cls(np.append(closed, np.array([astuple(open_step)], dtype=STEP_DTYPE)))

    @property
    def closed(self) -> NDArray[np.void]:
        """The part of `array` without a step that was still open."""
        return self.array[self.array["end_ns"] >= 0]

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, position: int) -> Step: ...
    @overload
    def __getitem__(self, position: slice) -> Steps: ...
    def __getitem__(self, position: int | slice) -> Step | Steps:
        if isinstance(position, slice):
            return Steps(self.array[position])
        index, begin_ns, end_ns, samples, items, complete, thread = self.array[position].item()
        known_samples = None if math.isnan(samples) else samples
        return Step(index, begin_ns, end_ns, known_samples, items, complete, thread)

    def __iter__(self) -> Iterator[Step]:
        return (self[position] for position in range(len(self)))

    def by_index(self, index: int) -> Step:
        """The step with this index. Its position differs where the oldest steps were dropped.

        Raises:
            KeyError: there is no such step; the message names the range there is.
        """
        position = int(np.searchsorted(self.array["index"], index))
        if position < len(self) and self.array["index"][position] == index:
            return self[position]
        if not len(self):
            raise KeyError(f"no step {index}: the run holds no steps")
        first, last = self.array["index"][[0, -1]]
        raise KeyError(f"no step {index}: the run holds steps {first} to {last}")

    def __repr__(self) -> str:
        return f"<{len(self)} steps>"


@dataclass(frozen=True)
class StepTotals:
    """Sums over all closed steps of a run, also of those whose history was not kept.

    Attributes:
        count: number of steps.
        complete: number of them that ran to their end.
        items: number of items taken from the loader.
        sampled: number of steps whose samples are known.
        sampled_ns: total duration of those.
        samples: total samples of those.
        duration: the durations of the steps; `duration.count` is 0 when there was no step.
    """

    count: int
    complete: int
    items: int
    sampled: int
    sampled_ns: int
    samples: float
    duration: Statistic

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of step time; None when there was none."""
        total_ns = self.duration.total_ns
        return self.duration.count / total_ns * 1e9 if total_ns else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of time in steps whose samples are known; None when there was none."""
        return self.samples / self.sampled_ns * 1e9 if self.sampled_ns else None

    def without(self, closed: NDArray[np.void]) -> StepTotals | None:
        """The sums without some of the steps that they count, None if they can't have counted
        these."""
        part = fold_steps(closed)
        duration = self.duration.without(part.duration)
        if duration is None:
            return None
        return StepTotals(
            count=self.count - part.count,
            complete=self.complete - part.complete,
            items=self.items - part.items,
            sampled=self.sampled - part.sampled,
            sampled_ns=self.sampled_ns - part.sampled_ns,
            samples=self.samples - part.samples,
            duration=duration,
        )

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(
            count=self.count + other.count,
            complete=self.complete + other.complete,
            items=self.items + other.items,
            sampled=self.sampled + other.sampled,
            sampled_ns=self.sampled_ns + other.sampled_ns,
            samples=self.samples + other.samples,
            duration=Statistic.merge([self.duration, other.duration]),
        )


def no_steps() -> StepTotals:
    return StepTotals(0, 0, 0, 0, 0, 0.0, Statistic.merge([]))


def fold_steps(closed: NDArray[np.void]) -> StepTotals:
    durations_ns = durations_ns_of(closed)
    sampled = ~np.isnan(closed["samples"])
    return StepTotals(
        count=len(closed),
        complete=int(np.count_nonzero(closed["complete"])),
        items=int(closed["items"].sum()),
        sampled=int(np.count_nonzero(sampled)),
        sampled_ns=Statistic.of(durations_ns[sampled]).total_ns,
        samples=float(closed["samples"][sampled].sum()),
        duration=Statistic.of(durations_ns),
    )


class ProfiledSteps(NamedTuple):
    """The profiled steps, as pairs of the first and the last index."""

    ranges: tuple[tuple[int, int], ...] = ()

    def among(self, steps: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return for each of these indices of steps whether that step was profiled."""
        profiled = np.zeros(len(steps), dtype=bool)
        for first, last in self.ranges:
            profiled |= (steps >= first) & (steps <= last)
        return profiled

    def joined_by(self, steps: NDArray[np.int64]) -> ProfiledSteps:
        """Return these steps together with others, which ascend by index."""
        lacking = steps[~self.among(steps)]
        begins = np.flatnonzero(np.diff(lacking, prepend=-2) != 1)
        rows = [(int(row[0]), int(row[-1])) for row in np.split(lacking, begins[1:]) if len(row)]
        return ProfiledSteps((*self.ranges, *rows))
