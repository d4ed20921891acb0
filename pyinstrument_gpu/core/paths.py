# SPDX-License-Identifier: Apache-2.0
"""Paths of phases as text, and where not every text is welcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

OTHER = "other"
"""The label of all paths beyond the first so many."""

_MOST_CHARACTERS = 1 << 25
"""In all paths together: with 65,535 paths, 500 in each."""
_NAME_CHARACTERS = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


def join_paths(
    names: Sequence[str], parents: NDArray[np.int64], last_names: NDArray[np.uint32]
) -> tuple[str, ...]:
    """The texts of paths, as `Run.paths` describes them; arguments as the attributes of `Run`."""
    escaped = [name.replace("%", "%25").replace("/", "%2F") for name in names]
    paths: list[str] = []
    room = _MOST_CHARACTERS
    for parent, name in zip(parents.tolist(), last_names.tolist(), strict=True):
        path = escaped[name]
        if parent >= 0:
            length = len(paths[parent]) + len(path)
            if length <= room:
                path = f"{paths[parent]}/{path}"
            else:  # no path that is written out begins so
                path = f"%path{len(paths)}/{path[:_NAME_CHARACTERS]}"
            room -= min(room, length)
        paths.append(path)
    return tuple(paths)


def names_of(path: str) -> tuple[str, ...]:
    """The names in the text of a path, from the outermost in."""
    return tuple(name.replace("%2F", "/").replace("%25", "%") for name in path.split("/"))


def in_tree_order(parents: NDArray[np.int64], chosen: Iterable[int]) -> list[int]:
    """Return some paths, by index, in order of appearance, and each before those inside it."""
    paths = set(chosen)
    children: dict[int, set[int]] = {}
    for path in paths:
        while path >= 0:
            parent = int(parents[path])
            siblings = children.setdefault(parent, set())
            if path in siblings:
                break
            siblings.add(path)
            path = parent
    found = []
    pending = sorted(children.get(-1, ()), reverse=True)
    while pending:
        path = pending.pop()
        if path in paths:
            found.append(path)
        pending += sorted(children.get(path, ()), reverse=True)
    return found


def without_surrogates(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def labels_of(paths: Sequence[str], most: int) -> list[str]:
    """A label for each path, of which at most `most` differ beside `OTHER`.

    The first paths of a run keep their own, so a path never changes its label.
    """
    own = [without_surrogates(path) for path in paths[:most]]
    return own + [OTHER] * (len(paths) - len(own))


def without_indices(name: str) -> str:
    """The name with `*` for each of its parts that is a number."""
    parts = name.split(".")
    return ".".join("*" if part.isascii() and part.isdecimal() else part for part in parts)
