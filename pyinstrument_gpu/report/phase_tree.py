# SPDX-License-Identifier: Apache-2.0
"""The phases of a table as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import Row, counted, table

MAX_PATHS = 200
"""Paths that a table shows at most: names with a number in them can make tens of thousands."""


def phase_table(
    run: RunData,
    headers: Sequence[str],
    rows: Mapping[int, Row],
    width: int,
    sums: Sequence[Row] = (),
) -> Iterator[Text | Table]:
    """A table of some paths and of the phases around them, as a tree, and below it how many of its
    lines were left out, if any were.

    The names and depths of `rows`, by path, are filled in. A phase around one of them that is not
    among them has a row without cells. `sums` are the rows of a second block.
    """
    paths = tree(run, rows)
    columns = len(next(iter(rows.values())).cells) if rows else 0
    around = Row("", [""] * columns, style="dim")
    shown = [
        replace(rows.get(path, around), name=run.names[run.path_names[path]], depth=depth)
        for path, depth in paths[:MAX_PATHS]
    ]
    yield table(headers, [shown, sums], width)
    more = len(paths) - MAX_PATHS
    if more > 0:
        yield Text(f"... and {counted(more, 'more path')} (export --summary has all)", "yellow")


def tree(run: RunData, paths: Iterable[int]) -> list[tuple[int, int]]:
    """The paths and those around them as (path, depth), in order of appearance, children inside."""
    children: dict[int, set[int]] = {}
    for path in paths:
        while path >= 0:
            parent = int(run.path_parents[path])
            siblings = children.setdefault(parent, set())
            if path in siblings:
                break
            siblings.add(path)
            path = parent
    rows = []
    pending = [(path, 0) for path in sorted(children.get(-1, ()), reverse=True)]
    while pending:
        path, depth = pending.pop()
        rows.append((path, depth))
        pending += [(child, depth + 1) for child in sorted(children.get(path, ()), reverse=True)]
    return rows
