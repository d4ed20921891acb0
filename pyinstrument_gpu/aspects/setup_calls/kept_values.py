# SPDX-License-Identifier: Apache-2.0
"""The lines of a loop that keep something of each pass, by its source: `total = total + loss`,
`outputs.append(output)`. Where memory grows from step to step, one of them may be why.

What is kept as a number or as text is left out, as is a name that the loop empties or binds anew.
The source says no more than that something is added to: not that it is large.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 200_000
"""A larger file is not parsed: that takes some 10 ms for a thousand lines."""
_ADD = ("append", "appendleft", "add", "extend")
_PLAIN_CALLS = (
    "float",
    "int",
    "bool",
    "str",
    "len",
    "round",
    "item",
    "tolist",
    "sum",
    "min",
    "max",
)
_PLAIN = (ast.Constant, ast.JoinedStr, ast.Compare)
_Loop = ast.For | ast.AsyncFor | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class KeptValue(NamedTuple):
    """A line that adds to a name, or to an attribute."""

    name: str
    line: int


def kept_values(file: str, line: int) -> list[KeptValue] | None:
    """Return the lines that keep something in the innermost loop around a line, or without a loop
    in the function around it; None where there is no loop. By the file as it is now.

    Raises:
        OSError, SyntaxError, ValueError: the file can't be read, or is no Python.
    """
    path = Path(file)
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{file} is too large")
    around = [
        node
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, _Loop | _Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)
    if not isinstance(inner, _Loop):
        return None
    nodes = [*_inside(inner)]
    begun = {name for node in nodes for name in _begins(node)}
    found = (kept for node in nodes for kept in _keeps(node))
    return [kept for kept in found if kept.name not in begun]


def _inside(loop: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a loop, in their order, without those of functions that it defines."""
    for child in ast.iter_child_nodes(loop):
        if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from _inside(child)


def _keeps(node: ast.AST) -> Iterator[KeptValue]:
    match node:
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as target, op=ast.Add()):
            if not _is_plain(node.value):
                yield KeptValue(ast.unparse(target), node.lineno)
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add()) as value):
            name, sides = ast.unparse(target), [value.left, value.right]
            others = [one for one in sides if ast.unparse(one) != name]
            if len(others) == 1 and not _is_plain(others[0]):
                yield KeptValue(name, node.lineno)
        case ast.Call(func=ast.Attribute(attr=attribute, value=value), args=[argument]):
            is_name = isinstance(value, ast.Name | ast.Attribute)
            if attribute in _ADD and is_name and not _is_plain(argument):
                yield KeptValue(ast.unparse(value), node.lineno)


def _begins(node: ast.AST) -> Iterator[str]:
    """Yield the names that begin anew there."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                name = ast.unparse(target)
                sides = (value.left, value.right) if isinstance(value, ast.BinOp) else ()
                if name not in map(ast.unparse, sides):
                    yield name
        case ast.Call(func=ast.Attribute(attr="clear" | "pop" | "popleft", value=value)):
            yield ast.unparse(value)
        case ast.Delete(targets=targets):
            for target in targets:
                yield ast.unparse(target.value if isinstance(target, ast.Subscript) else target)


def _is_plain(value: ast.expr) -> bool:
    """Return whether a value is a number or text: it keeps no tensor."""
    match value:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in _PLAIN_CALLS
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) or _is_plain(right)
        case ast.Tuple(elts=values) | ast.List(elts=values):
            return any(map(_is_plain, values))
    return isinstance(value, _PLAIN)
