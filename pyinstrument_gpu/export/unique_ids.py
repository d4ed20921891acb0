# SPDX-License-Identifier: Apache-2.0
"""Numbers for processes and rows: their own where these can be told apart by them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count


class UniqueIds:
    """Gives out numbers from 1 to below a limit, each once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = {0}
        self._lowest = 1

    def assign(self, wanted: Sequence[int]) -> list[int]:
        """For each its wanted number, or a free one where that cannot be."""
        ids: list[int | None] = []
        for number in wanted:
            possible = 0 < number < self._limit and number not in self._taken
            ids.append(number if possible else None)
            if possible:
                self._taken.add(number)
        return [self.free() if number is None else number for number in ids]

    def free(self) -> int:
        """A number above all others where there is one: rows are shown in the order of theirs."""
        number = max(self._taken) + 1
        if number == self._limit:
            return self._lowest_free()
        self._taken.add(number)
        return number

    def _lowest_free(self) -> int:
        self._lowest = next(each for each in count(self._lowest) if each not in self._taken)
        self._taken.add(self._lowest)
        return self._lowest
