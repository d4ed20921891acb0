# SPDX-License-Identifier: Apache-2.0
"""Runs that were not made in turn: what drifted between them can't be told from the change."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run

_NOT_IN_TURN = 0.3
"""Square of the correlation of side and order from which on runs count as not interleaved: that of
before, after, before, after is 0.2, that of before, before, after, after 0.8."""


class Order:
    """In which order the runs of two sides were made."""

    def __init__(self, before: Sequence[Run], after: Sequence[Run]) -> None:
        starts = [run.began_realtime_ns for run in (*before, *after)]
        self._sides = np.repeat([0.0, 1.0], [len(before), len(after)])
        self._starts = None if None in starts else np.array(starts, np.float64)

    @property
    def is_in_turn(self) -> bool | None:
        """Whether the sides took turns; None where that is not known."""
        if self._starts is None:
            return None
        ranks = self._starts.argsort().argsort()
        if len(set(self._starts)) == 1 or not 0 < self._sides.mean() < 1:
            return None
        return bool(np.corrcoef(ranks, self._sides)[0, 1] ** 2 < _NOT_IN_TURN)

    def difference(self, values: NDArray[np.float64]) -> tuple[float, float, float] | None:
        """The difference of the sides' means less a drift that is linear in time, its standard
        error, and the degrees of freedom. None where there are too few runs to see a drift.

        By least squares with the side and the start as variables (analysis of covariance).
        """
        if self._starts is None or len(values) < 4:
            return None
        times = self._starts - self._starts.mean()
        times /= np.abs(times).max() or 1.0
        design = np.column_stack([np.ones_like(times), self._sides, times])
        solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        freedom = len(values) - 3
        if rank < 3:
            return None
        residual = values - design @ solution
        variance = float(residual @ residual) / freedom
        covariance = variance * np.linalg.inv(design.T @ design)
        return float(solution[1]), math.sqrt(max(covariance[1, 1], 0.0)), float(freedom)
