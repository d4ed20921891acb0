# SPDX-License-Identifier: Apache-2.0
"""Edits as a unified diff of the user's files, where they are calls that can be read in the source:
other arguments of a call, or a statement behind the imports. All else stays as it is, to the byte.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pyinstrument_gpu.trial.edits.edit import CallPlace, Edit, Value

_Target: TypeAlias = tuple[Path | None, CallPlace | None]
"""A file, if it is known, and the call in it; None for a statement."""


@dataclass
class Patch:
    """A diff, and what it holds.

    Attributes:
        diff: a unified diff with paths below the working directory; "" for none.
        made: the names of the edits that are in it.
    """

    diff: str = ""
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
        folder: the working directory.
    """

    def targets(edit: Edit, value: Value, places: Sequence[CallPlace]) -> list[_Target]:
        if edit.statement(value):
            return [(program, None)]
        return [(original(place.file), place) for place in places if edit.keywords(value)]

    found = Patch()
    texts: dict[Path, str] = {}
    for edit, value, places in edits:
        changed, chosen = dict(texts), targets(edit, value, places)
        if chosen and all(_makes(edit, value, target, changed) for target in chosen):
            texts = changed
            found.made.append(edit.name)
    found.diff = "".join(
        _diff(path.read_bytes().decode(), text, path.relative_to(folder).as_posix())
        for path, text in texts.items()
        if path.is_relative_to(folder)
    )
    return found


def _makes(edit: Edit, value: Value, target: _Target, texts: dict[Path, str]) -> bool:
    """Make an edit of a file; return whether it can be made."""
    path, place = target
    if path is None:
        return False
    source = texts[path] if path in texts else path.read_bytes().decode()
    new = (
        with_statement(source, edit.statement(value))
        if place is None
        else with_arguments(source, place, edit.keywords(value))
    )
    if new is None:
        return False
    texts[path] = new
    return True


def with_arguments(source: str, place: CallPlace, keywords: Mapping[str, str]) -> str | None:
    """Return a program in which the call at a place has these keyword arguments; None where it
    can't be told which call that is, or what it is given."""
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
        and _name_of(node.func) == place.call
    ]
    if len(calls) != 1 or any(one.arg is None for one in calls[0].keywords):
        return None
    call = calls[0]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return None
    given = {one.arg: one.value for one in call.keywords}
    edits: list[tuple[int, int, str]] = []
    added = []
    for key, text in keywords.items():
        if key in given:
            begin, end = _range(source, given[key])
            edits.append((begin, end, text))
        else:
            added.append(f"{key}={text}")
    if added:
        last = [*call.args, *(one.value for one in call.keywords)]
        if last:
            place_at = max(_range(source, one)[1] for one in last)
            # Of an argument in parentheses, the end is behind these.
            close = _range(source, call)[1] - 1
            parentheses = re.match(r"(\s*\))*", source[place_at:close])
            place_at += 0 if parentheses is None else parentheses.end()
            edits.append((place_at, place_at, ", " + ", ".join(added)))
        else:
            close = _range(source, call)[1] - 1
            edits.append((close, close, ", ".join(added)))
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source if _parses(source) else None


def with_statement(source: str, statement: str) -> str | None:
    """Return a program with a statement behind its imports; None where it has no torch by that
    name, or sets the same itself."""
    body = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    has_torch = any(
        alias.name == "torch" and alias.asname is None
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
    )
    subject = statement.partition("(")[0].partition(" =")[0]
    if not has_torch or subject in source:
        return None
    lines = source.splitlines(keepends=True)
    at = imports[-1].end_lineno or imports[-1].lineno
    newline = "\r\n" if lines[at - 1].endswith("\r\n") else "\n"
    return "".join([*lines[:at], f"{newline}{statement}{newline}", *lines[at:]])


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _range(source: str, node: ast.expr) -> tuple[int, int]:
    """The place of a node in the text. Its columns are bytes."""
    lines = source.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        before = sum(map(len, lines[: line - 1]))
        return before + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None and node.end_col_offset is not None
    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    text = ""
    for line in lines:
        text += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return text
