# SPDX-License-Identifier: Apache-2.0
"""The division of time is a partition, moment by moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.goodput.division import Bucket, covered_ns, divided, end_of_cover_ns

_MOMENTS = st.integers(0, 30)
_ROWS = st.lists(st.tuples(_MOMENTS, _MOMENTS), max_size=6)


def rows(of: list[tuple[int, int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(of, np.int64).reshape(-1, 2)


@given(_MOMENTS, st.integers(1, 20), st.dictionaries(st.sampled_from(Bucket), _ROWS))
def test_each_moment_has_the_first_bucket_that_claims_it(
    begin: int, length: int, claims: dict[Bucket, list[tuple[int, int]]]
) -> None:
    found = divided(begin, begin + length, {one: rows(of) for one, of in claims.items()})
    lengths = np.diff(found.boundaries_ns)
    assert (lengths > 0).all() and (found.boundaries_ns[0], found.boundaries_ns[-1]) == (
        begin,
        begin + length,
    )
    assert (np.diff(found.buckets) != 0).all()
    owners = np.repeat(found.buckets, lengths).tolist()
    for moment, owner in enumerate(owners, begin):
        claim = (
            bucket
            for bucket in sorted(claims)
            if any(since <= moment < until for since, until in claims[bucket])
        )
        assert owner == next(claim, Bucket.DEAD)
    totals = found.totals_ns
    assert sum(totals.values()) == length
    assert {bucket: owners.count(bucket) for bucket in Bucket} == totals


def test_no_time_has_no_pieces() -> None:
    found = divided(5, 5, {Bucket.HUNG: rows([(0, 9)])})
    assert (found.boundaries_ns.tolist(), found.buckets.tolist()) == ([5], [])
    assert sum(found.totals_ns.values()) == 0


def test_times_of_centuries_are_exact() -> None:
    """As no float would have them."""
    begin_ns = 1_795_801_148_190_335_734
    found = divided(begin_ns, begin_ns + 10**18 + 1, {Bucket.PRODUCTIVE: rows([(0, begin_ns + 7)])})
    assert found.totals_ns[Bucket.PRODUCTIVE] == 7
    assert found.totals_ns[Bucket.DEAD] == 10**18 - 6


@given(_ROWS, st.lists(st.tuples(_MOMENTS, _MOMENTS), min_size=1, max_size=4))
def test_what_intervals_cover(
    intervals: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    covered = {moment for since, until in intervals for moment in range(since, until)}
    since, until = np.array([sorted(one) for one in asked]).T
    assert covered_ns(rows(intervals), since, until).tolist() == [
        len(covered & set(range(*ends))) for ends in zip(since, until, strict=True)
    ]
    for moment, end in zip(since, end_of_cover_ns(rows(intervals), since), strict=True):
        assert end not in covered and covered >= set(range(moment, end))
