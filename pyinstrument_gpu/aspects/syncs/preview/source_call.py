# SPDX-License-Identifier: Apache-2.0
"""The syntax of the very call that a frame is making, and in which words it reads a number."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import sys
from itertools import islice
from types import CodeType, FrameType

from pyinstrument_gpu.core.sync_kind import SyncKind


class SourceFile:
    """The calls of a file, by where they end, and what its names are assigned.

    Attributes:
        calls: by the line and column of its end, a call and the function around it.
        assigned: by name, and for attributes by their last name, what the file assigns to it.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.calls: dict[tuple[int, int], tuple[ast.Call, ast.AST]] = {}
        self.assigned: dict[str, list[ast.expr]] = {}
        self._assigned_in: dict[int, dict[str, list[ast.expr]]] = {}
        self._visit(tree, tree)

    def assigned_in(self, function: ast.AST, name: str) -> list[ast.expr]:
        """Return what a function, without those inside it, assigns to a local name."""
        return self._assigned_in.get(id(function), {}).get(name, [])

    def _visit(self, node: ast.AST, function: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            function = node
        if isinstance(node, ast.Call) and node.end_lineno and node.end_col_offset is not None:
            self.calls[node.end_lineno, node.end_col_offset] = node, function
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, function)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value, function)
        for child in ast.iter_child_nodes(node):
            self._visit(child, function)

    def _assign(self, target: ast.expr, value: ast.expr, function: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self._assigned_in.setdefault(id(function), {}).setdefault(target.id, []).append(value)
            self.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):
            self.assigned.setdefault(target.attr, []).append(value)


class SourceCall:
    """A call in a source file.

    Attributes:
        node: the call.
        function: the function around it, or the module.
        file: all of the file.
    """

    def __init__(self, node: ast.Call, function: ast.AST, file: SourceFile) -> None:
        self.node = node
        self.function = function
        self.file = file

    @property
    def is_open(self) -> bool:
        """True if there may be keywords that it doesn't show, as in `f(**options)`."""
        return any(given.arg is None for given in self.node.keywords)

    def argument(self, position: int | None, keyword: str) -> ast.expr | None:
        """The expression that an argument is given; None where the call doesn't show it."""
        for given in self.node.keywords:
            if given.arg == keyword:
                return given.value
        arguments = self.node.args
        if position is None or position >= len(arguments):
            return None
        starred = any(isinstance(one, ast.Starred) for one in arguments[: position + 1])
        return None if starred else arguments[position]


def called_name(call: ast.Call) -> str:
    """The last name of what is called; empty where it has none."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def call_of(frame: FrameType) -> SourceCall | None:
    """The call that a frame is making now; None where there is no source to see it in."""
    if sys.version_info < (3, 11) or frame.f_lasti < 0:
        return None  # the position of a call is not known
    key = frame.f_code, frame.f_lasti
    if key not in _calls:
        if len(_calls) > _MAX_CALLS:
            _calls.clear()
        _calls[key] = _find(frame)
    return _calls[key]


_MAX_CALLS = 20_000
_calls: dict[tuple[CodeType, int], SourceCall | None] = {}


def _find(frame: FrameType) -> SourceCall | None:
    positions = frame.f_code.co_positions()  # type: ignore[attr-defined,unused-ignore]
    _, end_line, _, end_column = next(islice(positions, frame.f_lasti // 2, None))
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    file = _parsed("".join(lines))
    found = file.calls.get((end_line, end_column)) if file is not None else None
    return None if found is None or file is None else SourceCall(*found, file)


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> SourceFile | None:
    try:
        return SourceFile(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return None


_READING_CALLS = {
    "item": SyncKind.ITEM,
    "tolist": SyncKind.TOLIST,
    "float": SyncKind.FLOAT,
    "int": SyncKind.INT,
    "range": SyncKind.INT,
    "complex": SyncKind.COMPLEX,
}
_COMPARING = ("bool", "any", "all", "max", "min", "sorted")
# By a part of the instruction's name: these differ between Python versions, and so does where a
# condition is evaluated.
_INSTRUCTIONS = {
    "JUMP": SyncKind.BOOL,  # `if`, `while`, `and`, `assert`, ...
    "TO_BOOL": SyncKind.BOOL,
    "UNARY_NOT": SyncKind.BOOL,
    "COMPARE_OP": SyncKind.BOOL,
    "CONTAINS_OP": SyncKind.COMPARE,
    "FORMAT": SyncKind.FORMAT,
    "MODULO": SyncKind.FORMAT,  # "%d" % x
    "SUBSCR": SyncKind.INT,
    "SLICE": SyncKind.INT,
    "MULTIPLY": SyncKind.INT,  # [0] * x
}
# The arguments of BINARY_OP, which has replaced MODULO in Python 3.11: NB_REMAINDER and
# NB_INPLACE_REMAINDER. Another operator repeats or, from Python 3.14 on, subscripts.
_REMAINDERS = (6, 19)


def kind_of_read(frame: FrameType) -> SyncKind:
    """Return what a frame is doing that reads one number."""
    operation, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    instruction = dis.opname[operation]
    if instruction == "BINARY_OP":
        return SyncKind.FORMAT if argument in _REMAINDERS else SyncKind.INT
    for part, kind in _INSTRUCTIONS.items():
        if part in instruction:
            return kind
    call = call_of(frame)
    if call is None:
        return SyncKind.ITEM
    function = call.node.func
    if isinstance(function, ast.Attribute):
        return _READING_CALLS.get(function.attr, SyncKind.ITEM)
    name = function.id if isinstance(function, ast.Name) else ""
    return _READING_CALLS.get(name, SyncKind.BOOL if name in _COMPARING else SyncKind.ITEM)
