# SPDX-License-Identifier: Apache-2.0
"""A line through points of which some may lie far off."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Z = 2.5758293035489004  # leaves 0.5 % above it, under the normal curve
FEWEST_POINTS = 8


class Slope(NamedTuple):
    """A slope and the interval of it, at 99 % confidence."""

    slope: float
    low: float
    high: float


def theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> Slope | None:
    """The median of the slopes of all pairs of points, and the interval in which those lie that
    Kendall's rank correlation does not rule out. None for fewer than eight points.

    Args:
        x, y: the points; no two have one x. Memory and time grow with the square of their number.

    By H. Theil (1950), with the interval of P. K. Sen, Estimates of the regression coefficient
    based on Kendall's tau, JASA 63 (1968), section 4, ties in y included, which is also what
    `scipy.stats.theilslopes` gives. It supposes that the points' errors are independent.
    """
    count = len(x)
    if count < FEWEST_POINTS:
        return None
    later, earlier = np.tril_indices(count, -1)
    slopes = np.sort((y[later] - y[earlier]) / (x[later] - x[earlier]))
    _, ties = np.unique(y, return_counts=True)
    variance = (
        count * (count - 1) * (2 * count + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    sigma = math.sqrt(variance)
    rank_low = max(round((len(slopes) - _Z * sigma) / 2) - 1, 0)
    rank_high = min(round((len(slopes) + _Z * sigma) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[rank_low]), float(slopes[rank_high]))
