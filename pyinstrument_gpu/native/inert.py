# SPDX-License-Identifier: Apache-2.0
"""Stands for the native module where there is none: the same names, and nothing is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
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


def _do_nothing(*_: object, **__: object) -> None:
    pass


sync_watch = sync_placed = owner = release = count_no_memory = _do_nothing


class StepBlock:
    """See `_C.StepBlock`."""

    _samples = math.nan

    def __enter__(self) -> StepBlock:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def iterate_steps(iterable: Iterable[_T], *_: object) -> Iterator[_T]:
    """Iterate, and no more."""
    return iter(iterable)


def status() -> dict[str, Any]:
    """Return the status of a process that records nothing."""
    return {"recording": False, "error": None}
