# SPDX-License-Identifier: Apache-2.0
"""`@gpu_phase("name")`: one span per call.

A call of a generator function or an async function lasts from its first step to its end, also while
it is suspended. Each wrapper has a frame of its own: those of calls that interleave are not taken
for one another. The frame stands in no variable. So it goes with the block, whatever instruction an
exception strikes at, and also where a traceback keeps the wrapper's variables.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.native._C import Phase


def decorate(phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, generator function or async function so that each call is a span of the
    phase."""
    if isinstance(function, type):
        raise TypeError(
            f"{phase!r} can't decorate the class {function.__qualname__}: decorate its methods"
        )
    inspect = _inspect()
    wrap: Callable[[Phase, Callable[..., Any]], Callable[..., Any]] = _wrap_function
    if inspect.iscoroutinefunction(function):
        wrap = _wrap_async
    elif inspect.isasyncgenfunction(function):
        wrap = _wrap_async_generator
    elif inspect.isgeneratorfunction(function):
        wrap = _wrap_generator
    return functools.wraps(function)(wrap(phase, function))


@functools.cache
def _inspect() -> Any:
    # Here, as its import would be a fifth of that of the package.
    with OwnImports():
        import inspect

    return inspect


def _wrap_function(phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with native.frame(phase):
            return function(*args, **kwargs)

    return wrapper


def _wrap_async(phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with native.frame(phase):
            return await function(*args, **kwargs)

    return wrapper


def _wrap_generator(phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with native.frame(phase):
            return (yield from function(*args, **kwargs))

    return wrapper


def _wrap_async_generator(phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
    # There is no `yield from` for these: what is sent and thrown in is passed on by hand.
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        with native.frame(phase):
            try:
                value = await generator.__anext__()
                while True:
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await generator.aclose()
                        raise
                    except BaseException as error:
                        value = await generator.athrow(error)
                    else:
                        value = await generator.asend(sent)
            except StopAsyncIteration:
                return

    return wrapper
