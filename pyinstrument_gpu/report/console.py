# SPDX-License-Identifier: Apache-2.0
"""The parts of a report as a terminal shows them, set by `rich`.

A name that is too wide wraps, unless it is a line of source, which people copy; a number is never
cut. So a table can be wider than the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from pyinstrument_gpu.parts.parts import NOTES, Kind, Part, Row, Sentence, Table
from pyinstrument_gpu.parts.words import printable

_STYLES: dict[Kind, str] = {
    "": "",
    "title": "bold",
    "note": "dim",
    "warn": "yellow",
    "alert": "bold yellow",
    "failure": "bold red",
}
_WIDE = 100
_BAR_WIDTH = 20
_BAR_STYLE = "cyan"
_MIN_NAME_WIDTH = 16


def for_terminal(parts: Iterable[Part], width: int | None = None, color: bool | None = None) -> str:
    """The parts as text.

    Args:
        width: columns; None takes the terminal's, or 80.
        color: whether to use colours; None does where standard output is a terminal and
            `NO_COLOR` is not set.
    """
    stdout = Console()
    color = (stdout.is_terminal and not stdout.no_color) if color is None else color
    return printed(parts, terminal_width(width), color=color)


def terminal_width(width: int | None) -> int:
    """The width that is given, or that of the terminal."""
    return Console().width if width is None else width


def printed(parts: Iterable[Part], width: int, *, color: bool = False) -> str:
    """The parts below each other, without spaces at the ends of lines. Sentences wrap at `width`
    columns, and tables do not."""
    lines = rich_parts(parts, width)
    console = Console(
        file=StringIO(),
        width=max([width, *(line.width or 0 for line in lines if isinstance(line, RichTable))]),
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        no_color=not color,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for line in lines:
            console.print(line)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def rich_parts(parts: Iterable[Part], width: int) -> list[Text | RichTable]:
    """The parts as `rich` prints them; below a table is what its shortened headers mean."""
    found: list[Text | RichTable] = []
    for part in parts:
        if isinstance(part, Sentence):
            found.append(Text(part.text, _STYLES[part.kind]))
            continue
        found.append(rich_table(part, width))
        shortened = [header for header in part.headers if header in part.short]
        if shortened and width < _WIDE:
            legend = ", ".join(f"{part.short[header]}: {header}" for header in shortened)
            found.append(Text(legend, _STYLES["note"]))
    return found


def rich_table(table: Table, width: int) -> RichTable:
    """The table in at most `width` columns, unless the numbers need more, or the names, if they
    are to stay whole."""
    headers, blocks = _fitted(table, width)
    rows = [row for block in blocks for row in block]
    columns = zip(headers[1:], *(row.cells for row in rows), strict=True)
    widths = [max(map(cell_len, column)) for column in columns]
    names = [headers[0], *("  " * row.depth + printable(row.name) for row in rows)]
    name_width = max(map(cell_len, names))
    remarks = [_remark(row, table, width) for row in rows]
    note_width = max(map(cell_len, remarks))

    gap = 2 if name_width + sum(widths) + 2 * len(widths) + 2 + note_width <= width else 1
    numbers_width = sum(gap + column_width for column_width in widths)
    notes_width = gap + note_width if note_width else 0
    if not table.whole_names:
        name_width = min(name_width, max(width - numbers_width - notes_width, _MIN_NAME_WIDTH))

    lines = RichTable(
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
            style = _BAR_STYLE if row.share is not None else ""
            remark = [Text(_remark(row, table, width), style)] if note_width else []
            lines.add_row(name, *row.cells, *remark, style=row.emphasis)
    return lines


def _fitted(table: Table, width: int) -> tuple[list[str], list[list[Row]]]:
    """The headers and blocks for which there is room."""
    if width >= _WIDE:
        return [*table.headers], [[*block] for block in table.blocks]
    kept = [place for place, one in enumerate(table.headers) if one not in table.wide_only]
    headers = [table.short.get(table.headers[place], table.headers[place]) for place in kept]
    blocks = [
        [replace(row, cells=[row.cells[place - 1] for place in kept[1:]]) for row in block]
        for block in table.blocks
    ]
    return headers, blocks


def _remark(row: Row, table: Table, width: int) -> str:
    """The note of a row, or a bar of its share."""
    if (width >= _WIDE or table.bars) and row.share is not None:
        return "#" * round(_BAR_WIDTH * row.share)
    return "" if width < _WIDE and NOTES in table.wide_only else printable(row.note)
