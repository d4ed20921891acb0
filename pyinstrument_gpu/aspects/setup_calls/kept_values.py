# SPDX-License-Identifier: Apache-2.0
"""The lines of a loop that keep something of each pass, by its source: `total = total + loss`,
`outputs.append(output)`. Where memory grows from step to step, one of them may be why.

What is kept as a number or as text is left out, as is a name that the loop empties or binds anew.
The source says no more than that something is added to: not that it is large.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 200_000
"""A larger file is not parsed: that takes some 10 ms for a thousand lines."""
_ADD = ("append", "appendleft", "add", "extend")
_EMPTY = ("clear", "pop", "popleft", "remove", "discard")
_NUMBERS = ("item", "tolist", "size", "numel", "dim", "time", "perf_counter", "monotonic")
"""Methods and functions that give numbers. Tensors have others of the same names as builtins."""
_BUILTINS = ("float", "int", "bool", "str", "len", "round", "sum", "min", "max", "repr")
_NUMBER_FIELDS = ("shape", "ndim", "nbytes", "itemsize")
_PLAIN = (ast.Constant, ast.JoinedStr, ast.Compare)
_Loop = ast.For | ast.AsyncFor | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class KeptValue(NamedTuple):
    """A line that adds to a name, or to an attribute."""

    name: str
    line: int


def kept_values(file: str, line: int) -> list[KeptValue] | None:
    """Return the lines that keep something in the innermost loop around a line; None where there is
    none in its function. By the file as it is now.

    Raises:
        Exception: the file can't be read, is no Python, or is nested too deeply for the parser.
    """
    path = Path(file)
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{file} is too large")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the program are its own
        tree = ast.parse(path.read_bytes(), file)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Loop | _Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)
    if not isinstance(inner, _Loop):
        return None
    nodes = [*_inside(inner)]
    begun = {name for node in nodes for name in _begins(node)}
    found = (kept for node in nodes for kept in _keeps(node))
    return sorted((kept for kept in found if kept.name not in begun), key=lambda one: one.line)


def _inside(loop: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a loop, without those of functions that it defines."""
    pending = [loop]
    while pending:
        for child in ast.iter_child_nodes(pending.pop()):
            if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
                yield child
                pending.append(child)


def _name(node: ast.AST) -> str | None:
    """Return a name, or one with attributes, as it is written; None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _keeps(node: ast.AST) -> Iterator[KeptValue]:
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            if (name := _name(target)) is not None and not _is_plain(value):
                yield KeptValue(name, node.lineno)
        case ast.Assign(targets=[target], value=ast.BinOp() as value):
            added = [*_added(value)]
            name = _name(target)
            others = [one for one in added if _name(one) != name]
            is_one = len(others) == len(added) - 1
            if name is not None and is_one and not all(map(_is_plain, others)):
                yield KeptValue(name, node.lineno)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attribute, value=value), args=[one])):
            # Of `losses[name].append(loss)` it is the name.
            owner = value.value if isinstance(value, ast.Subscript) else value
            if attribute in _ADD and (name := _name(owner)) and not _is_plain(one):
                yield KeptValue(name, node.lineno)


def _added(value: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum, from the last to the first."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        yield value.right
        value = value.left
    yield value


def _begins(node: ast.AST) -> Iterator[str]:
    """Yield the names that begin anew there, or are made smaller."""
    match node:
        case ast.Assign(targets=[target], value=ast.BinOp() as value):
            if (name := _name(target)) and name not in map(_name, _added(value)):
                yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _bound(target)
        case ast.AnnAssign(target=target, value=ast.expr()) | ast.NamedExpr(target=target):
            yield from _bound(target)
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _bound(target)
        case ast.comprehension(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            yield from _bound(target)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.Call(func=ast.Attribute(attr=attribute, value=value)) if attribute in _EMPTY:
            if (name := _name(value)) is not None:
                yield name
        case ast.Delete(targets=targets):
            for target in targets:
                yield from _bound(target.value if isinstance(target, ast.Subscript) else target)


def _bound(target: ast.expr) -> Iterator[str]:
    """The names that a target binds; of a slice, the list that it is replaced in."""
    match target:
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for one in targets:
                yield from _bound(one)
        case ast.Starred(value=value):
            yield from _bound(value)
        case ast.Subscript(value=value, slice=ast.Slice()):
            yield from _bound(value)
        case _ if (name := _name(target)) is not None:
            yield name


def _is_plain(value: ast.expr) -> bool:
    """Return whether a value is a number or text, and so keeps no tensor. A bare name may be."""
    match value:
        case ast.Call(func=ast.Name(id=name)):
            return name in _BUILTINS or name in _NUMBERS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _NUMBERS
        case ast.Attribute(attr=name):
            return name in _NUMBER_FIELDS
        case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return _is_plain(inner)  # as of `x.shape[0]`
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            is_sum_of_plain = _is_plain(left) and _is_plain(right)
            return is_sum_of_plain or _is_measured(left) or _is_measured(right)
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
        case ast.Tuple(elts=values) | ast.List(elts=values):
            return any(map(_is_measured, values)) or all(map(_is_plain, values))
    return isinstance(value, _PLAIN)


def _is_measured(value: ast.expr) -> bool:
    """Return whether a value is plain, and not because it stands there: what goes with it in a sum,
    or a tuple, is likely plain as well."""
    return _is_plain(value) and not isinstance(value, _PLAIN)
