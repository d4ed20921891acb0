# SPDX-License-Identifier: Apache-2.0
"""The memory that a forked worker of a DataLoader does not share with the process that forked it.

A forked worker shares the dataset with that process, page by page, until one of them writes to a
page: to read an object of Python writes its count of references. So a list of many objects is
copied page by page into each worker that only reads it
(https://github.com/pytorch/pytorch/issues/13246). An array or a tensor is one object.
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import islice
from typing import Any

from pyinstrument_gpu.aspects.loader import MOST_TEXT

MUCH_BYTES = 64 << 20
_MANY_ITEMS = 10_000
_SAMPLE = 100
_POINTER_BYTES = 8
_MOST_WRAPPED = 8
_ROLLUP = "/proc/self/smaps_rollup"


def private_bytes() -> int | None:
    """Return the written memory that is this process's alone; None where the kernel does not tell.
    Takes the kernel some 15 ms per GiB."""
    try:
        with open(_ROLLUP, "rb") as file:
            return next(1024 * int(one.split()[1]) for one in file if one.startswith(b"Private_D"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def largest_field(dataset: Any) -> dict[str, Any] | None:
    """Return the attribute of a dataset, or of one that it wraps, whose list, tuple, set or
    dictionary has the largest objects in all, by some of them, with the line of its class that sets
    it; None where none is large."""
    found: list[tuple[int, dict[str, Any]]] = []
    for _ in range(_MOST_WRAPPED):
        fields = vars(dataset)
        for name, value in fields.items():
            if type(value) in (list, tuple, dict, set) and len(value) >= _MANY_ITEMS:
                size = len(value) * (_POINTER_BYTES + _mean_bytes(value))
                known = {
                    "dataset": type(dataset).__qualname__[:MOST_TEXT],
                    "name": name[:MOST_TEXT],
                }
                known |= {"items": len(value), "kind": type(value).__name__, "bytes": size}
                found.append((size, known | _place(type(dataset), name)))
        if "dataset" not in fields:  # as Subset has it
            break
        dataset = fields["dataset"]
    size, known = max(found, key=lambda one: one[0], default=(0, {}))
    return known if size >= MUCH_BYTES else None


def _mean_bytes(items: Any) -> int:
    """Return the size of an item, with what it holds directly, by the first ones."""
    values = items.values() if type(items) is dict else items
    sizes = [
        sys.getsizeof(one) + sum(map(sys.getsizeof, one.values() if type(one) is dict else one))
        if type(one) in (dict, list, tuple)
        else sys.getsizeof(one)
        for one in islice(values, _SAMPLE)
    ]
    return sum(sizes) // len(sizes)


def _place(owner: type, attribute: str) -> dict[str, Any]:
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    unknown = {"file": "", "line": 0}
    constructor = vars(owner).get("__init__")
    if file is None or constructor is None:
        return unknown
    lines, first = inspect.getsourcelines(constructor)
    tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if f"self.{attribute}" in map(ast.unparse, targets):
                return {"file": file[-MOST_TEXT:], "line": first + node.lineno - 1}
    return unknown
