# SPDX-License-Identifier: Apache-2.0
"""How uncertain the difference of two means is, when all that is known are some values of each."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import needed_for


def welch(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float | None, float]:
    """The standard error of the difference of the means (None where a side is a single value), and
    its degrees of freedom.

    By Welch and Satterthwaite, with at most (n - 1)(1 + n/m) degrees of freedom, n of m the smaller
    side: as many as Welch gives two sides of one size at best, and n - 1, which is always enough,
    where one side is far larger. Without that bound, up to 12 % of the intervals of 2 against 20
    values of one distribution leave out zero.
    """
    fewer, more = sorted((len(before), len(after)))
    if fewer < 2:
        return None, math.inf
    parts = [float(side.var(ddof=1)) / len(side) for side in (before, after)]
    weights = [part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True)]
    freedom = sum(parts) ** 2 / sum(weights) if sum(weights) > 0 else math.inf
    return math.sqrt(sum(parts)), min(freedom, (fewer - 1) * (1 + fewer / more))


def difference_interval(
    before: NDArray[np.float64], after: NDArray[np.float64], confidence: float
) -> tuple[float, float] | None:
    """Of the difference of the means, after less before; None where a side is a single value.

    Raises:
        MissingDependencyError: scipy is not installed.
    """
    error, freedom = welch(before, after)
    if error is None:
        return None
    change = float(after.mean() - before.mean())
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    return change - reach, change + reach


def t_quantile(probability: float, freedom: float) -> float:
    """Of Student's distribution; with infinite `freedom` of the normal one.

    Raises:
        MissingDependencyError: scipy is not installed.
    """
    with needed_for("comparing runs", "scipy", "compare"):
        from scipy import special
    if math.isinf(freedom):
        return float(special.ndtri(probability))
    return float(special.stdtrit(freedom, probability))
