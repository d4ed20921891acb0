# SPDX-License-Identifier: Apache-2.0
"""The memory that a worker of a DataLoader does not share with other processes.

A forked worker shares the dataset with the process that made it, page by page, until one of them
writes to a page: to read an object of Python writes its count of references. So a list of many
objects is copied page by page into each worker that only reads it
(https://github.com/pytorch/pytorch/issues/13246). An array or a tensor is one object.
"""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

from pyinstrument_gpu.aspects.loader import MOST_TEXT

MUCH_BYTES = 64 << 20
_MANY_ITEMS = 10_000
_ROLLUP = "/proc/self/smaps_rollup"


def private_bytes() -> int | None:
    """Return the memory that is this process's alone; None where the kernel does not tell. Takes
    the kernel some milliseconds per GiB."""
    try:
        with open(_ROLLUP, "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"Private_")]
        return sum(1024 * int(line[1]) for line in lines)
    except (OSError, ValueError, IndexError):
        return None


def largest_field(dataset: Any) -> dict[str, Any] | None:
    """Return the attribute of a dataset that holds most objects in a list, a tuple or a dictionary,
    with the line of its class that sets it; None where there is none of many."""
    fields = {
        name: value
        for name, value in vars(dataset).items()
        if type(value) in (list, tuple, dict, set) and len(value) >= _MANY_ITEMS
    }
    if not fields:
        return None
    name = max(fields, key=lambda one: len(fields[one]))
    found = {"name": name[:MOST_TEXT], "items": len(fields[name])}
    return found | {"kind": type(fields[name]).__name__, **_place(type(dataset), name)}


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
