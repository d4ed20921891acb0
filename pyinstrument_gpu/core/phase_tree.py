# SPDX-License-Identifier: Apache-2.0
"""The phases of a table as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import counted

MAX_PATHS = 200
"""Paths that a table shows at most: names with a number in them can make tens of thousands."""


def phase_table(
    headers: Sequence[str],
    rows: Mapping[str, Row],
    sums: Sequence[Row] = (),
    **options: Any,
) -> Iterator[Part]:
    """A table of some paths and of the phases around them, as a tree, and below it how many of its
    lines were left out, if any were.

    `rows` are by path, a phase before those inside it; their names and depths are filled in. A
    phase around one of them that is not among them has a row without cells. `sums` are the rows of
    a second block, `options` those of `table`.
    """
    columns = len(next(iter(rows.values())).cells) if rows else 0
    around = Row("", [""] * columns, emphasis="dim")
    lines: dict[tuple[str, ...], Row] = {}
    for path, row in rows.items():
        names = names_of(path)
        for depth in range(len(names) - 1):
            outer = names[: depth + 1]
            lines.setdefault(
                outer, replace(around, name=outer[-1], depth=depth, path="/".join(outer))
            )
        lines[names] = replace(row, name=names[-1], depth=len(names) - 1, path=path)
    shown = list(lines.values())[:MAX_PATHS]
    yield table(headers, [shown, sums], **options)
    more = len(lines) - len(shown)
    if more > 0:
        yield Sentence(f"... and {counted(more, 'more path')} (export --summary has all)", "warn")
