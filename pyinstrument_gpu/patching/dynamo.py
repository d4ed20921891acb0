# SPDX-License-Identifier: Apache-2.0
"""Phases inside torch.compile.

Dynamo cannot look into a C function. It is told what to take for a phase when it traces one: while
a recording marks phases in compiled code a label of the operations inside,
`torch.fx.traceback.annotate`, which leaves nothing in the graph, and otherwise `nullcontext()`.
Neither breaks the graph, and nothing is recorded there. Telling it means importing it, which takes
more than a second; so that is done only when the program imports it anyway.

A label is a key of `node.meta["custom"]`, the outermost first. AOTAutograd copies it to the nodes
of the backward graph, but for those that add up gradients.

Where a graph breaks in a phase, torch would leave the whole function uncompiled because of the
label. So its variable for `annotate` is told to make `resumed` of ours, which is traced as the
label again where the function goes on. A version of torch in which that can't be told has no
labels.
"""

from __future__ import annotations

import contextlib
import functools
import sys
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
    """Skip functions with this code likewise."""
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


KEY = "pyinstrument_gpu:"
"""What the label of an operation begins with; then comes the name of the phase."""

_labelling = 0
_can_label = False


def label_phases() -> Callable[[], None]:
    """Trace phases as labels from now on, if torch can do that. What was compiled before stays as
    it is. Returns the function that takes this back."""
    global _labelling
    _labelling += 1

    def undo() -> None:
        global _labelling
        _labelling -= 1

    return undo


def why_no_labels() -> str | None:
    """Why phases can't be labels; None if they can, or if Dynamo is not loaded."""
    if _can_label or "torch._dynamo" not in sys.modules:
        return None
    return "Dynamo of this version of torch is not built as expected"


def resumed(*_: object) -> contextlib.AbstractContextManager[None]:
    """A label where a graph breaks inside it. Traced it is the label."""
    return contextlib.nullcontext()


def _key_of(phase: Any) -> str:
    """The label of a phase or of its name, while it is traced; empty for none."""
    import torch

    is_exporting = getattr(torch.compiler, "is_exporting", bool)
    name = phase if isinstance(phase, str) else getattr(phase, "name", None)
    if not (_labelling and _can_label and isinstance(name, str)) or is_exporting():
        return ""
    return KEY + name


def _register() -> None:
    try:
        import torch

        key_of = torch.compiler.assume_constant_result(_key_of)

        def label(key: str) -> Any:
            import torch  # Dynamo knows `annotate` by where it comes from

            return torch.fx.traceback.annotate({key: 1})

        def labelled(phase: Any, /) -> Any:
            key = key_of(phase)
            return label(key) if key else contextlib.nullcontext()

        def framed(phase: Any, /) -> Any:
            return labelled(phase.name)  # torch 2.10 and 2.11 take plain constants only

        def resumed_label(*keys: Any) -> Any:
            return label(keys[0]) if keys else contextlib.nullcontext()

        substitutes: dict[Any, Callable[..., Any]] = {
            native.gpu_phase: labelled,
            native.gpu_phase.scope: labelled,
            native.frame: framed,
            resumed: resumed_label,
            # What is compiled has no automatic phases in it.
            native.optimizer_steps: lambda optimizer, args, kwargs, /: None,
            native.optimizer_has_stepped: lambda optimizer, args, kwargs, /: None,
        }
        for function, substitute in substitutes.items():
            torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)
    except Exception as error:
        warnings.warn(
            f"phases inside torch.compile will break its graphs: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    with contextlib.suppress(Exception):
        _let_graphs_break()


def _let_graphs_break() -> None:
    global _can_label
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import ctx_manager

    Variable: Any = ctx_manager.FxTracebackAnnotateVariable
    before = Variable.reconstruct_type

    def reconstruct_type(self: Any, codegen: Any) -> None:
        # torch 2.14 has it elsewhere.
        keys = getattr(self, "annotation", self.target_values)
        if keys and all(str(key).startswith(KEY) for key in keys):
            codegen(AttrSource(codegen.tx.import_source(__name__), resumed.__name__))
        else:
            before(self, codegen)

    Variable.reconstruct_type = reconstruct_type
    _can_label = True
