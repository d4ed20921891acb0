# SPDX-License-Identifier: Apache-2.0
"""Values that come without end, of which a bounded number is kept."""

from __future__ import annotations

from typing import Generic, TypeVar

_T = TypeVar("_T")


class BoundedSeries(Generic[_T]):
    """A series that drops every second item when it has too many, and then keeps half as many.

    Args:
        most: how many may be kept.

    Attributes:
        kept: in the order in which they came.
    """

    def __init__(self, most: int) -> None:
        self.kept: list[_T] = []
        self._most = most
        self._every = 1
        self._count = 0

    def add(self, value: _T) -> None:
        if self._count % self._every == 0:
            self.kept.append(value)
            if len(self.kept) > self._most:
                del self.kept[1::2]
                self._every *= 2
        self._count += 1
