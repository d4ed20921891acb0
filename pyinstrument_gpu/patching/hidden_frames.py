# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of a program's exceptions, as they would be without this package: the frames of the
launcher and of the preview are taken out."""

from __future__ import annotations

import os
from types import FrameType, TracebackType

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Begins the name of every file of the package."""

_OURS = tuple(
    f"pyinstrument_gpu.{part}" for part in ("auto", "launch.program", "patching", "syncs")
)


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
        entries.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        if not _is_ours(entry.tb_frame):
            entry.tb_next = result
            result = entry
    return result


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OURS)
