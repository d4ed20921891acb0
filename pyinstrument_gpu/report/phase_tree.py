# SPDX-License-Identifier: Apache-2.0
"""The phases of a run as a tree."""

from __future__ import annotations

from collections.abc import Sequence

from pyinstrument_gpu.model.run_data import RunData


def tree(run: RunData, paths: Sequence[int]) -> list[tuple[int, int]]:
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
