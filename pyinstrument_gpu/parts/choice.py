# SPDX-License-Identifier: Apache-2.0
"""Tables of which the reader chooses the rows and their order, and courses of values in a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table

# Without the full block, which would touch that of the row above.
_BLOCKS = "▁▂▃▄▅▆▇"
_Item = TypeVar("_Item")
Sorts: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""By what a table can be sorted, as functions of what its rows are about; the first is usual."""


@dataclass(frozen=True)
class Choice:
    """A choice of the rows of a table that are shown, and their order.

    Attributes:
        sort: a key of the table's `Sorts`.
        filter: only rows whose name has this in it, in letters of any case.
    """

    sort: str
    filter: str = ""

    def takes(self, name: str) -> bool:
        return self.filter.casefold() in name.casefold()

    def of(
        self, items: Iterable[_Item], name: Callable[[_Item], object], sorts: Sorts
    ) -> list[_Item]:
        """Return the items that are shown, in order."""
        in_order = sorted(items, key=sorts[self.sort])
        return [one for one in in_order if self.takes(str(name(one)))]

    def table(self, headers: Sequence[str], rows: Sequence[Row], **options: Any) -> list[Part]:
        """The rows, or a sentence where there are none left."""
        if rows:
            return [table(headers, [rows], **options)]
        return [Sentence(f"nothing has {self.filter!r} in its name")]


def as_recorded(item: object) -> int:
    """A key that leaves the order as it is."""
    return 0


def sparkline(values: Sequence[float | None], from_zero: bool = True) -> str:
    """Values as a row of blocks; a space for what is not known. From zero to the largest, or from
    the smallest to the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low = 0.0 if from_zero else min(known)
    scale = (len(_BLOCKS) - 1) / (max(known) - low) if max(known) > low else 0.0
    return "".join(
        " " if value is None else _BLOCKS[max(0, round((value - low) * scale))] for value in values
    )
