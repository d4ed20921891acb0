# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of a program's exceptions, as they would be without us: frames of our wrappers are
taken out, and where a wrapper stands in for a function of torch, a frame of that comes in."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, TracebackType
from typing import NamedTuple

_OURS = tuple(f"pyinstrument_gpu.{part}" for part in ("auto", "overrides", "program", "syncs"))


class StandIn(NamedTuple):
    """A wrapper that does the work of a function of torch instead of calling it.

    Attributes:
        code: that function's code.
        make_entry: makes an entry of a traceback as that function would have left it. Not kept
            ready: its frame would keep alive all that was called at that time.
    """

    code: CodeType
    make_entry: Callable[[], TracebackType | None]


stand_ins: dict[CodeType, StandIn] = {}
"""By the wrapper's code."""


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


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        following = traceback.tb_next
        code = traceback.tb_frame.f_code
        if not str(traceback.tb_frame.f_globals.get("__name__")).startswith(_OURS):
            entries.append(traceback)
        elif code in stand_ins:
            stand_in = stand_ins[code]
            # It may have called the function after all.
            if following is not None and following.tb_frame.f_code is not stand_in.code:
                entries += filter(None, [stand_in.make_entry()])
        traceback = following
    result: TracebackType | None = None
    for entry in reversed(entries):
        entry.tb_next = result
        result = entry
    return result
