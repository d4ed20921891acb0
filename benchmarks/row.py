# SPDX-License-Identifier: Apache-2.0
"""The lines of the tables: what one contender took, and what it took of others."""

from __future__ import annotations

from dataclasses import dataclass


def verdict(best: float | None, median: float | None, goal: float | None) -> str:
    """Whether a goal is met, by the best and the median round; "" where there is none to meet."""
    if goal is None or best is None or median is None:
        return ""
    by_best, by_median = best <= goal, median <= goal
    if by_best == by_median:
        return "met" if by_best else "not met"
    return f"met by the {'best round' if by_best else 'median'} only"


@dataclass(frozen=True)
class Row:
    """One contender's times.

    Attributes:
        best_ns, median_ns: time per use; None where it is missing.
        best_ratio, median_ratio: our time as a multiple of this one; None in our own row, and where
            nothing is left of this one's time.
        goal: what the ratio should be at most.
        note: what it does more or less than ours.
        missing: why there are no times, or None.
    """

    label: str
    best_ns: float | None
    median_ns: float | None
    best_ratio: float | None = None
    median_ratio: float | None = None
    goal: float | None = None
    note: str = ""
    missing: str | None = None

    @property
    def verdict(self) -> str:
        return verdict(self.best_ratio, self.median_ratio, self.goal)


@dataclass(frozen=True)
class StepRow:
    """What a training step takes with one contender in it.

    Attributes:
        step_ns: the median over the rounds; None where it is missing.
        difference, low, high: to the step without, as a share of it: the median over the rounds
            and its 95 % interval.
        marks: how many blocks of a step are marked.
    """

    label: str
    step_ns: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    marks: int = 0
    note: str = ""
    missing: str | None = None


@dataclass(frozen=True)
class MemoryRow:
    """How a process grows by what a contender keeps.

    Attributes:
        spans: uses after which was looked.
        growth_bytes: of the resident memory; None where it is missing.
    """

    label: str
    spans: int
    growth_bytes: int | None
    note: str = ""
    missing: str | None = None

    @property
    def bytes_per_span(self) -> float | None:
        return None if self.growth_bytes is None else self.growth_bytes / self.spans


@dataclass(frozen=True)
class Fact:
    """Something measured that is no time."""

    label: str
    value: float
    unit: str
    goal: float

    @property
    def verdict(self) -> str:
        return "met" if self.value <= self.goal else "not met"
