# SPDX-License-Identifier: Apache-2.0
"""Ranges that need not nest, on lanes where they do.

Viewers draw what stands on one track as a stack, and drop or misplace what overlaps there without
lying inside. Interleaved generators and coroutines overlap so on one thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.ranges import Ranges


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
    """What the lane of a track is called: "name", "name (2)" and so on."""
    return f"{name} ({lane + 1})" if lane else name


def ends_when_nested(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each range would end if every end were that of the range begun last."""
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
