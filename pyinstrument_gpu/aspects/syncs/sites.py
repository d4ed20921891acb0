# SPDX-License-Identifier: Apache-2.0
"""The sites of waits: which line of the program a call comes from, and which line of a library it
called."""

from __future__ import annotations

import os
from types import FrameType

from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.program_frames import cell_of, frames_of_call

_sites: dict[tuple[str | int, ...], int | None] = {}
os.register_at_fork(after_in_child=_sites.clear)


def site_of(frame: FrameType, kind: SyncKind, flags: int) -> int | None:
    """The site of a wait in the call that a frame makes; None when there are too many."""
    program, library = frames_of_call(frame)
    inner = () if library is None else _line_of(library)
    key = (*_line_of(program), kind | flags, *inner)
    if key not in _sites:
        _sites[key] = _new_site(*_line_of(program), kind | flags, *inner)
    return _sites[key]


def site_of_class(frame: FrameType, kind: SyncKind, flags: int, name: str) -> int | None:
    """The site where the program has tensors of a class; None when there are too many."""
    program, _ = frames_of_call(frame)
    file, line, _ = _line_of(program)
    key = (file, line, name, kind | flags)
    if key not in _sites:
        _sites[key] = _new_site(*key)
    return _sites[key]


def _line_of(frame: FrameType) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _new_site(file: str, line: int, function: str, kind: int, *library: str | int) -> int | None:
    file = cell_of(file) or file
    if library:
        inner_file, inner_line, inner_function = library
        function = "\0".join((function, str(inner_line), str(inner_function), str(inner_file)))
    # Names of files may hold what is no Unicode.
    texts = (text.encode("utf-8", "replace").decode() for text in (file, function))
    return native.sync_site(next(texts), line, next(texts), kind)
