# SPDX-License-Identifier: Apache-2.0
"""Change points in series of runs, with an error rate that holds for all of them together.

The unit is the run. Runs of one stratum (one host and torch, for example) can be exchanged as long
as nothing changes, so the test is one of permutations within strata: the largest standardized sum
of scores in front of any cut, in any series, against what it is when runs change places (Antoch and
Hušková, Permutation tests in change point analysis, Statistics and Probability Letters 53, 2001;
the largest over series: Westfall and Young, Resampling-based multiple testing, 1993). No
distribution is assumed, and hosts may come and go. A score is a run's distance from the median of
its stratum, in robust standard deviations and cut off at three, so that one wild run is no change.

A change that was undone again hardly moves the sum in front of any one cut. So the runs between two
cuts are compared with all others as well, in the same permutations (circular binary segmentation:
Olshen, Venkatraman, Lucito and Wigler, Circular binary segmentation for the analysis of array-based
DNA copy number data, Biostatistics 5, 2004). Both cuts are changes if that explains far more than
the best single one, by a criterion of Schwarz (Yao, Estimating the number of change-points via
Schwarz' criterion, Statistics and Probability Letters 6, 1988).

Where there is a change, the runs on either side of each cut are looked at in turn, each with a
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
from itertools import pairwise
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
_MOST_PLACES = 64
"""Between which two cuts are looked for, at equal distances; then for the best near them."""
_PAIRS_EXCEED = 0.5
"""By so much the largest statistic of two cuts exceeds that of one where nothing changed, of 40 to
400 runs and 5 to 45 series. Whatever it is, the error rate is as promised: it is taken off in the
permutations as well."""
_OF_A_CUT = 3.0
"""Times the logarithm of the runs: by as much more than one cut, two have to explain."""
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
    return _Piece(values, strata, cut).has_shift()


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
        cuts = _cuts(values[begin:end], strata[begin:end], level, random)
        found |= {begin + place: columns for place, columns in cuts.items()}
        if cuts:
            pending += pairwise([begin, *(begin + place for place in sorted(cuts)), end])
    return dict(sorted(found.items()))


def _cuts(
    values: NDArray[np.float64],
    strata: NDArray[np.int64],
    level: float,
    random: np.random.Generator,
) -> dict[int, list[int]]:
    """The clearest change, or two of which the second undoes the first, with the columns that
    changed there; empty where none is significant."""
    count = len(values)
    # With so few runs, no order of them is rare enough.
    if count < 2 * FEWEST_RUNS or (count < 64 and level * math.comb(count, count // 2) < 1):
        return {}
    codes = np.unique(strata, return_inverse=True)[1]
    scores = _scores(values, codes)
    stride = max(1, count // _MOST_CUTS)
    weights, pairs = _weights(scores, codes, stride), _Pairs(scores, codes, stride)
    sums = np.cumsum(scores, axis=0)
    single = np.abs(sums[:-1] * weights)
    single /= np.sqrt(_inflations(scores, codes, single.argmax(axis=0)[:, None] + 1))
    pair = pairs.statistics(sums[None])[0]
    if pair.size:
        inflations_of_pairs = _inflations(scores, codes, pairs.cuts[pair.argmax(axis=0)])
        pair = pair / np.sqrt(inflations_of_pairs) - _PAIRS_EXCEED
    largest = np.maximum(single.max(axis=0), pair.max(axis=0, initial=-np.inf))
    threshold = _threshold(
        scores, weights, pairs, codes, level, float(largest.max()), random, stride
    )
    if threshold is None:
        return {}
    changed = [int(one) for one in np.argsort(-largest) if largest[one] > threshold]
    lead = changed[0]
    place = int(single[:, lead].argmax()) + 1
    if pair.size and pair[:, lead].max() > threshold:
        first, second = pairs.cuts[pair[:, lead].argmax()].tolist()
        for _ in range(2):
            first = _Piece(values[:second, lead], strata[:second], first).best
            second = first + _Piece(values[first:, lead], strata[first:], second - first).best
        two = _unexplained(scores[:, lead], codes, [first, second])
        one = _unexplained(scores[:, lead], codes, [place])
        gain = count * math.log(max(one, 1e-9) / max(two, 1e-9)) / inflations_of_pairs[lead]
        if gain > _OF_A_CUT * math.log(count):
            return {
                first: _changed_at(first, values[:second], strata[:second], changed),
                second: _changed_at(second - first, values[first:], strata[first:], changed),
            }
    cut = _Piece(values[:, lead], strata, place).best
    return {cut: _changed_at(cut, values, strata, changed)}


def _changed_at(
    cut: int, values: NDArray[np.float64], strata: NDArray[np.int64], changed: list[int]
) -> list[int]:
    """Return which of the columns that have changed did so at this cut, the first of them anyhow:
    one that changed elsewhere is found beside it."""
    here = [one for one in changed[1:] if _Piece(values[:, one], strata, cut).is_here()]
    return [changed[0], *here]


def _unexplained(scores: NDArray[np.float32], codes: NDArray[np.int64], cuts: list[int]) -> float:
    """Return what is left of the squares of scores with a mean for the runs between any two of the
    cuts, within strata."""
    stretches = (np.arange(len(scores))[:, None] >= cuts).astype(np.float64)
    for code in range(codes.max() + 1):
        stretches[codes == code] -= stretches[codes == code].mean(axis=0)
    fitted = stretches @ np.linalg.lstsq(stretches, scores, rcond=None)[0]
    return float(((scores - fitted) ** 2).sum())


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


class _Pairs:
    """Two cuts each, between which the runs are compared with all others.

    Attributes:
        cuts: a row for each pair.
        weights: by pair and series, as of single cuts.
    """

    def __init__(self, scores: NDArray[np.float32], codes: NDArray[np.int64], stride: int) -> None:
        count, sizes = len(scores), np.bincount(codes)
        apart = stride * max(1, count // stride // _MOST_PLACES)
        places = np.arange(apart, count - FEWEST_RUNS + 1, apart)
        places = places[places >= FEWEST_RUNS]
        first, second = (places[one] for one in np.triu_indices(len(places), 1))
        self.cuts = np.column_stack([first, second])[second - first >= FEWEST_RUNS]
        squares = np.zeros((len(sizes), scores.shape[1]))
        np.add.at(squares, codes, scores.astype(np.float64) ** 2)
        before = np.zeros((len(places), len(sizes)))
        for row, place in enumerate(places.tolist()):
            before[row] = np.bincount(codes[:place], minlength=len(sizes))
        rows = np.searchsorted(places, self.cuts)
        inside = before[rows[:, 1]] - before[rows[:, 0]]
        variances = inside * (sizes - inside) / np.maximum(sizes * (sizes - 1), 1) @ squares
        is_known = variances > 1e-6 * np.maximum(variances.max(axis=0, initial=0), 1e-12)
        weights = np.where(is_known, 1 / np.sqrt(np.where(is_known, variances, 1)), 0)
        self.weights = weights.astype(np.float32)

    def statistics(self, sums: NDArray[np.float32], stride: int = 1) -> NDArray[np.float32]:
        """Return the standardized sum between the cuts of each pair.

        Args:
            sums: of the scores up to each run, or to the last of as many, the second axis.
        """
        first, second = self.cuts.T // stride - 1
        between: NDArray[np.float32] = (sums[:, second] - sums[:, first]) * self.weights
        return np.abs(between)


def _threshold(
    scores: NDArray[np.float32],
    weights: NDArray[np.float32],
    pairs: _Pairs,
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
        some = min(left, max(1, _AT_ONCE // max(scores.size, pairs.weights.size)))
        left -= some
        keys = random.random((some, len(codes))) + codes[order]
        rows = np.empty(keys.shape, np.int64)
        rows[:, order] = order[np.argsort(keys, axis=1)]
        blocks = np.add.reduceat(np.take(scores, rows, axis=0), begins, axis=1)
        sums = np.cumsum(blocks, axis=1)
        single = np.abs(sums[:, :-1] * weights).max(axis=(1, 2))
        pair = pairs.statistics(sums, stride).max(axis=(1, 2), initial=0) - _PAIRS_EXCEED
        largest = np.maximum(single, pair)
        top = np.sort(np.append(top, largest))[-_EXCEEDED - 1 :]
        if len(top) > _EXCEEDED and top[0] >= found * (1 - 1e-5):
            return None
    return float(top[0])


def _inflations(
    scores: NDArray[np.float32], codes: NDArray[np.int64], cuts: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return by how much more the mean of such runs varies than of independent ones, for each
    series: that of an autoregressive one. Its correlation is that of the differences between runs
    that are one and two apart in their stratum, as few of these hold a change, and the largest are
    left out (after Chakar and others, A robust approach for estimating change-points in the mean of
    an AR(1) process, Bernoulli 23, 2017), as are those across the cuts, by series. All series have
    the median of theirs and a margin, which is what a machine does to all of them, and one that is
    surely more correlated has more."""
    order = np.argsort(codes, kind="stable")
    squares, pairs = [], 0
    for apart in (1, 2):
        one, other = order[:-apart], order[apart:]
        same = codes[one] == codes[other]
        one, other = one[same], other[same]
        pairs = len(one)
        if not pairs:
            return np.ones(scores.shape[1])
        steps = (scores[other] - scores[one]) ** 2
        kept = np.full(scores.shape[1], pairs)
        if cuts is not None:
            is_across = ((one[:, None, None] < cuts) & (cuts <= other[:, None, None])).any(axis=2)
            is_across &= ~is_across.all(axis=0)
            kept -= is_across.sum(axis=0)
            steps[is_across] = np.inf
        kept = np.maximum(1, (_KEPT * kept).astype(np.int64) - 2)
        sums = np.cumsum(np.sort(steps, axis=0), axis=0, dtype=np.float64)
        squares.append(np.take_along_axis(sums, kept[None] - 1, axis=0)[0] / kept)
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
        self.best = int(np.argmin(self._worse)) + 1 if squares.any() else cut

    def places(self, error: float) -> list[int]:
        """The cuts among which the right one is, but for that error: by the likelihood ratio, of
        which the distribution is that of Hansen (Sample splitting and threshold estimation,
        Econometrica 68, 2000) where changes are small, and a smaller one where they are large."""
        is_near = self._worse <= self._bound(error)
        return sorted({*(np.flatnonzero(is_near) + 1).tolist(), self.cut})

    def _bound(self, error: float) -> float:
        return -2 * math.log(1 - math.sqrt(1 - error)) * self._inflation

    def is_here(self) -> bool:
        """Return whether the values differ on both sides of the cut, and no other is better."""
        is_near = bool(self._worse[self.cut - 1] <= self._bound(PLACE_ERROR))
        return is_near and self.has_shift()

    def has_shift(self) -> bool:
        """Return whether the interval of the shift at the cut leaves out 0."""
        _, interval = self.shift(self.cut, PLACE_ERROR)
        return interval is not None and (interval[0] > 0 or interval[1] < 0)

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
