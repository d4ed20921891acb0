# SPDX-License-Identifier: Apache-2.0
"""Stands for the native module where there is none: the same names, and nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class Phase:
    """See `_C.Phase`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Phase:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: _F, /) -> _F:
        return function

    def begin(self) -> None:
        """Do nothing."""

    end = begin


class _GpuPhase:
    def __call__(self, name: str, /) -> Phase:
        return Phase(name)

    scope = __call__


gpu_phase = _GpuPhase()


def _do_nothing(*_: object, **__: object) -> int:
    """What begins has no token."""
    return 0


set_timing_data = sync_watch = _do_nothing
frame_begin = frame_end = frame_cancel = frame_rename = _do_nothing
step_begin = step_item = step_note_update = step_end = step_drop = _do_nothing


def status() -> dict[str, Any]:
    """Nothing is being recorded."""
    return {"recording": False, "error": None}
