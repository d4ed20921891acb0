# SPDX-License-Identifier: Apache-2.0
"""Change points in series of runs, with an error rate that holds for all of them together.

The unit is the run. Runs of one stratum (one host and torch, for example) can be exchanged as long
as nothing changes, so the test is one of permutations within strata: the largest standardized sum
of scores in front of any cut, in any series, against what it is when runs change places (Antoch and
Hušková, Permutation tests in change point analysis, Statistics and Probability Letters 53, 2001;
the largest over series: Westfall and Young, Resampling-based multiple testing, 1993). No
distribution is assumed, and hosts may come and go. A score is a run's distance from the median of
its stratum, in robust standard deviations and cut off at three, so that one wild run is no change.

Where there is a change, the runs in front of it and behind it are looked at in turn, each with a
share of the error rate in proportion to its runs (binary segmentation). The longest stretches
without a change that are looked at don't overlap, so their shares add up to no more than the rate.

Runs that follow one another may be alike, as on a machine that warms up. Then they can't be
exchanged, and the statistic is divided by the root of the variance inflation of an autoregressive
series (Tang and MacNeill, The effect of serial correlation on tests for parameter change at unknown
time, Annals of Statistics 21, 1993), which is estimated at its upper end. Where runs are
independent, this only makes the test stricter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FEWEST_RUNS = 3
"""On either side of a change."""
PLACE_ERROR = 0.05
"""Of the ranges of places that are shown."""
_POWER = 0.8
_CUT_OFF = 3.0
_MAD_OF_NORMAL = 0.6745
_MOST_CORRELATED = 0.9
_ERRORS = 1.3
_KEPT = 0.95
"""Of the squares of differences."""
_EXCEEDED = 3
"""As often may permutations exceed what was found: the p-value is four times the finest one."""
_AT_ONCE = 1_000_000
_MOST_CUTS = 1_000
"""That are tested; of more runs those at equal distances."""
_NEAR = 150
"""Runs on either side of a change that its interval is made of: it needs no more."""


@dataclass(frozen=True)
class ChangeOfSeries:
    """The change of a series at a change point.

    Attributes:
        series: its column.
        first, last: the places of the cuts that can't be told from the best one.
        shift: in units of the values.
        interval: of the shift; None where there are too few runs.
    """

    series: int
    first: int
    last: int
    shift: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class ChangePoint:
    """A cut between two runs.

    Attributes:
        place: of the first run behind it.
        begin, end: the runs around it without another change.
        series: what changed there, the clearest first.
    """

    place: int
    begin: int
    end: int
    series: tuple[ChangeOfSeries, ...]


def change_points(
    values: NDArray[np.float64],
    strata: NDArray[np.int64],
    error: float,
    coverage_error: float = 0.05,
) -> list[ChangePoint]:
    """The change points of some series, in order.

    Args:
        values: a row for each run, in order of time, and a column for each series; NaN missing.
        strata: of each run, from 0 on.
        error: the probability of reporting any change where there is none: at most this as long as
            runs can be exchanged within their stratum, about this where they are correlated.
        coverage_error: the share of the reported intervals that do not hold the true shift, on
            average. Changes are reported where they are large, so the fewer are reported of all
            series, the wider are their intervals (Benjamini and Yekutieli, False discovery
            rate-adjusted multiple confidence intervals, JASA 100, 2005). Their places are chosen as
            well, so an interval holds those of all cuts that may be the right one (Berger and Boos,
            P values maximized over a confidence set for the nuisance parameter, JASA 89, 1994).

    Series that lack other runs than the rest are looked at apart, with their share of the error.
    A change costs 4 / error evaluations of all runs, and no change far fewer.
    """
    patterns, kinds = np.unique(np.isfinite(values), axis=1, return_inverse=True)
    found = []
    for kind in range(patterns.shape[1]):
        rows, columns = np.flatnonzero(patterns[:, kind]), np.flatnonzero(kinds.ravel() == kind)
        of_kind = values[np.ix_(rows, columns)]
        cuts = _segmented(of_kind, strata[rows], error * len(columns) / values.shape[1])
        boundaries = [0, *cuts, len(rows)]
        for begin, (cut, changed), end in zip(
            boundaries, cuts.items(), boundaries[2:], strict=False
        ):
            for column in changed:
                piece = _Piece(of_kind[begin:end, column], strata[rows[begin:end]], cut - begin)
                found.append((rows[begin:end], int(columns[column]), piece))
    miss = coverage_error * len(found) / max(1, values.shape[1]) / 2
    points: dict[tuple[int, int, int], list[ChangeOfSeries]] = {}
    for rows, column, piece in found:
        near = piece.places(PLACE_ERROR)
        spans = [piece.shift(place, miss)[1] for place in piece.places(miss)]
        known = [span for span in spans if span is not None]
        interval = None
        if len(known) == len(spans):
            interval = min(low for low, _ in known), max(high for _, high in known)
        change = ChangeOfSeries(
            column,
            int(rows[near[0]]),
            int(rows[near[-1]]),
            piece.shift(piece.cut, miss)[0],
            interval,
        )
        key = int(rows[piece.cut]), int(rows[0]), int(rows[-1]) + 1
        points.setdefault(key, []).append(change)
    return [ChangePoint(*key, tuple(points[key])) for key in sorted(points)]


def holds_within(values: NDArray[np.float64], strata: NDArray[np.int64], cut: int) -> bool:
    """Return whether the values on both sides of a cut differ within strata as well."""
    _, interval = _Piece(values, strata, cut).shift(cut, PLACE_ERROR)
    return interval is not None and (interval[0] > 0 or interval[1] < 0)


def visible_shift(
    values: NDArray[np.float64], strata: NDArray[np.int64], after: int, among: int, error: float
) -> float | None:
    """The shift of a series that is probably found (in some four of five cases) where it is that of
    the last runs, by the normal approximation; None where there are too few.

    Args:
        values, strata: as of `change_points`, of one series.
        after: of how many runs.
        among: how many series are looked at with that error.
    """
    there = np.isfinite(values)
    values, codes = values[there], np.unique(strata[there], return_inverse=True)[1]
    before = len(values) - after
    if min(before, after) < FEWEST_RUNS:
        return None
    medians = np.array([np.median(values[codes == code]) for code in range(codes.max() + 1)])
    spread = float(np.median(np.abs(values - medians[codes]))) / _MAD_OF_NORMAL
    inflation = float(_inflations(_scores(values[:, None], codes), codes)[0])
    normal = NormalDist()
    reach = normal.inv_cdf(1 - error / (2 * len(values) * among)) + normal.inv_cdf(_POWER)
    return reach * spread * math.sqrt(inflation * (1 / before + 1 / after))


def _segmented(
    values: NDArray[np.float64], strata: NDArray[np.int64], error: float
) -> dict[int, list[int]]:
    """The cuts in order, each with the columns that changed there, of series without gaps."""
    random = np.random.default_rng(0)  # the same store gives the same report
    found: dict[int, list[int]] = {}
    pending = [(0, len(values))]
    while pending:
        begin, end = pending.pop()
        level = error * (end - begin) / len(values)
        cut = _cut(values[begin:end], strata[begin:end], level, random)
        if cut is not None:
            place, columns = cut
            found[begin + place] = columns
            pending += [(begin, begin + place), (begin + place, end)]
    return dict(sorted(found.items()))


def _cut(
    values: NDArray[np.float64],
    strata: NDArray[np.int64],
    level: float,
    random: np.random.Generator,
) -> tuple[int, list[int]] | None:
    """The clearest change and the columns that changed there; None where none is significant."""
    count = len(values)
    # With so few runs, no order of them is rare enough.
    if count < 2 * FEWEST_RUNS or (count < 64 and level * math.comb(count, count // 2) < 1):
        return None
    codes = np.unique(strata, return_inverse=True)[1]
    scores = _scores(values, codes)
    stride = max(1, count // _MOST_CUTS)
    weights = _weights(scores, codes, stride)
    statistics = np.abs(np.cumsum(scores, axis=0)[:-1]) * weights
    best = statistics.argmax(axis=0)
    largest = statistics.max(axis=0) / np.sqrt(_inflations(scores, codes))
    threshold = _threshold(scores, weights, codes, level, float(largest.max()), random, stride)
    if threshold is None:
        return None
    changed = [int(one) for one in np.argsort(-largest) if largest[one] > threshold]
    pieces = [_Piece(values[:, one], strata, int(best[one]) + 1) for one in changed]
    cut = pieces[0].best
    # One that changed elsewhere is found beside this cut.
    here = [
        column
        for column, piece in zip(changed, pieces, strict=True)
        if cut in piece.places(PLACE_ERROR)
    ]
    return cut, here


def _scores(values: NDArray[np.float64], codes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return scores by run and series, in each stratum with sum 0 and whatever its order."""
    scores = np.zeros(values.shape, np.float32)
    for code in np.unique(codes):
        of_stratum = codes == code
        away = values[of_stratum] - np.median(values[of_stratum], axis=0)
        scale = np.median(np.abs(away), axis=0) / _MAD_OF_NORMAL
        # Most of its runs may be equal, as peaks of memory are.
        score = np.where(scale > 0, away / np.where(scale > 0, scale, 1), _CUT_OFF * np.sign(away))
        score = np.clip(score, -_CUT_OFF, _CUT_OFF)
        scores[of_stratum] = score - score.mean(axis=0)
    return scores


def _weights(
    scores: NDArray[np.float32], codes: NDArray[np.int64], stride: int = 1
) -> NDArray[np.float32]:
    """Return for each cut and series one over the standard deviation of the sum of the scores in
    front of it, over all permutations within strata; 0 where no change is looked for."""
    order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes)
    before = np.empty(len(codes), np.int64)  # of each run, how many of its stratum come before it
    before[order] = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    squares = np.zeros((len(sizes), scores.shape[1]))
    np.add.at(squares, codes, scores.astype(np.float64) ** 2)
    pairs = np.maximum(sizes * (sizes - 1), 1)
    growth = ((sizes[codes] - 2 * before - 1) / pairs[codes])[:, None] * squares[codes]
    variances = np.cumsum(growth, axis=0)[:-1]
    is_known = variances > 1e-6 * np.maximum(variances.max(axis=0), 1e-12)
    is_known[: FEWEST_RUNS - 1] = is_known[len(is_known) - FEWEST_RUNS + 1 :] = False
    is_known[np.arange(1, len(codes)) % stride > 0] = False
    weights = np.where(is_known, 1 / np.sqrt(np.where(is_known, variances, 1)), 0)
    return weights.astype(np.float32)


def _threshold(
    scores: NDArray[np.float32],
    weights: NDArray[np.float32],
    codes: NDArray[np.int64],
    level: float,
    found: float,
    random: np.random.Generator,
    stride: int,
) -> float | None:
    """Return what the largest statistic of that share of the permutations exceeds; None where what
    was found does not exceed it, as soon as that is known (Besag and Clifford, Sequential Monte
    Carlo p-values, Biometrika 78, 1991)."""
    order, begins = np.argsort(codes, kind="stable"), np.arange(0, len(codes), stride)
    weights = weights[begins[1:] - 1]
    left = math.ceil((_EXCEEDED + 1) / level) - 1
    top = np.empty(0, np.float32)
    while left > 0:
        some = min(left, max(1, _AT_ONCE // scores.size))
        left -= some
        keys = random.random((some, len(codes))) + codes[order]
        rows = np.empty(keys.shape, np.int64)
        rows[:, order] = order[np.argsort(keys, axis=1)]
        blocks = np.add.reduceat(np.take(scores, rows, axis=0), begins, axis=1)
        sums = np.cumsum(blocks, axis=1)[:, :-1]
        largest = np.abs(sums * weights).max(axis=(1, 2))
        top = np.sort(np.append(top, largest))[-_EXCEEDED - 1 :]
        if len(top) > _EXCEEDED and top[0] >= found * (1 - 1e-5):
            return None
    return float(top[0])


def _inflations(scores: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how much more the mean of such runs varies than of independent ones, for each
    series: that of an autoregressive one. Its correlation is that of the differences between runs
    that are one and two apart in their stratum, as few of these hold a change, and the largest are
    left out (after Chakar and others, A robust approach for estimating change-points in the mean of
    an AR(1) process, Bernoulli 23, 2017). All series have the median of theirs and a margin, which
    is what a machine does to all of them, and one that is surely more correlated has more."""
    order = np.argsort(codes, kind="stable")
    squares, pairs = [], 0
    for apart in (1, 2):
        same = codes[order][apart:] == codes[order][:-apart]
        steps = np.sort((scores[order][apart:] - scores[order][:-apart])[same] ** 2, axis=0)
        pairs = len(steps)
        if not pairs:
            return np.ones(scores.shape[1])
        squares.append(steps[: max(1, int(_KEPT * pairs) - 2)].mean(axis=0, dtype=np.float64))
    near, far = squares
    correlation = np.where(near > 0, far / np.where(near > 0, near, 1) - 1, 0)
    error = _ERRORS / math.sqrt(pairs)
    alike = float(np.median(correlation[near > 0])) if near.any() else 0.0
    correlation = np.maximum(alike + error / math.sqrt(len(near)), correlation - error)
    correlation = np.where(near > 0, np.clip(correlation, 0, _MOST_CORRELATED), 0)
    return np.asarray((1 + correlation) / (1 - correlation))


class _Piece:
    """The runs of a series around one change.

    Attributes:
        cut: where it is.
        best: the cut that fits best.
    """

    def __init__(self, values: NDArray[np.float64], strata: NDArray[np.int64], cut: int) -> None:
        self.cut = cut
        self._values = values
        self._codes = np.unique(strata, return_inverse=True)[1]
        scores = _scores(values[:, None], self._codes)
        squares = (np.cumsum(scores, axis=0)[:-1] * _weights(scores, self._codes))[:, 0] ** 2
        sides = 2 * self._codes + (np.arange(len(values)) >= cut)
        self._inflation = float(_inflations(_scores(values[:, None], sides), sides)[0])
        # What is left of the variance with a change at each cut.
        whole = max(float(len(values) - self._codes.max() - 1), 1.0)
        left = 1 - np.minimum(squares / whole, 0.999)
        self._worse = len(values) * np.log(left / left.min())
        self._worse[squares == 0] = np.inf
        self.best = int(np.argmin(self._worse)) + 1

    def places(self, error: float) -> list[int]:
        """The cuts among which the right one is, but for that error: by the likelihood ratio, of
        which the distribution is that of Hansen (Sample splitting and threshold estimation,
        Econometrica 68, 2000) where changes are small, and a smaller one where they are large."""
        bound = -2 * math.log(1 - math.sqrt(1 - error)) * self._inflation
        return sorted({*(np.flatnonzero(self._worse <= bound) + 1).tolist(), self.cut})

    def shift(self, cut: int, error: float) -> tuple[float, tuple[float, float] | None]:
        """Return by how much the values behind a cut are larger, with its interval: the median of
        the differences within strata (Hodges and Lehmann), and those at which the stratified rank
        test (van Elteren, 1960) would no longer reject; None where there are too few."""
        begin, end = max(0, cut - _NEAR), cut + _NEAR
        before, after = self._values[begin:cut], self._values[cut:end]
        codes_before, codes_after = self._codes[begin:cut], self._codes[cut:end]
        differences, weights = [], []
        for code in np.intersect1d(codes_before, codes_after):
            one, other = before[codes_before == code], after[codes_after == code]
            differences.append(np.subtract.outer(other, one).ravel())
            weights.append(np.full(one.size * other.size, 1 / (one.size + other.size + 1)))
        if not differences:
            return math.nan, None
        found, weight = np.concatenate(differences), np.concatenate(weights)
        order = np.argsort(found)
        sums = np.cumsum(weight[order])
        middle = sums[-1] / 2
        deviation = math.sqrt(sums[-1] / 12 * self._inflation)
        reach = NormalDist().inv_cdf(1 - error / 2) * deviation
        places = np.searchsorted(sums, [middle, middle - reach, middle + reach])
        estimate, low, high = found[order][np.minimum(places, len(found) - 1)].tolist()
        return estimate, (low, high) if reach < middle else None
