# SPDX-License-Identifier: Apache-2.0
"""Ranges put in the order of their begins, some ten thousand at a time.

Spans stand in the order in which they ended; a timeline wants them in that in which they began. To
sort them all at once takes memory for all. But nearly every range begins within the window of
ranges that it stands in: only those that were open where the window begins do not, and they are
few. So a table is read twice, a window at a time. The first reading notes until when each window
lasts, and keeps the ranges that began before theirs. The second gives to each window its other
ranges, and the kept ones that began in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

WINDOW_ROWS = 1 << 16

_BEFORE_ALL_NS = np.iinfo(np.int64).min


class Ranges(NamedTuple):
    """Some ranges, as columns.

    Attributes:
        number: unlike that of any other range; of two with the same begin and end, the higher
            number is the outer.
        begin_ns, end_ns: when the range was.
    """

    number: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    def some(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Ranges:
        """Those at some places, or where a mask says so."""
        return Ranges(*(column[rows] for column in self))

    def visible_end_ns(self) -> NDArray[np.int64]:
        """The ends, where a range of no length lasts for 1 ns."""
        return np.maximum(self.end_ns, self.begin_ns + 1)


_NOTHING = Ranges(*[np.empty(0, np.int64)] * 3)

RangeTable: TypeAlias = Callable[[], Iterator[Ranges]]
"""Reads ranges from the first to the last, roughly in the order in which they ended; each call
reads the same windows."""


def range_tables(
    records: NDArray[np.void],
    keys: Callable[[NDArray[np.void]], NDArray[np.int64]],
    times: Callable[[NDArray[np.void]], tuple[NDArray[np.int64], NDArray[np.int64]]],
    first_number: int = 0,
) -> Iterator[tuple[int, RangeTable]]:
    """For each key from 0 on, ascending, the records that have it.

    Args:
        records: in the order in which they ended, or nearly so.
        keys: of some records; below 0 for what belongs nowhere.
        times: their begins and ends.
        first_number: the number of the first record; they are numbered by their places.
    """
    slices: dict[int, list[slice]] = {}
    for part in slices_of(len(records)):
        for key in np.unique(keys(records[part])).tolist():
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
                yield _joined(waiting)
                waiting, rows = [], 0
        if rows:
            yield _joined(waiting)

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
    cursors = [_Cursor(table) for table in tables]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        until_ns = min(cursor.until_ns for cursor in cursors)
        ranges = _joined([cursor.take(until_ns) for cursor in cursors])
        if len(ranges.number):
            yield ranges.some(np.lexsort((-ranges.number, -ranges.end_ns, ranges.begin_ns)))


class _Cursor:
    """What of one table is next."""

    def __init__(self, table: RangeTable) -> None:
        self._windows = _windows_by_begin(table)
        self._next = _NOTHING
        self.until_ns = _BEFORE_ALL_NS

    def fill(self) -> bool:
        """Have all at hand that begins until `until_ns`; false when there is nothing more."""
        if len(self._next.number):
            return True
        window = next(self._windows, None)
        if window is None:
            return False
        self.until_ns, self._next = window
        return True

    def take(self, until_ns: int) -> Ranges:
        """Take what begins until then."""
        is_due = self._next.begin_ns <= until_ns
        taken, self._next = self._next.some(is_due), self._next.some(~is_due)
        return taken


def _windows_by_begin(table: RangeTable) -> Iterator[tuple[int, Ranges]]:
    """Windows with all that begins in them, and the last moment of each."""
    ends_ns: list[int] = []
    strays = []
    latest_ns = _BEFORE_ALL_NS
    for window in table():
        strays.append(window.some(window.begin_ns <= latest_ns))
        latest_ns = max(latest_ns, int(window.begin_ns.max()), int(window.end_ns.max()))
        ends_ns.append(latest_ns)
    stray = _joined(strays)
    home = np.searchsorted(np.array(ends_ns, np.int64), stray.begin_ns)
    by_home = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[by_home], np.arange(len(ends_ns) + 1)).tolist()
    previous_ns = _BEFORE_ALL_NS
    for place, window in enumerate(table()):
        own = window.some(window.begin_ns > previous_ns)
        others = stray.some(by_home[bounds[place] : bounds[place + 1]])
        yield ends_ns[place], _joined([own, others])
        previous_ns = ends_ns[place]


def _joined(windows: Sequence[Ranges]) -> Ranges:
    if len(windows) == 1:
        return windows[0]
    return Ranges(*map(np.concatenate, zip(_NOTHING, *windows, strict=True)))
