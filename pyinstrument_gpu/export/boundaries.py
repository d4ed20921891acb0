# SPDX-License-Identifier: Apache-2.0
"""Begins and ends of ranges, for formats that have an event for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.ranges import NOTHING, Ranges, joined


class Boundaries:
    """The begins and ends of the ranges of one lane, in an order in which they nest.

    It matters where times are equal: the end of a range stands before the begin of one that touches
    it, and of nested ranges that end together that of the inner one is first.
    """

    def __init__(self) -> None:
        self._open = NOTHING

    def some(self, new: Ranges) -> tuple[Ranges, NDArray[np.bool_]]:
        """The begins of ranges, and the ends that come before the last of these begins: the range
        of each, and whether it is its end.

        Args:
            new: ranges that nest, as `Timeline.placed` orders them.
        """
        ranges = joined([self._open, new])
        begins = np.arange(len(self._open.number), len(ranges.number))
        # Before which of the new ranges each ends.
        before = np.searchsorted(new.begin_ns, ranges.visible_end_ns())
        is_open = before == len(begins)
        self._open = ranges.some(is_open)
        ends = np.flatnonzero(~is_open)[::-1]  # what began last ends first
        places = np.concatenate([2 * before[ends], 2 * np.arange(len(begins)) + 1])
        order = np.argsort(places, kind="stable")
        return ranges.some(np.concatenate([ends, begins])[order]), order < len(ends)

    def rest(self) -> tuple[Ranges, NDArray[np.bool_]]:
        """The ends that are left."""
        return self._open.some(slice(None, None, -1)), np.ones(len(self._open.number), np.bool_)
