# SPDX-License-Identifier: Apache-2.0
"""Lanes on which ranges nest, beside a plain stack."""

import json
from operator import itemgetter
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export import nvtxt, perfetto, ranges
from pyinstrument_gpu.export.ranges import Lanes, RangeTable, by_begin, range_tables
from tests.helpers.made_runs import runs, with_lengths_on_device, written
from tests.helpers.nsight import read_nvtxt

Times = list[tuple[int, int]]

_TIMES = st.integers(0, 30)
_RANGES = st.lists(st.tuples(_TIMES, _TIMES).map(lambda times: (min(times), max(times))))


def table(times: Times, first_number: int = 0) -> RangeTable:
    """Ranges in the order given."""
    records = np.array(times, [("begin_ns", np.int64), ("end_ns", np.int64)])
    found = range_tables(
        records,
        lambda records: np.zeros(len(records), np.int64),
        itemgetter("begin_ns", "end_ns"),
        first_number,
    )
    return dict(found).get(0, lambda: iter(()))


def in_order(times: Times) -> list[int]:
    """Their numbers in the order of their begins; of those that begin together the outermost
    first."""
    return sorted(range(len(times)), key=lambda i: (times[i][0], -times[i][1], -i))


def placed(times: Times) -> list[tuple[int, int, int]]:
    """Lane, begin and end of each range, the outermost first."""
    lanes = Lanes()
    return [
        (lane, *times[number])
        for part in by_begin(table(times))
        for number, lane in zip(part.number.tolist(), lanes.place(part).tolist(), strict=True)
    ]


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


@settings(max_examples=50)
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


@settings(max_examples=50)
@given(_RANGES, st.integers(1, 5))
def test_window_by_window_is_as_all_at_once(times: Times, size: int) -> None:
    at_once = placed(times)
    with mock.patch.object(ranges, "WINDOW_ROWS", size):
        assert placed(times) == at_once


@settings(max_examples=50)
@given(_RANGES, _RANGES, st.integers(1, 5))
def test_tables_are_put_in_order_together(one: Times, other: Times, size: int) -> None:
    with mock.patch.object(ranges, "WINDOW_ROWS", size):
        parts = list(by_begin(table(one), table(other, first_number=len(one))))

    assert all(len(part.number) for part in parts)
    found = [
        (number, (begin_ns, end_ns))
        for part in parts
        for number, begin_ns, end_ns in zip(*map(np.ndarray.tolist, part), strict=True)
    ]
    both = one + other
    assert found == [(number, both[number]) for number in in_order(both)]


def test_a_part_is_a_window_and_what_was_open_around_it() -> None:
    """Steps with two phases each, in the order of their ends, and a range around all."""
    steps = [(10 * i, 10 * i + 9) for i in range(4)]
    spans = [range_ for begin, end in steps for range_ in ((begin, begin + 3), (begin + 4, end))]
    with mock.patch.object(ranges, "WINDOW_ROWS", 2):
        parts = list(by_begin(table([*spans, (0, 100)]), table(steps, first_number=9)))

    assert [part.number.tolist() for part in parts] == [
        [8, 9, 0, 1],
        [10, 2, 3],
        [11, 4, 5],
        [12, 6, 7],
    ]


@settings(max_examples=8)
@given(runs(with_modules=True).map(with_lengths_on_device))
def test_formats_say_the_same_window_by_window(run: Run) -> None:
    def said() -> list[Any]:
        trace = json.loads(written(perfetto.write, run))["traceEvents"]
        text = read_nvtxt(written(nvtxt.write, run))
        return [sorted(map(str, trace)), text]

    at_once = said()
    with mock.patch.object(ranges, "WINDOW_ROWS", 2):
        assert said() == at_once


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
    many = [(10 * i, 10 * i + 3_001) for i in range(5_000)]
    found = [lane for lane, _, _ in placed(many)]
    assert found == [i % 301 for i in range(5_000)]
