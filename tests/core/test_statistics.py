# SPDX-License-Identifier: Apache-2.0

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.core.statistics import (
    BUCKET_COUNT,
    PhaseStatistics,
    Scope,
    Statistic,
    bucket_bounds,
    bucket_index,
    fold_spans,
)

durations = st.one_of(st.integers(0, 100), st.integers(0, 10**10), st.integers(0, 2**64 - 1))


def of(values: list[int]) -> Statistic:
    return Statistic.of(np.array(values, dtype=np.uint64))


def test_buckets_tile_all_64_bit_values() -> None:
    bounds = [bucket_bounds(index) for index in range(BUCKET_COUNT)]

    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**64 - 1
    assert all(low == before[1] + 1 for before, (low, _) in pairwise(bounds))


def test_bounds_of_each_bucket_fall_into_it() -> None:
    bounds = np.array([bucket_bounds(index) for index in range(BUCKET_COUNT)], dtype=np.uint64)
    indices = np.arange(BUCKET_COUNT)

    assert np.array_equal(bucket_index(bounds[:, 0]), indices)
    assert np.array_equal(bucket_index(bounds[:, 1]), indices)


@given(durations)
def test_bucket_index_is_as_documented(value: int) -> None:
    exponent = value.bit_length() - 1
    expected = value if value < 32 else (exponent - 4) * 32 + ((value >> (exponent - 5)) & 31)
    assert bucket_index(np.array([value], dtype=np.uint64)).tolist() == [expected]


@pytest.mark.parametrize("index", [-1, BUCKET_COUNT])
def test_bucket_that_does_not_exist(index: int) -> None:
    with pytest.raises(ValueError, match=f"index = {index} must be in 0 ... 1919"):
        bucket_bounds(index)


@given(st.lists(durations, min_size=1))
def test_sums_are_exact(values: list[int]) -> None:
    statistic = of(values)

    assert statistic.count == len(values)
    assert statistic.total_ns == sum(values)
    assert statistic.sum_of_squares == sum(value * value for value in values)
    assert (statistic.min_ns, statistic.max_ns) == (min(values), max(values))
    mean = Fraction(sum(values), len(values))
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert statistic.mean_ns == pytest.approx(float(mean), rel=1e-12)
    assert statistic.std_ns == pytest.approx(math.sqrt(variance), rel=1e-12)


@given(st.lists(durations, min_size=1), st.floats(0, 1))
def test_quantile_is_within_its_bucket_of_the_exact_one(values: list[int], q: float) -> None:
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    quantile = of(values).quantile_ns(q)

    assert abs(quantile - exact) * 64 <= exact
    assert min(values) <= quantile <= max(values)


def test_extreme_quantiles_are_exact() -> None:
    statistic = of([1001, 5003, 100_003])

    assert statistic.quantile_ns(0) == 1001
    assert statistic.quantile_ns(1) == 100_003
    assert statistic.p50_ns == (4992 + 5119) // 2  # the middle of the bucket
    assert statistic.p95_ns == statistic.p99_ns == 100_003


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_quantile_out_of_range(q: float) -> None:
    with pytest.raises(ValueError, match=r"q = .* must be between 0 and 1"):
        of([1]).quantile_ns(q)


def test_statistic_of_nothing() -> None:
    nothing = of([])

    assert (nothing.count, nothing.total_ns) == (0, 0)
    assert math.isnan(nothing.mean_ns)
    assert math.isnan(nothing.std_ns)
    with pytest.raises(ValueError, match="no quantiles"):
        _ = nothing.p50_ns


@settings(max_examples=40)
@given(st.lists(st.lists(durations)))
def test_merging_equals_the_statistic_of_everything(parts: list[list[int]]) -> None:
    together = [value for part in parts for value in part]
    merged = Statistic.merge(of(part) for part in parts)

    assert merged == of(together)
    assert hash(merged) == hash(of(together))


def test_statistics_that_differ_only_in_their_histogram_are_not_equal() -> None:
    # 1 + 6 + 8 = 2 + 4 + 9 and the squares agree as well; the same extremes are added to both.
    assert of([0, 100, 1, 6, 8]) != of([0, 100, 2, 4, 9])
    assert of([1]) != 1


def test_merging_phases_keeps_what_was_not_measured_missing() -> None:
    merged = PhaseStatistics.merge(
        [PhaseStatistics(host=of([1])), PhaseStatistics(host=of([2]), self_host=of([1]))]
    )

    assert merged == PhaseStatistics(host=of([1, 2]), self_host=of([1]))
    assert merged.count == 2
    assert merged.device is None
    assert PhaseStatistics().count == 0


spans = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(Scope), durations.map(lambda d: d >> 1))
)


@settings(max_examples=40)
@given(spans)
def test_folding_spans_equals_sorting_them_by_hand(spans: list[tuple[int, Scope, int]]) -> None:
    by_key: dict[tuple[int, Scope], list[int]] = {}
    for path, scope, duration_ns in spans:
        by_key.setdefault((path, scope), []).append(duration_ns)
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3)
    odd_ns = np.where(columns[:, 2] % 2 == 1, columns[:, 2] // 2, -1)
    device_ns = np.where(columns[:, 2] % 3 == 0, columns[:, 2] // 3, -1)

    folded = fold_spans(
        columns[:, 0], columns[:, 1], host=columns[:, 2], self_host=odd_ns, device=device_ns
    )

    assert folded == {
        key: PhaseStatistics(
            host=of(values),
            self_host=of(odd) if (odd := [value // 2 for value in values if value % 2]) else None,
            device=of(timed) if (timed := [v // 3 for v in values if v % 3 == 0]) else None,
        )
        for key, values in by_key.items()
    }
