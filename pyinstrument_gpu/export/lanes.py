# SPDX-License-Identifier: Apache-2.0
"""Ranges that need not nest, on lanes where they do.

Viewers draw what stands on one track as a stack, and drop or misplace what overlaps there without
lying inside. Interleaved generators and coroutines overlap so on one thread.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray


def outermost_first(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """The order by begin. Of those that begin together, the longest, and then the last, is first:
    spans stand in the order in which they ended."""
    by_end = np.argsort(end_ns, kind="stable")[::-1]
    return by_end[np.argsort(begin_ns[by_end], kind="stable")]


def lanes_of(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """The lane of each range, counted from 0.

    A range goes to the lane of the innermost one around it; where none is around it, to the first
    that is free. What has no length counts as 1 ns long.

    Args:
        begin_ns, end_ns: in the order of `outermost_first`.
    """
    end_ns = np.maximum(end_ns, begin_ns + 1)
    # True of nearly every thread, and seen at once for all its ranges.
    if np.array_equal(_ends_when_nested(begin_ns, end_ns), end_ns):
        return np.zeros(len(begin_ns), np.intp)
    lanes = np.empty(len(begin_ns), np.intp)
    open_ends: list[list[int]] = []  # of each lane, the innermost last
    innermost: list[tuple[int, int]] = []  # end and lane of each lane's last, ascending
    free: list[int] = []
    for i, (begin, end) in enumerate(zip(begin_ns.tolist(), end_ns.tolist(), strict=True)):
        while innermost and innermost[0][0] <= begin:
            _, lane = innermost.pop(0)
            ends = open_ends[lane]
            ends.pop()
            if ends:
                insort(innermost, (ends[-1], lane))
            else:
                heappush(free, lane)
        around = bisect_left(innermost, (end, 0))
        if around < len(innermost):
            _, lane = innermost.pop(around)
        elif free:
            lane = heappop(free)
        else:
            lane = len(open_ends)
            open_ends.append([])
        open_ends[lane].append(end)
        insort(innermost, (end, lane))
        lanes[i] = lane
    return lanes


def lane_name(name: str, lane: int) -> str:
    """What the lane of a track is called: "name", "name (2)" and so on."""
    return f"{name} ({lane + 1})" if lane else name


def _ends_when_nested(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
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
