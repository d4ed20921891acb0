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

    def end(self) -> None:
        """Do nothing."""


class _GpuPhase:
    def __call__(self, name: str, /) -> Phase:
        return Phase(name)

    scope = __call__


gpu_phase = _GpuPhase()


def frame_begin(phase: Phase, /) -> int:
    """No frame."""
    return 0


def frame_end(phase: Phase, token: int, /) -> None:
    """Do nothing."""


frame_cancel = frame_end


def begin_activities() -> None:
    """Do nothing."""


def in_activity() -> bool:
    """So no automatic phase has anything to do."""
    return True


def set_in_activity(on: bool, /) -> None:
    """Do nothing."""


def step_begin() -> int:
    """Nothing is being recorded."""
    return 0


def step_end(token: int, complete: bool, at_mark: bool = False) -> None:
    """Do nothing."""


def step_item(token: int, samples: float) -> None:
    """Do nothing."""


def step_mark(token: int) -> None:
    """Do nothing."""


def sync_watch(on: bool, as_if: bool) -> None:
    """Do nothing."""


def step_drop(token: int) -> None:
    """Do nothing."""


def status() -> dict[str, Any]:
    """Nothing is being recorded."""
    return {"recording": False, "error": None}
