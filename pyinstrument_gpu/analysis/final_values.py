# SPDX-License-Identifier: Apache-2.0
"""Did training come out the same? The last values of the metrics that runs hold, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.analysis.welch import difference_interval
from pyinstrument_gpu.core.run import Run

FAMILY_CONFIDENCE = 0.95
"""With which no metric at all is said to differ where none does."""
_NO_RESULTS = ("count",)
"""How much was counted, and not how training went."""


@dataclass(frozen=True)
class FinalValue:
    """A metric's last value in each run of both sides.

    `interval` is that of the difference of the means, after minus before; None where a side is a
    single run, or a value is not finite.
    """

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: tuple[float, float] | None

    @property
    def before_mean(self) -> float:
        return sum(self.before) / len(self.before)

    @property
    def after_mean(self) -> float:
        return sum(self.after) / len(self.after)

    @property
    def differs(self) -> bool | None:
        """Whether the sides differ beyond the spread of runs; None where that can't be said. A side
        that alone has values which are not finite differs."""
        wild = [not all(map(math.isfinite, side)) for side in (self.before, self.after)]
        if any(wild):
            return True if wild[0] != wild[1] else None
        if self.interval is None:
            return None
        low, high = self.interval
        return low > 0 or high < 0


def final_values(before: Sequence[Run], after: Sequence[Run]) -> tuple[FinalValue, ...]:
    """The metrics that every run has, in the order of the first.

    Each difference of means has Welch's interval. The more metrics, the wider the intervals
    (Bonferroni): `FAMILY_CONFIDENCE` is that of all of them together.

    Raises:
        MissingDependencyError: there are several runs a side, and scipy is not installed.
    """
    lasts = [_last_values(run) for run in (*before, *after)]
    names = [name for name in lasts[0] if all(name in last for last in lasts)]
    found = []
    for name in names:
        values = [last[name] for last in lasts]
        first, second = values[: len(before)], values[len(before) :]
        interval = None
        if np.isfinite(values).all():
            confidence = 1 - (1 - FAMILY_CONFIDENCE) / len(names)
            interval = difference_interval(np.array(first), np.array(second), confidence)
        found.append(FinalValue(name, tuple(first), tuple(second), interval))
    return tuple(found)


def _last_values(run: Run) -> Mapping[str, float]:
    values = {}
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if len(readings) and name.rpartition("/")[2] not in _NO_RESULTS:
            values[name] = float(readings["value"][-1])
    return values
