# SPDX-License-Identifier: Apache-2.0
"""Edits as a unified diff of the user's files, where they are calls that can be read in the source:
other arguments of a call, or a statement behind the imports. All else stays as it is, to the byte.

Files are handled as the bytes of UTF-8 text, in which the columns of Python's syntax trees count.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from pyinstrument_gpu.trial.edits.edit import CallPlace, Edit, Value

_Target: TypeAlias = tuple[Path | None, CallPlace | None]
"""A file, if it is known, and the call in it; None for a statement."""


@dataclass
class Patch:
    """A diff, and what it holds.

    Attributes:
        diff: a unified diff with paths below the working directory; empty for none.
        made: the names of the edits that are in it.
    """

    diff: bytes = b""
    made: list[str] = field(default_factory=list)


def patch_of(
    edits: Sequence[tuple[Edit, Value, Sequence[CallPlace]]],
    original: Callable[[str], Path | None],
    program: Path | None,
    folder: Path,
) -> Patch:
    """Return the edits as a diff.

    Args:
        edits: each with its variant, and where it is made.
        original: the user's file by the path of the one that ran; None for others.
        program: the user's file that is run, for statements; None where it is not known.
        folder: the working directory. Files outside of it are left alone.
    """

    def targets(edit: Edit, value: Value, places: Sequence[CallPlace]) -> list[_Target]:
        if edit.statement(value):
            return [(program, None)]
        return [(original(place.file), place) for place in places if edit.keywords(value)]

    found = Patch()
    texts: dict[Path, bytes] = {}
    for edit, value, places in edits:
        changed, chosen = dict(texts), targets(edit, value, places)
        if chosen and all(_makes(edit, value, target, folder, changed) for target in chosen):
            texts = changed
            found.made.append(edit.name)
    found.diff = b"".join(
        _diff(path.read_bytes(), text, path.relative_to(folder).as_posix())
        for path, text in texts.items()
    )
    return found


def _makes(
    edit: Edit, value: Value, target: _Target, folder: Path, texts: dict[Path, bytes]
) -> bool:
    """Make an edit of a file; return whether it can be made."""
    path, place = target
    if path is None or not path.is_relative_to(folder):
        return False
    source = texts[path] if path in texts else path.read_bytes()
    new = (
        with_statement(source, edit.statement(value))
        if place is None
        else with_arguments(source, place, edit.keywords(value), edit.positions)
    )
    if new is None:
        return False
    texts[path] = new
    return True


def with_arguments(
    source: bytes,
    place: CallPlace,
    keywords: Mapping[str, str],
    positions: Mapping[str, int] = MappingProxyType({}),
) -> bytes | None:
    """Return a program in which the call at a place has these arguments; None where it can't be
    told which call that is, or what it is given.

    Args:
        positions: of arguments that may be given without their names, as which argument.
    """
    tree = _parsed(source)
    calls = [
        node
        for node in ([] if tree is None else ast.walk(tree))
        if isinstance(node, ast.Call)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
        and _name_of(node.func) == place.call
    ]
    if len(calls) != 1 or any(one.arg is None for one in calls[0].keywords):
        return None
    call = calls[0]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return None
    given: dict[str | None, ast.expr] = {one.arg: one.value for one in call.keywords}
    given |= {key: call.args[at] for key, at in positions.items() if at < len(call.args)}
    edits = [(*_range(source, given[key]), new) for key, new in keywords.items() if key in given]
    added = ", ".join(f"{key}={new}" for key, new in keywords.items() if key not in given)
    if added:
        ends = [_range(source, one)[1] for one in (*call.args, *(k.value for k in call.keywords))]
        at = close = _range(source, call)[1] - 1
        if ends:  # behind the last argument, and the parentheses around it
            parentheses = re.match(rb"(\s*\))*", source[max(ends) : close])
            at = max(ends) + (0 if parentheses is None else parentheses.end())
            added = f", {added}"
        edits.append((at, at, added))
    for begin, end, new in sorted(edits, reverse=True):
        source = source[:begin] + new.encode() + source[end:]
    return source if _parsed(source) is not None else None


def with_statement(source: bytes, statement: str) -> bytes | None:
    """Return a program with a statement behind its imports; None where it has no torch by that
    name, or sets the same itself."""
    tree = _parsed(source)
    body = [] if tree is None else tree.body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [
        alias.name
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname is None
    ]
    subject = statement.partition("(")[0].partition(" =")[0]
    if "torch" not in names or subject.encode() in source:
        return None
    lines = source.splitlines(keepends=True)
    at = imports[-1].end_lineno or imports[-1].lineno
    newline = b"\r\n" if lines[at - 1].endswith(b"\r\n") else b"\n"
    return b"".join([*lines[:at], newline, statement.encode(), newline, *lines[at:]])


def _parsed(source: bytes) -> ast.Module | None:
    """A program, if it is UTF-8 text without a mark in front, in which columns are what they say
    that they are."""
    try:
        text = source.decode()
        return None if text.startswith("\ufeff") else ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _range(source: bytes, node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = source.splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return begin, end


def _diff(before: bytes, after: bytes, name: str) -> bytes:
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{name}".encode(),
        f"b/{name}".encode(),
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )
