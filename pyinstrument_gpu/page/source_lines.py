# SPDX-License-Identifier: Apache-2.0
"""A line of source and its neighbours, where the file is at hand and still the one that ran.

The path comes from a run file, which a stranger may have made, and the page may be passed on. So
nothing is read but regular files with a suffix of Python, and no more than a few lines of them.
"""

from __future__ import annotations

import os
import stat
import tokenize
from dataclasses import dataclass

_SUFFIXES = (".py", ".pyw")
_MAX_BYTES = 4 << 20
_MAX_COLUMNS = 200
_AROUND = 1


@dataclass(frozen=True)
class SourceContext:
    """A few lines of a file.

    Attributes:
        first: the number of the first of them.
        lines: their text, without line ends.
        missing: why there are none; empty where there are.
    """

    first: int = 0
    lines: tuple[str, ...] = ()
    missing: str = ""


def source_context(file: str, line: int, began_realtime_ns: int | None) -> SourceContext:
    """The line with one before and one behind it.

    Args:
        file: path of the file, as the run has it.
        line: its number, from 1.
        began_realtime_ns: when the run began, by the wall clock. A file that was changed since then
            may say something else than what ran.
    """
    if not file.endswith(_SUFFIXES) or not os.path.isabs(file):
        return SourceContext(missing="not a file of Python")
    try:
        with open(file, "rb", opener=_open_at_once) as source:
            found = os.fstat(source.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
                return SourceContext(missing="not a source file")
            if began_realtime_ns is None or found.st_mtime_ns > began_realtime_ns:
                return SourceContext(missing="the file was changed after the run began")
            encoding, _ = tokenize.detect_encoding(source.readline)
            source.seek(0)
            lines = source.read(_MAX_BYTES).decode(encoding, "replace").splitlines()
    except (OSError, SyntaxError, ValueError):
        return SourceContext(missing="the file was not found")
    if not 1 <= line <= len(lines):
        return SourceContext(missing="the file has no such line")
    first = max(1, line - _AROUND)
    shown = lines[first - 1 : line + _AROUND]
    return SourceContext(first, tuple(text.expandtabs()[:_MAX_COLUMNS] for text in shown))


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end where the path is a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
