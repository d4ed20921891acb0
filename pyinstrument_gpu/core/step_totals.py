# SPDX-License-Identifier: Apache-2.0
"""Sums over all steps of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.statistic import Statistic


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
    durations_ns = closed["end_ns"] - closed["begin_ns"]
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
