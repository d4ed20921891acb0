# SPDX-License-Identifier: Apache-2.0
"""Ranges put in the order of their begins, some ten thousand at a time, and on lanes.

Spans stand in the order in which they ended; a timeline wants them in that in which they began. To
sort them all at once takes memory for all. But nearly every range begins within the window of
ranges that it stands in: only those that were open where the window begins do not, and they are
few. So a table is read twice, a window at a time. The first reading notes until when each window
lasts, and keeps the ranges that began before theirs. The second gives to each window its other
ranges, and the kept ones that began in it.

Viewers draw what stands on one track as a stack, and drop or misplace what overlaps there without
lying inside. Interleaved generators and coroutines overlap so on one thread. So ranges that need
not nest go to lanes on which they do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import distinct

WINDOW_ROWS = 1 << 16

_BEFORE_ALL_NS = np.iinfo(np.int64).min


class Ranges(NamedTuple):
    """A set of ranges, as columns.

    Attributes:
        number: unlike that of any other range; of two with the same begin and end, the higher
            number is the outer.
        begin_ns, end_ns: when the range was.
    """

    number: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    def some(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Ranges:
        return Ranges(*(column[rows] for column in self))

    def visible_end_ns(self) -> NDArray[np.int64]:
        """The ends, where a range of no length lasts for 1 ns."""
        return np.maximum(self.end_ns, self.begin_ns + 1)


NOTHING = Ranges(*[np.empty(0, np.int64)] * 3)

RangeTable: TypeAlias = Callable[[], Iterator[Ranges]]
"""Reads ranges from the first to the last, roughly in the order in which they ended; each call
reads the same windows."""


def range_tables(
    records: NDArray[np.void],
    keys: Callable[[NDArray[np.void]], NDArray[np.int64]],
    times: Callable[[NDArray[np.void]], tuple[NDArray[np.int64], NDArray[np.int64]]],
    first_number: int = 0,
) -> Iterator[tuple[int, RangeTable]]:
    """Yield the records of each key from 0 on, ascending.

    Args:
        records: in the order in which they ended, or nearly so.
        keys: of some records; below 0 for what belongs nowhere.
        times: their begins and ends.
        first_number: the number of the first record; they are numbered by their places.
    """
    slices: dict[int, list[slice]] = {}
    for part in slices_of(len(records)):
        for key in distinct(keys(records[part])).tolist():
            slices.setdefault(key, []).append(part)

    def windows(key: int) -> Iterator[Ranges]:
        waiting: list[Ranges] = []
        rows = 0
        for part in slices[key]:
            places = np.flatnonzero(keys(records[part]) == key)
            begin_ns, end_ns = times(records[part])
            number = places + (first_number + part.start)
            waiting.append(Ranges(number, begin_ns[places], end_ns[places]))
            rows += len(places)
            # Of one thread among many, each part holds little.
            if 2 * rows >= WINDOW_ROWS:
                yield joined(waiting)
                waiting, rows = [], 0
        if rows:
            yield joined(waiting)

    for key in sorted(slices):
        if key >= 0:
            yield key, partial(windows, key)


def slices_of(rows: int, size: int | None = None) -> Iterator[slice]:
    """An array of so many rows in parts, of `size` rows (`WINDOW_ROWS`) and what remains."""
    size = WINDOW_ROWS if size is None else size
    for begin in range(0, rows, size):
        yield slice(begin, min(begin + size, rows))


def by_begin(*tables: RangeTable) -> Iterator[Ranges]:
    """The ranges of all tables by their begins, ascending, about a window at a time. Of those that
    begin together the longest is first, and of equal ones that with the highest number.

    Memory is used for about a window of each table, and for the ranges that were open where one
    begins.
    """
    waiting = NOTHING
    # What is still to come begins after the window that comes next does.
    for after_ns, window in heapq.merge(*map(_windows_by_begin, tables), key=itemgetter(0)):
        is_due = waiting.begin_ns <= after_ns
        yield from _in_order(waiting.some(is_due))
        waiting = joined([waiting.some(~is_due), window])
    yield from _in_order(waiting)


def _in_order(ranges: Ranges) -> Iterator[Ranges]:
    if len(ranges.number):
        yield ranges.some(np.lexsort((-ranges.number, -ranges.end_ns, ranges.begin_ns)))


def _windows_by_begin(table: RangeTable) -> Iterator[tuple[int, Ranges]]:
    """Windows with all that begins in them, and the moment after which each begins."""
    ends_ns: list[int] = []
    strays = []
    latest_ns = _BEFORE_ALL_NS
    for window in table():
        strays.append(window.some(window.begin_ns <= latest_ns))
        latest_ns = max(latest_ns, int(window.begin_ns.max()), int(window.end_ns.max()))
        ends_ns.append(latest_ns)
    stray = joined(strays)
    begins_after_ns = [_BEFORE_ALL_NS, *ends_ns]
    for after_ns, until_ns, window in zip(begins_after_ns, ends_ns, table(), strict=False):
        own = window.some(window.begin_ns > after_ns)
        others = stray.some((after_ns < stray.begin_ns) & (stray.begin_ns <= until_ns))
        yield after_ns, joined([own, others])


def joined(windows: Sequence[Ranges]) -> Ranges:
    return Ranges(*map(np.concatenate, zip(NOTHING, *windows, strict=True)))


class Lanes:
    """The lanes of one thread or stream.

    A range goes to the lane of the innermost one around it; where none is around it, to the first
    that is free. What has no length counts as 1 ns long.
    """

    def __init__(self) -> None:
        # The ends of what is open on each lane, the innermost last.
        self._open_ends: list[list[int]] = []

    def place(self, ranges: Ranges) -> NDArray[np.intp]:
        """The lane of each range, counted from 0.

        Args:
            ranges: as `by_begin` orders them, behind those of the calls before.
        """
        self._close_until(int(ranges.begin_ns[0]))
        if not any(self._open_ends[1:]) and self._all_nest(ranges):
            return np.zeros(len(ranges.number), np.intp)
        return self._place_each(ranges)

    def _close_until(self, now_ns: int) -> None:
        for ends in self._open_ends:
            while ends and ends[-1] <= now_ns:
                ends.pop()

    def _all_nest(self, ranges: Ranges) -> bool:
        """Put all on the first lane, if they nest there. True of nearly every thread, and seen at
        once for all ranges."""
        open_ends = self._open_ends[0] if self._open_ends else []
        before_ns = np.full(len(open_ends), ranges.begin_ns[0])
        begin_ns = np.concatenate([before_ns, ranges.begin_ns])
        end_ns = np.concatenate([np.array(open_ends, np.int64), ranges.visible_end_ns()])
        if not np.array_equal(ends_when_nested(begin_ns, end_ns), end_ns):
            return False
        self._open_ends[:1] = [end_ns[end_ns > begin_ns[-1]].tolist()]
        return True

    def _place_each(self, ranges: Ranges) -> NDArray[np.intp]:
        lanes = []
        times = zip(ranges.begin_ns.tolist(), ranges.visible_end_ns().tolist(), strict=True)
        for begin_ns, end_ns in times:
            self._close_until(begin_ns)
            innermost = [
                (ends[-1], lane)
                for lane, ends in enumerate(self._open_ends)
                if ends and ends[-1] >= end_ns
            ]
            free = (lane for lane, ends in enumerate(self._open_ends) if not ends)
            _, lane = min(innermost, default=(0, next(free, len(self._open_ends))))
            if lane == len(self._open_ends):
                self._open_ends.append([])
            self._open_ends[lane].append(end_ns)
            lanes.append(lane)
        return np.array(lanes, np.intp)


def lane_name(name: str, lane: int) -> str:
    """Return the name of a lane of a track: "name", "name (2)" and so on."""
    return f"{name} ({lane + 1})" if lane else name


def ends_when_nested(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each range would end if every end were that of the range begun last."""
    count = np.arange(len(begin_ns))
    ends = np.sort(end_ns)
    depth_of_begin = count - np.searchsorted(ends, begin_ns, "right")
    depth_of_end = np.searchsorted(begin_ns, ends, "left") - 1 - count
    # At one depth begins and ends take turns.
    result = np.empty_like(ends)
    by_begin, by_end = (
        np.argsort(depth, kind="stable") for depth in (depth_of_begin, depth_of_end)
    )
    result[by_begin] = ends[by_end]
    return result
