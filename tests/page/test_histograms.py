# SPDX-License-Identifier: Apache-2.0
"""Histograms of the page."""

import numpy as np

from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.page.histograms import histogram, plain_histograms, spark_path, time_bounds


def test_every_duration_is_in_its_column() -> None:
    durations = np.random.default_rng(2).lognormal(13, 3, 10_000).astype(np.int64)
    of = histogram(Statistic.of(durations))

    assert sum(of.counts) == len(durations)
    for low, high, count in zip(of.low_ns, of.high_ns, of.counts, strict=True):
        assert np.count_nonzero((durations >= low) & (durations < high)) == count
    assert all(end <= begin for end, begin in zip(of.high_ns[:-1], of.low_ns[1:], strict=True))


def test_what_was_not_measured_has_no_columns() -> None:
    statistics = {"host": Statistic.of(np.array([5])), "device": None}

    assert plain_histograms(statistics) == {"host": [[4, 8, 1]]}


def test_the_small_picture_stays_inside() -> None:
    statistic = Statistic.of(np.array([0, 1, 10, 1_000_000]))
    path = spark_path(statistic, time_bounds([statistic]), 150, 22)

    places = [float(part.split(",")[0]) for part in path.split("M")[1:]]
    assert places == sorted(places)
    assert 0 <= places[0] < places[-1] <= 150
