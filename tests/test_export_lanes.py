# SPDX-License-Identifier: Apache-2.0
"""Lanes on which ranges nest, beside a plain stack."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.export.lanes import lanes_of, outermost_first

Times = list[tuple[int, int]]

_TIMES = st.integers(0, 30)
_RANGES = st.lists(st.tuples(_TIMES, _TIMES).map(lambda times: (min(times), max(times))))


def placed(times: Times) -> list[tuple[int, int, int]]:
    """Lane, begin and end of each range, the outermost first."""
    begin_ns, end_ns = np.array(times, np.int64).reshape(-1, 2).T
    order = outermost_first(begin_ns, end_ns)
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    lanes = lanes_of(begin_ns, end_ns)
    return list(zip(lanes.tolist(), begin_ns.tolist(), end_ns.tolist(), strict=True))


def nest(times: Times) -> bool:
    """Whether each lies in the innermost one that is open, or none is."""
    open_ends: list[int] = []
    for begin, end in times:
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and max(begin + 1, end) > open_ends[-1]:
            return False
        open_ends.append(max(begin + 1, end))
    return True


@given(_RANGES)
def test_all_nest_on_each_lane_and_one_lane_will_do_where_all_nest(times: Times) -> None:
    found = placed(times)
    assert sorted((begin, end) for _, begin, end in found) == sorted(times)
    assert [begin for _, begin, _ in found] == sorted(begin for begin, _ in times)
    used = {lane for lane, _, _ in found}
    assert used == set(range(len(used)))
    for lane in used:
        assert nest([(begin, end) for of, begin, end in found if of == lane])
    all_nest = nest([(begin, end) for _, begin, end in found])
    assert (len(used) <= 1) == all_nest


def test_range_goes_into_the_innermost_one_around_it() -> None:
    assert placed([(0, 100), (50, 150), (60, 70), (80, 120), (110, 115), (130, 160)]) == [
        (0, 0, 100),
        (1, 50, 150),
        (0, 60, 70),
        (1, 80, 120),
        (1, 110, 115),
        (0, 130, 160),
    ]


def test_as_many_lanes_as_overlap() -> None:
    many = [(10 * i, 10 * i + 3_001) for i in range(20_000)]
    lanes = [lane for lane, _, _ in placed(many)]
    assert lanes == [i % 301 for i in range(20_000)]


def test_of_equal_ranges_the_one_that_ended_last_is_outermost() -> None:
    times = np.array([3, 3, 0, 3]), np.array([9, 9, 9, 10])
    assert outermost_first(*times).tolist() == [2, 3, 1, 0]
