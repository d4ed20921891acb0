# SPDX-License-Identifier: Apache-2.0
"""A line of a race's table: what one contender took, and ours as a multiple of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One contender's times.

    Attributes:
        best_ns, median_ns: time per use.
        best_ratio, median_ratio: our time as a multiple of this one; None in our own row, and where
            nothing is left of this one's time.
        goal: what the ratio should be at most.
        note: what it does more or less than ours.
    """

    label: str
    best_ns: float
    median_ns: float
    best_ratio: float | None = None
    median_ratio: float | None = None
    goal: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the goal is met; "" where there is none to meet."""
        if self.goal is None or self.best_ratio is None or self.median_ratio is None:
            return ""
        by_best, by_median = self.best_ratio <= self.goal, self.median_ratio <= self.goal
        if by_best == by_median:
            return "met" if by_best else "not met"
        return f"met by the {'best round' if by_best else 'median'} only"
