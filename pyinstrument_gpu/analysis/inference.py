# SPDX-License-Identifier: Apache-2.0
"""Inference from a few values on the difference of two means: its interval, what a drift explains,
and how often it may be looked at; and the slope of a line through points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import needed_for

_NOT_IN_TURN = 0.3
"""Square of the correlation of side and order from which on runs count as not interleaved: that of
before, after, before, after is 0.2, that of before, before, after, after 0.8."""
_TRIMMED = 0.1
_MOST_LOOKS = 4
_EXPONENT = 2
_Z = 2.5758293035489004  # leaves 0.5 % above it, under the normal curve
FEWEST_POINTS = 8


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


class PairedChange(NamedTuple):
    """The mean change of pairs, its standard error (None for a single pair), and its degrees of
    freedom."""

    mean: float
    error: float | None
    freedom: float


def paired(before: NDArray[np.float64], after: NDArray[np.float64]) -> PairedChange:
    """Compare values of which each stands beside the one of the same number on the other side, so
    that what neighbours have in common does not count as noise.

    Student's paired test, of ten pairs on with trimmed means (Tukey, McLaughlin, Less vulnerable
    confidence and significance procedures for location based on a single sample, Sankhya A 25,
    1963): the tenth of the changes at either end, which other programs may have made, counts as
    the nearest of the rest. One degree of freedom less for each that is cut off at an end keeps the
    error of normal changes, within a tenth of it, also at the high confidences of early looks.
    """
    changes = np.sort(after - before)
    count = len(changes)
    cut = int(_TRIMMED * count)
    kept = changes[cut : count - cut]
    if count < 2:
        return PairedChange(float(kept.mean()), None, math.inf)
    spread = float(changes.clip(kept[0], kept[-1]).std(ddof=1))
    error = spread * math.sqrt(count) / len(kept)
    return PairedChange(float(kept.mean()), error, len(kept) - 1.0 - cut)


def to_one_level(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by what to multiply both times of each pair, so that all pairs are of one level: a
    machine that is half as fast for a while makes differences, too, twice as large."""
    levels = np.sqrt(before * after)
    scales: NDArray[np.float64] = np.exp(np.log(levels).mean()) / levels
    return scales


def difference_interval(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    confidence: float,
    in_pairs: bool = False,
) -> tuple[float, float] | None:
    """Return an interval for the difference of the means, after less before; None for one value.

    Args:
        in_pairs: whether the values were made in pairs, in random order.

    Raises:
        MissingDependencyError: scipy is not installed.
    """
    change = float(after.mean() - before.mean())
    error, freedom = welch(before, after)
    if in_pairs:
        change, error, freedom = paired(before, after)
    if error is None:
        return None
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    return change - reach, change + reach


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's distribution; with infinite `freedom` of the normal one.

    Raises:
        MissingDependencyError: scipy is not installed.
    """
    with needed_for("comparing runs", "scipy"):
        from scipy import special
    if math.isinf(freedom):
        return float(special.ndtri(probability))
    return float(special.stdtrit(freedom, probability))


class Order:
    """The order in which the runs of two sides were made."""

    def __init__(self, before: Sequence[Run], after: Sequence[Run]) -> None:
        starts = [run.began_realtime_ns for run in (*before, *after)]
        self._sides = np.repeat([0.0, 1.0], [len(before), len(after)])
        self._starts = None if None in starts else np.array(starts, np.float64)

    @property
    def is_in_turn(self) -> bool | None:
        """Whether the sides took turns; None where that is not known, as of two runs."""
        if self._starts is None or len(self._starts) < 3:
            return None
        ranks = self._starts.argsort().argsort()
        if len(set(self._starts)) == 1 or not 0 < self._sides.mean() < 1:
            return None
        return bool(np.corrcoef(ranks, self._sides)[0, 1] ** 2 < _NOT_IN_TURN)

    @property
    def alternates(self) -> bool:
        """Whether each run was followed by one of the other side, as far as that is known."""
        if self._starts is None or len(self._starts) < 4:
            return False
        return bool(np.diff(self._sides[self._starts.argsort()]).all())

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


@dataclass(frozen=True)
class Look:
    """A comparison of what there is so far.

    Attributes:
        runs: of each side.
        confidence: of its interval.
    """

    runs: int
    confidence: float


def looks(runs: int, max_runs: int, confidence: float) -> tuple[Look, ...]:
    """The looks at `runs` to `max_runs` runs of each side, each at about as many times the runs of
    the one before. With `confidence`, the intervals of all of them hold together.

    Whoever looks at an interval of 95 % after every few runs, and stops as soon as it leaves out
    zero, is wrong far more often than in 5 % of the cases. So there are a few looks, which are
    planned before the first run, and each may spend a part of the error. With n of at most N runs
    of each side, the looks so far have spent the share (n / N)**2 of it: the power family of
    spending functions with the exponent 2 (Kim, DeMets: Design and analysis of group sequential
    tests based on the type I error spending rate function, Biometrika 74, 1987), in the scheme of
    Lan and DeMets (Discrete sequential boundaries for clinical trials, Biometrika 70, 1983). Most
    of the error is left for the last look.

    The bounds that belong to these shares are usually computed from the joint distribution of the
    looks, which is known for means of known variance and not for Welch's t of a few runs. Here each
    look has an interval of its own at the confidence 1 - share. By Bonferroni's inequality, the
    chance that any of them misses the truth is at most the sum of the shares, however the looks
    depend on each other. That costs a little power, and holds wherever a single interval holds.

    Raises:
        ValueError: there is no such plan.
    """
    if not 1 <= runs <= max_runs:
        raise ValueError(f"runs must be 1 to max_runs, got {runs} and {max_runs}")
    growth, steps = max_runs / runs, _MOST_LOOKS - 1
    sizes = sorted({round(runs * growth ** (number / steps)) for number in range(_MOST_LOOKS)})
    spent = [(1 - confidence) * (size / max_runs) ** _EXPONENT for size in sizes]
    shares = np.diff(spent, prepend=0.0).tolist()
    return tuple(Look(size, 1 - share) for size, share in zip(sizes, shares, strict=True))


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
