# SPDX-License-Identifier: Apache-2.0
"""Histograms of the page."""

from itertools import pairwise

import numpy as np

from pyinstrument_gpu.core.statistics import Statistic
from pyinstrument_gpu.page.histograms import columns_of, plain_histograms, spark_path, time_bounds


def test_every_duration_is_in_its_column() -> None:
    durations = np.random.default_rng(2).lognormal(13, 3, 10_000).astype(np.int64)
    columns = columns_of(Statistic.of(durations))

    assert sum(count for *_, count in columns) == len(durations)
    for low, high, count in columns:
        assert np.count_nonzero((durations >= low) & (durations < high)) == count
    assert all(one[1] <= other[0] for one, other in pairwise(columns))


def test_what_was_not_measured_has_no_columns() -> None:
    statistics = {"host": Statistic.of(np.array([5])), "device": None}

    assert plain_histograms("a\n", statistics) == {"label": "a\\n", "of": {"host": [[4, 8, 1]]}}


def test_the_small_picture_stays_inside() -> None:
    statistic = Statistic.of(np.array([0, 1, 10, 1_000_000]))
    path = spark_path(statistic, time_bounds([statistic]), 150, 22)

    places = [float(part.split(",")[0]) for part in path.split("M")[1:]]
    assert places == sorted(places)
    assert 0 <= places[0] < places[-1] <= 150
