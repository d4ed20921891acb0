# SPDX-License-Identifier: Apache-2.0
"""Loops in which a block of code is marked, one way or another: what is timed.

The loops are plain statements, so that nothing but the way itself differs. Each way has a copy of
the loops' code of its own: the interpreter specialises code for what it calls, and a loop that two
ways shared would be specialised for neither.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

DEPTH = 3
"""How deep the nested loops nest."""

MakeContext = Callable[[str], AbstractContextManager[Any]]


def _nothing() -> None:
    pass


def _no_step(model: object) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True)
class Way:
    """One way to mark a block of code, set up and ready.

    Attributes:
        flat: marks nothing so many times, one after the other.
        nested: does so so many times, each `DEPTH` deep.
        phase: marks a block under a name; None where that is not possible.
        batch: what has to stand around a loop, such as a recording. It is not timed.
        settle: empties what the loops before have filled. Called inside a batch, not timed.
        step: what has to stand around a training step of a model. It is timed.
        in_c: whether the loops are none of Python's.
    """

    flat: Callable[[int], object]
    nested: Callable[[int], object] | None
    phase: MakeContext | None
    batch: Callable[[], AbstractContextManager[object]] = nullcontext
    settle: Callable[[], object] = _nothing
    step: Callable[[object], AbstractContextManager[object]] = _no_step
    in_c: bool = False


def fresh(make: MakeContext, **more: Any) -> Way:
    """A context manager that is made for each use: `with make("x"): pass`."""

    def flat(uses: int) -> None:
        for _ in range(uses):
            with make("x"):
                pass

    def nested(uses: int) -> None:
        for _ in range(uses):
            with make("a"), make("b"), make("c"):
                pass

    return Way(_own_code(flat), _own_code(nested), make, **more)


def kept(make: MakeContext, **more: Any) -> Way:
    """Context managers that are made once and used again: `with x: pass`."""
    x, a, b, c = (make(name) for name in ("x", "a", "b", "c"))
    made: dict[str, AbstractContextManager[Any]] = {}

    def flat(uses: int) -> None:
        for _ in range(uses):
            with x:
                pass

    def nested(uses: int) -> None:
        for _ in range(uses):
            with a, b, c:
                pass

    def phase(name: str) -> AbstractContextManager[Any]:
        if name not in made:
            made[name] = make(name)
        return made[name]

    return Way(_own_code(flat), _own_code(nested), phase, **more)


def empty() -> Way:
    """The loops alone."""

    def flat(uses: int) -> None:
        for _ in range(uses):
            pass

    return Way(_own_code(flat), _own_code(flat), None)


def _own_code(loop: Callable[[int], None]) -> Callable[[int], None]:
    assert isinstance(loop, FunctionType)
    code = loop.__code__.replace()
    return FunctionType(code, loop.__globals__, loop.__name__, None, loop.__closure__)
