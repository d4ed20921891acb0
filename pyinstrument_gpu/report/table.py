# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and tables as text.

Names are shown as they are, except that what would not print (line breaks, escape sequences) is
written as an escape. A name that is too wide wraps, unless it is a line of source, which people
copy; a number is never cut. So a table can be wider than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.document.words import UNKNOWN as UNKNOWN
from pyinstrument_gpu.document.words import confidence_percent as confidence_percent
from pyinstrument_gpu.document.words import counted as counted
from pyinstrument_gpu.document.words import duration as duration
from pyinstrument_gpu.document.words import percent as percent
from pyinstrument_gpu.document.words import rate as rate
from pyinstrument_gpu.document.words import rounded_percent as rounded_percent
from pyinstrument_gpu.document.words import share as share
from pyinstrument_gpu.document.words import size as size
from pyinstrument_gpu.document.words import small_percent as small_percent

_MIN_NAME_WIDTH = 16


def printable(text: str) -> str:
    """The text with an escape (as in a Python literal) for each character that does not print."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


@dataclass(frozen=True)
class Unit:
    """How the durations of one table are written: fixed, so that they compare at a glance."""

    name: str
    ns: int
    decimals: int

    @classmethod
    def fitting(cls, largest_ns: float, total_ns: float = 0) -> Unit:
        """The unit for durations of which this is the largest, and totals of up to `total_ns`."""
        if total_ns >= 1e9:
            largest_ns = max(largest_ns, 1e6)
        if largest_ns >= 10e9:
            return cls("s", 1_000_000_000, 3)
        if largest_ns >= 1e6:
            return cls("ms", 1_000_000, 3 if largest_ns < 1e9 else 1)
        return cls("us", 1_000, 2)

    def text(self, duration_ns: float | None) -> str:
        """The number without the unit; "-" where it is not known."""
        return UNKNOWN if duration_ns is None else f"{duration_ns / self.ns:.{self.decimals}f}"


@dataclass(frozen=True)
class Row:
    """A line of a table: `cells` stand right of the name, `note` behind them, aligned left, and
    `style` is that of the whole line."""

    name: str
    cells: Sequence[str]
    depth: int = 0
    note: str = ""
    style: str = ""


def table(
    headers: Sequence[str],
    blocks: Sequence[Sequence[Row]],
    width: int,
    *,
    whole_names: bool = False,
) -> Table:
    """A table of names and numbers with a line between the blocks that are not empty.

    The headers are those of all columns, or empty for a table without. It fills at most `width`
    columns, unless the numbers need more, or the names, if they are to stay whole.
    """
    blocks = [block for block in blocks if block]
    rows = [row for block in blocks for row in block]
    headers = headers or [""] * (1 + len(rows[0].cells))
    columns = zip(headers[1:], *(row.cells for row in rows), strict=True)
    widths = [max(map(cell_len, column)) for column in columns]
    names = [headers[0], *("  " * row.depth + printable(row.name) for row in rows)]
    name_width = max(map(cell_len, names))
    note_width = max(cell_len(printable(row.note)) for row in rows)

    gap = 2 if name_width + sum(widths) + 2 * len(widths) + 2 + note_width <= width else 1
    numbers_width = sum(gap + column_width for column_width in widths)
    notes_width = gap + note_width if note_width else 0
    if not whole_names:
        name_width = min(name_width, max(width - numbers_width - notes_width, _MIN_NAME_WIDTH))

    lines = Table(
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        show_header=any(headers),
        header_style="bold",
        width=name_width + numbers_width + notes_width,
    )
    lines.add_column(headers[0], width=name_width)
    for header, column_width in zip(headers[1:], widths, strict=True):
        lines.add_column(header, width=column_width, justify="right", no_wrap=True)
    if note_width:
        lines.add_column("", width=note_width, no_wrap=True)
    rule = ["-" * column_width for column_width in (name_width, *widths)]
    for i, block in enumerate(blocks):
        if i or any(headers):
            lines.add_row(*rule, style="dim")
        for row in block:
            # A tree deeper than the column is wide stays within it.
            indent = min(2 * row.depth, name_width // 2)
            name = Padding(Text(printable(row.name), overflow="fold"), (0, 0, 0, indent))
            note = [Text(printable(row.note))] if note_width else []
            lines.add_row(name, *row.cells, *note, style=row.style)
    return lines
