# SPDX-License-Identifier: Apache-2.0
"""When series have changed: against enumerations, and how often where nothing has."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu.history.change_points import (
    _Pairs,
    _scores,
    _weights,
    change_points,
    holds_within,
    visible_shift,
)

ONE = np.zeros(40, np.int64)


def noise(seed: int, runs: int = 40, series: int = 3) -> NDArray[np.float64]:
    return np.asarray(0.01 * np.random.default_rng(seed).standard_normal((runs, series)))


def test_the_sum_in_front_of_a_cut_varies_as_over_all_permutations_within_strata() -> None:
    codes = np.array([0, 1, 0, 1, 0, 1])
    scores = _scores(noise(1, 6, 1), codes)
    sums = []
    for first in permutations([0, 2, 4]):
        for second in permutations([1, 3, 5]):
            rows = np.empty(6, np.int64)
            rows[[0, 2, 4]], rows[[1, 3, 5]] = first, second
            sums.append(scores[rows[:3], 0].sum())
    weights = _weights(scores, codes)[:, 0]
    assert weights[2] == pytest.approx(1 / np.std(sums), rel=1e-5)
    assert not weights[[0, 1, 3, 4]].any()


def test_the_sum_between_two_cuts_varies_as_over_all_permutations_within_strata() -> None:
    codes = np.array([0, 1, 0, 1, 1, 0, 0, 1, 1])
    scores = _scores(noise(1, 9, 1), codes)
    sums = []
    for first in permutations([0, 2, 5, 6]):
        for second in permutations([1, 3, 4, 7, 8]):
            rows = np.empty(9, np.int64)
            rows[[0, 2, 5, 6]], rows[[1, 3, 4, 7, 8]] = first, second
            sums.append(scores[rows[3:6], 0].sum())
    pairs = _Pairs(scores, codes, 1)
    assert pairs.cuts.tolist() == [[3, 6]]
    assert pairs.weights[0, 0] == pytest.approx(1 / np.std(sums), rel=1e-5)


@pytest.mark.parametrize(
    ("begin", "end", "hosts"), [(20, 40, 1), (10, 50, 1), (45, 55, 1), (20, 40, 3)]
)
def test_a_change_that_was_undone_is_two(begin: int, end: int, hosts: int) -> None:
    """Though the runs in front of any one cut are hardly slower than those behind it."""
    both = 0
    for seed in range(20):
        values, host = noise(seed, 60), np.arange(60) % hosts
        values[begin:end, 1] += 0.08
        values += 0.2 * host[:, None]
        places = [one.place for one in change_points(values, host, 0.01)]
        both += len(places) == 2 and abs(places[0] - begin) <= 1 and abs(places[1] - end) <= 1
    assert both >= 19


def test_one_change_is_not_two() -> None:
    for seed in range(20):
        values = noise(seed, 60)
        values[35:, 1] += 0.02
        assert len(change_points(values, np.zeros(60, np.int64), 0.01)) <= 1


@pytest.mark.parametrize(("correlation", "hosts"), [(0.0, 1), (0.0, 4), (0.4, 3)])
def test_false_alarms_over_all_series_and_times_are_at_most_as_many_as_promised(
    correlation: float, hosts: int
) -> None:
    random = np.random.default_rng(7)
    error, histories, alarms = 0.1, 60, 0
    for _ in range(histories):
        host = random.integers(0, hosts, 40)
        values = random.standard_normal((40, 4))
        for one in range(hosts):
            rows = np.flatnonzero(host == one)
            for before, row in pairwise(rows):
                fresh = np.sqrt(1 - correlation**2) * values[row]
                values[row] = correlation * values[before] + fresh
        # Wild runs, and hosts of other speed.
        values += 10 * (random.random((40, 4)) < 0.02) + 20 * host[:, None]
        alarms += bool(change_points(values, host, error))
    assert alarms <= error * histories


def test_a_change_is_found_where_it_is_and_how_large() -> None:
    values = noise(2)
    values[28:, 1] += 0.04
    (point,) = change_points(values, ONE, 0.01)
    (change,) = point.series
    assert (change.series, point.begin, point.end) == (1, 0, 40)
    assert change.first <= 28 <= change.last
    assert abs(point.place - 28) <= 1
    assert change.interval is not None
    low, high = change.interval
    assert 0 < low < 0.04 < high < 0.06


def test_the_shift_is_the_median_of_all_differences() -> None:
    values = noise(3)
    values[20:] += 0.1
    (point,) = change_points(values, ONE, 0.01)
    assert point.place == 20
    for one in point.series:
        column = values[:, one.series]
        differences = np.subtract.outer(column[20:], column[:20])
        assert one.shift == pytest.approx(np.median(differences), abs=1e-3)


def test_series_that_change_at_different_times_have_their_own() -> None:
    values = noise(4, 90)
    values[30:, 0] += 0.06
    values[60:, 2] += 0.06
    points = change_points(values, np.zeros(90, np.int64), 0.01)
    assert [([one.series for one in point.series], point.place) for point in points] == [
        ([0], 30),
        ([2], 60),
    ]
    assert [(point.begin, point.end) for point in points] == [(0, 60), (30, 90)]


def test_equal_values_that_step_are_found_as_peaks_of_memory_do() -> None:
    values = noise(5)
    values[:, 0] = np.where(np.arange(40) < 25, 3.0, 3.5)
    (point,) = change_points(values, ONE, 0.01)
    (change,) = point.series
    assert (point.place, change.shift, change.interval) == (25, 0.5, (0.5, 0.5))


def test_what_changes_with_the_host_is_no_change_within_it() -> None:
    host = (np.arange(40) >= 20).astype(np.int64)
    values = noise(6) + 0.1 * host[:, None]
    assert change_points(values, host, 0.01) == []
    (point,) = change_points(values, ONE, 0.01)
    assert point.place == 20
    assert not holds_within(values[:, 0], host, 20)
    assert holds_within(values[:, 0], np.arange(40) % 2, 20)


def test_a_series_that_is_missing_in_some_runs_has_the_places_of_all() -> None:
    values = noise(8, 60)
    values[40:, 1] += 0.08
    values[::3, 1] = np.nan
    (point,) = change_points(values, np.zeros(60, np.int64), 0.01)
    assert [one.series for one in point.series] == [1]
    assert point.place == 40


def test_few_runs_show_nothing() -> None:
    values = noise(9, 5)
    values[2:] += 1.0
    assert change_points(values, ONE[:5], 0.01) == []
    assert visible_shift(values[:, 0], ONE[:5], 2, 3, 0.01) is None


def test_the_visible_shift_grows_with_the_noise_and_falls_with_the_runs() -> None:
    values = noise(10)[:, 0]
    found = [
        visible_shift(scale * values, ONE, after, 3, 0.01)
        for scale, after in ((1, 10), (2, 10), (1, 20))
    ]
    assert None not in found
    one, twice, longer = (float(shift or 0) for shift in found)
    assert twice == pytest.approx(2 * one)
    assert longer < one
