# SPDX-License-Identifier: Apache-2.0
"""Phases inside torch.compile.

Dynamo cannot look into a C function. It is told to take `nullcontext()` for a phase when it traces
one: the graph does not break, nothing is recorded there. Telling it means importing it, which takes
more than a second; so that is done only when the program imports it anyway.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported


@functools.cache
def register_when_imported() -> None:
    """Register now if Dynamo is loaded, else when it will be. Once: `%reload_ext` imports the
    package again."""
    when_imported("torch._dynamo", _register)


def leave_out(*modules: ModuleType) -> None:
    """Have Dynamo compile no call of a function of these modules by itself, nor what it calls, as
    it does where a graph breaks there and the call is made. Traced they are as before."""
    for module in modules:
        skip(_codes(vars(module).values(), module.__name__))


def skip(codes: Iterable[CodeType]) -> None:
    """The same, for functions with this code."""
    with contextlib.suppress(Exception):  # all that is lost is time, and a warning of Dynamo's
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )

        strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        for code in codes:
            set_code_exec_strategy(code, strategy)


def _codes(things: Iterable[Any], module: str) -> Iterator[CodeType]:
    """The code of these functions and classes, if the module made them, and what is inside."""
    for thing in things:
        if isinstance(thing, CodeType):
            yield thing
            yield from _codes(thing.co_consts, module)
        elif getattr(thing, "__module__", None) == module:
            if isinstance(thing, type):
                yield from _codes(vars(thing).values(), module)
            elif isinstance(thing, FunctionType):
                yield from _codes([thing.__code__], module)


def _register() -> None:
    substitutes: dict[Any, Callable[..., Any]] = {
        native.gpu_phase: lambda name, /: contextlib.nullcontext(),
        native.gpu_phase.scope: lambda name, /: contextlib.nullcontext(),
        native.frame: lambda phase, /: contextlib.nullcontext(),
        # What is compiled has no automatic phases in it.
        native.optimizer_steps: lambda optimizer, args, kwargs, /: None,
        native.optimizer_has_stepped: lambda optimizer, args, kwargs, /: None,
    }
    try:
        import torch

        for function, substitute in substitutes.items():
            torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)
    except Exception as error:
        warnings.warn(
            f"phases inside torch.compile will break its graphs: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )
