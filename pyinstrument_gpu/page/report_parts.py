# SPDX-License-Identifier: Apache-2.0
"""The parts of the terminal's report as plain rows and sentences, which the page sets as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_STYLES = {"dim": "note", "yellow": "warn", "bold yellow": "warn", "bold red": "warn"}


@dataclass(frozen=True)
class Sentence:
    """A line of text. `kind` is "title", "note", "warn" or empty."""

    text: str
    kind: str


@dataclass(frozen=True)
class PartRow:
    """A row of a table; `depth` is how many names are around its own."""

    name: str
    cells: tuple[str, ...]
    depth: int


@dataclass(frozen=True)
class PartTable:
    """A table; `is_number` says of each column behind the first whether it is set as numbers."""

    headers: tuple[str, ...]
    is_number: tuple[bool, ...]
    blocks: tuple[tuple[PartRow, ...], ...]


def report_parts(parts: Iterable[Text | Table]) -> list[Sentence | PartTable]:
    """The parts in order, without empty lines."""
    found: list[Sentence | PartTable] = []
    for part in parts:
        if isinstance(part, Table):
            found.append(_table(part))
        elif part.plain.strip():
            style = str(part.style)
            kind = "title" if style == "bold" else _STYLES.get(style, "")
            found.append(Sentence(part.plain.strip(), kind))
    return found


def _table(table: Table) -> PartTable:
    columns = [list(column.cells) for column in table.columns]
    blocks: list[list[PartRow]] = [[]]
    for cells in zip(*columns, strict=True):
        name, *others = map(_plain, cells)
        if name and set(name) == {"-"} and not isinstance(cells[0], Padding):
            blocks.append([])  # a rule between blocks
            continue
        depth = cells[0].left // 2 if isinstance(cells[0], Padding) else 0
        blocks[-1].append(PartRow(name, tuple(others), depth))
    return PartTable(
        tuple(_plain(column.header) for column in table.columns),
        tuple(column.justify == "right" for column in table.columns[1:]),
        tuple(tuple(block) for block in blocks if block),
    )


def _plain(cell: Any) -> str:
    if isinstance(cell, Padding):
        cell = cell.renderable
    return cell.plain if isinstance(cell, Text) else str(cell)
