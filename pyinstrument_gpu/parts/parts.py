# SPDX-License-Identifier: Apache-2.0
"""Parts of a report: sentences, tables and curves that know nothing of where they are shown.

The terminal (console.py), the page and `watch` each set the same parts in their own way, so none of
them has to read what another one made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from pyinstrument_gpu.parts.words import printable

Kind: TypeAlias = Literal["", "title", "note", "warn", "alert", "failure"]
"""How a sentence is meant: as plain text, the title of what follows, a remark that can be skipped,
something that the reader has to know, a problem, or an error that ended something."""


Emphasis: TypeAlias = Literal["", "bold", "dim"]

NOTES = ""
"""The header of the notes of a table."""


@dataclass(frozen=True)
class Sentence:
    """A line of text; an empty one separates."""

    text: str = ""
    kind: Kind = ""


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        name: what it is about, `depth` levels inside other rows.
        cells: numbers, one for each column behind the name.
        note: a remark behind the cells, aligned left.
        share: of a whole, from 0 to 1, which a bar can show; None unknown or none.
        emphasis: of the whole line.
        path: of the phase that it is about.
    """

    name: str
    cells: Sequence[str]
    depth: int = 0
    note: str = ""
    share: float | None = None
    emphasis: Emphasis = ""
    path: str = ""


@dataclass(frozen=True)
class Table:
    """Names and numbers, in blocks of rows between which a line is drawn.

    Attributes:
        headers: of the name and of each cell; all empty for a table without.
        whole_names: whether names, which people copy, must not wrap.
        wide_only: headers of columns that go first where there is little room; `NOTES` are those
            of the notes.
        short: what some headers become where there is little room.
        bars: whether shares are shown as bars also where there is little room.
    """

    headers: Sequence[str]
    blocks: Sequence[Sequence[Row]]
    whole_names: bool = False
    wide_only: Sequence[str] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    bars: bool = False

    @property
    def has_notes(self) -> bool:
        return any(row.note for block in self.blocks for row in block)


Part: TypeAlias = Sentence | Table


def table(headers: Sequence[str], blocks: Sequence[Sequence[Row]], **options: Any) -> Table:
    """A table of those of the blocks that have rows; `headers` may be empty, `options` are further
    attributes."""
    blocks = [block for block in blocks if block]
    return Table(headers or [""] * (1 + len(blocks[0][0].cells)), blocks, **options)


def without_blanks(parts: Iterable[Part]) -> list[Part]:
    """The parts without the empty lines between them."""
    return [part for part in parts if isinstance(part, Table) or part.text.strip()]


class Curves(NamedTuple):
    """Curves of values over one axis.

    Attributes:
        title: what they are.
        data: what the script draws: the names of the axis and of the curves, their unit, the places
            on the axis, ascending, and for each curve a value at each of them; None where it is
            unknown or not finite.
        remark: what the picture does not show.
    """

    title: str
    data: Mapping[str, Any]
    remark: str = ""


class FlameBox(NamedTuple):
    """A box of a flame graph.

    Attributes:
        name: what it is.
        tip: its numbers, in words.
        depth: how many boxes it lies in.
        left, share: where it begins and how wide it is, in parts of the whole.
    """

    name: str
    tip: str
    depth: int
    left: float
    share: float


class Flame(NamedTuple):
    """A flame graph: who called whom, and for how long.

    Attributes:
        title: of what.
        samples: how many it is made of.
        boxes: those around others come before them.
    """

    title: str
    samples: int
    boxes: Sequence[FlameBox]


def curve_data(
    axis: str, unit: str, x: Iterable[int], curves: Mapping[str, Iterable[float]]
) -> dict[str, Any]:
    """The data of curves of these names, over the steps or updates `x`."""
    return {
        "x_name": axis,
        "unit": unit,
        "names": [*map(printable, curves)],
        "x": [*map(int, x)],
        "y": [[*map(_finite, of)] for of in curves.values()],
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None
