# SPDX-License-Identifier: Apache-2.0
"""The phases of a table as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import Row, counted

MAX_PATHS = 200
"""Paths that a table shows at most: names with a number in them can make tens of thousands."""


def phase_rows(run: RunData, rows: Mapping[int, Row]) -> tuple[list[Row], list[Text]]:
    """The rows of some paths and of the phases around them, as a tree.

    Args:
        rows: by path (an index into `Run.paths`); their names and depths are filled in. A phase
            that is not among them, but around one that is, has a row without cells.

    Returns:
        The rows, `MAX_PATHS` at most, and the line below the table that says how many of them it
        leaves out, if it does.
    """
    paths = tree(run, rows)
    columns = len(next(iter(rows.values())).cells) if rows else 0
    around = Row("", [""] * columns, style="dim")
    shown = [
        replace(rows.get(path, around), name=run.names[run.path_names[path]], depth=depth)
        for path, depth in paths[:MAX_PATHS]
    ]
    more = len(paths) - MAX_PATHS
    if more <= 0:
        return shown, []
    text = f"... and {counted(more, 'more path')} (export --summary has all)"
    return shown, [Text(text, "yellow")]


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
