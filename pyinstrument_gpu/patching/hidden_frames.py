# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of a program's exceptions, as they would be without us: frames of our wrappers are
taken out, and where a wrapper stands in for a function of torch, a frame of that comes in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Begins the name of every file of the package."""

_OURS = tuple(
    f"pyinstrument_gpu.{part}" for part in ("auto", "launch.program", "patching", "syncs")
)

stand_ins: dict[CodeType, Callable[[FrameType], TracebackType | None]] = {}
"""By the code of a wrapper that may do the work of a function of torch instead of calling it: what
makes, from a frame of the wrapper, the entry of a traceback that this function would have left."""


def without_our_frames(error: BaseException) -> None:
    """Take the frames of this package out of the tracebacks of an exception and of those behind
    it."""
    pending: list[BaseException | None] = [error]
    seen = set()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = _without_ours(current.__traceback__)
            pending += [current.__cause__, current.__context__]
            pending += getattr(current, "exceptions", ())  # of a group


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        frame, following = traceback.tb_frame, traceback.tb_next
        if not _is_ours(frame):
            entries.append(traceback)
        elif frame.f_code in stand_ins and not (following and _is_ours(following.tb_frame)):
            entry = None
            with contextlib.suppress(Exception):  # the program's error matters more
                entry = stand_ins[frame.f_code](frame)
            # It may have called the function after all.
            called = following and following.tb_frame.f_code
            if entry is not None and entry.tb_frame.f_code is not called:
                entries.append(entry)
        traceback = following
    result: TracebackType | None = None
    for entry in reversed(entries):
        entry.tb_next = result
        result = entry
    return result


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OURS)
