# SPDX-License-Identifier: Apache-2.0
"""Times by which a viewer nests ranges as the phases that they belong to were nested.

A phase that gave a stream nothing to do begins and ends there at one moment, and at the same moment
what was around it ends, or what came after it begins. A viewer knows times only. It shows such a
range inside whatever begins then, and outside of what ends then. The host knows the order, as it
entered and left each phase at a moment of its own.

So the begins and ends of a lane's ranges are put in the order of their times and, where these are
the same, in that of the host: as if one went along the ranges and noted each border. A range
without length then takes the nanosecond that it begins in for itself. The borders behind it move on
by one, as far as they meet it, and no border moves before another.

Of ranges that have a length the times alone decide, because they nest whatever the host did. Where
the order of the host would make ranges overlap, as those of two threads can, it is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.ranges import NOTHING, Ranges, ends_when_nested, joined

_Times: TypeAlias = NDArray[np.int64]

_NEVER_NS = np.iinfo(np.int64).max


class Tour:
    """Goes along the ranges of one lane, which nest, some at a time.

    Args:
        host_times: when the ranges of these numbers began and ended on the host.
    """

    def __init__(self, host_times: Callable[[_Times], tuple[_Times, _Times]]) -> None:
        self._host_times = host_times
        # What begins or ends where the last of a part begins waits: more may begin then.
        self._waiting = NOTHING
        # Ends that have been told and not been passed, ascending.
        self._told_ends_ns = np.empty(0, np.int64)
        self._free_ns = np.iinfo(np.int64).min

    def some(self, part: Ranges) -> Ranges:
        """The ranges with their new times, in the order of their begins. Those that meet the last
        begin, and what is behind them, come with the next call.

        An end that lies behind the begin of the last stays where it is.

        Args:
            part: as `by_begin` orders them, behind those of the calls before.
        """
        ranges = joined([self._waiting, part])
        until_ns = int(ranges.begin_ns[-1])
        may_move = (ranges.begin_ns == until_ns) | (ranges.end_ns == until_ns)
        first_waiting = int(np.argmax(may_move))
        self._waiting = ranges.some(slice(first_waiting, None))
        return self._moved(ranges.some(slice(first_waiting)), until_ns)

    def rest(self) -> Ranges:
        return self._moved(self._waiting, _NEVER_NS)

    def _moved(self, ranges: Ranges, until_ns: int) -> Ranges:
        begin_ns, end_ns = ranges.begin_ns, ranges.end_ns
        if not len(begin_ns):
            return ranges
        has_no_length = begin_ns == end_ns
        if begin_ns[0] < self._free_ns or has_no_length.any():
            order, begin_ns, end_ns = self._borders(ranges, has_no_length, until_ns)
            ranges = Ranges(ranges.number[order], begin_ns[order], end_ns[order])
        told_ns = np.concatenate([self._told_ends_ns, ranges.end_ns])
        self._told_ends_ns = np.sort(told_ns[told_ns >= until_ns])
        return ranges

    def _borders(
        self, ranges: Ranges, has_no_length: NDArray[np.bool_], until_ns: int
    ) -> tuple[NDArray[np.intp], _Times, _Times]:
        """The order of the ranges, and their new begins and ends in the old order."""
        count, told = len(ranges.number), len(self._told_ends_ns)
        # The borders: all begins, all ends, and the ends of ranges told before.
        time_ns = np.concatenate([ranges.begin_ns, ranges.end_ns, self._told_ends_ns])
        host_ns = np.concatenate([*self._host_times(ranges.number), np.zeros(told, np.int64)])
        in_order = _order(ranges, has_no_length, time_ns, host_ns)
        place = np.empty(len(in_order), np.int64)
        place[in_order] = np.arange(len(in_order))
        if not _nest(place[:count], place[count : 2 * count]):
            in_order = _order(ranges, has_no_length, time_ns, np.zeros_like(host_ns))
            place[in_order] = np.arange(len(in_order))

        # A range has nothing inside where its end is the border behind its begin.
        alone = np.flatnonzero(has_no_length & (place[count : 2 * count] == place[:count] + 1))
        takes = np.zeros(len(in_order), np.int64)
        takes[place[count + alone]] = 1
        taken = np.cumsum(takes) - takes
        sorted_ns = time_ns[in_order]
        begun_ns = np.maximum(sorted_ns - taken, self._free_ns)
        moved_ns = np.maximum.accumulate(begun_ns) + taken
        # The ends that others rely on stay, and nothing moves beyond those around it.
        is_fixed = (sorted_ns >= until_ns) | (in_order >= 2 * count)
        around_ns = np.where(is_fixed, sorted_ns, _NEVER_NS)
        around_ns = np.minimum.accumulate(around_ns[::-1])[::-1]
        moved_ns = np.minimum(moved_ns, around_ns)

        is_passed = sorted_ns < until_ns
        if is_passed.any():
            last = int(np.flatnonzero(is_passed)[-1])
            self._free_ns = max(self._free_ns, int(moved_ns[last] + takes[last]))
        new_ns = np.empty_like(moved_ns)
        new_ns[in_order] = moved_ns
        order = np.argsort(place[:count])
        return order, new_ns[:count], new_ns[count : 2 * count]


def _order(
    ranges: Ranges, has_no_length: NDArray[np.bool_], time_ns: _Times, host_ns: _Times
) -> NDArray[np.intp]:
    """The borders in order. At one moment first what has a length ends, the innermost first; then
    what has a length begins, the outermost first; and in between, where the host had them, stand
    those without length."""
    count, told = len(ranges.number), len(time_ns) - 2 * len(ranges.number)
    begins_first = np.repeat([1, 0, 0], (count, count, told))
    begins_first[count : 2 * count][has_no_length] = 2
    # Of ends the latest begin first, and those that were told before last.
    begins, ends, numbers = -ranges.end_ns, -ranges.begin_ns, ranges.number
    inner = np.concatenate([begins, ends, np.arange(told) + 1])
    number = np.concatenate([-numbers, numbers, np.arange(told)])
    by_times = np.lexsort((number, inner, begins_first, time_ns))

    # So that those with a length keep this order, the host's time of each is the latest up to it.
    has_length = np.concatenate([~has_no_length, ~has_no_length, np.ones(told, np.bool_)])[by_times]
    moment = np.cumsum(np.diff(time_ns[by_times], prepend=time_ns[by_times[0]]) != 0)
    rank = np.unique(host_ns, return_inverse=True)[1][by_times]
    of_moment = moment * (len(time_ns) + 1)
    latest = np.maximum.accumulate(of_moment + np.where(has_length, rank, 0)) - of_moment
    rank = np.where(has_length, latest, rank)
    return by_times[np.lexsort((np.arange(len(rank)), rank, moment))]


def _nest(begin: _Times, end: _Times) -> bool:
    """Whether ranges between such places nest."""
    order = np.argsort(begin)
    return np.array_equal(ends_when_nested(begin[order], end[order]), end[order])
