# SPDX-License-Identifier: Apache-2.0
"""Phases "forward", "eval" and "loss": the outermost call of a module.

Every call of a module comes by here, as that of a submodule is told from that of a root only by the
call around it. So that this costs a submodule next to nothing, the wrapper does not stand before
torch's own function, which is two lines long, but does what that does. A root is being trained
where it is in training mode and gradients are enabled; else the phase is "eval".
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.loss import _Loss

from pyinstrument_gpu import tracebacks
from pyinstrument_gpu._native import native
from pyinstrument_gpu.auto.session import Session

_forward = native.gpu_phase("forward")
_eval = native.gpu_phase("eval")
_loss = native.gpu_phase("loss")


def install(session: Session) -> None:
    """Patch `Module.__call__`."""

    models: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def announce(module: nn.Module) -> None:
        # A loss, a metric or a transform is in training mode in a validation loop too.
        if module not in models:
            if isinstance(module, _Loss) or next(module.parameters(), None) is None:
                return
            models.add(module)
        if _is_training(module):
            session.border.runs_forward()
        else:
            session.border.evaluates()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        stands_in = _entry_of(original) is not None
        in_activity = native.in_activity

        # What the module is called with may have any name.
        @functools.wraps(original)
        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if stands_in and in_activity():
                if self._compiled_call_impl is None:
                    return self._call_impl(*args, **kwargs)
                return self._compiled_call_impl(*args, **kwargs)
            if is_compiling() or session.passes_by():
                return original(self, *args, **kwargs)
            phase = _phase_of(self)
            token = session.begin(phase, announce, self)
            try:
                return original(self, *args, **kwargs)
            finally:
                session.end(phase, token)

        if stands_in:
            wrapper: Any = __call__
            tracebacks.stand_ins[wrapper.__code__] = tracebacks.StandIn(
                original.__code__, lambda: _entry_of(original)
            )
        return __call__

    session.patches.wrap(nn.Module, "__call__", wrap)


def _entry_of(function: Any) -> TracebackType | None:
    """An entry of a traceback as it is left by the function that is `Module.__call__`, if to choose
    between `_call_impl` and `_compiled_call_impl` is all it does."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_names != ("_compiled_call_impl", "_call_impl"):
        return None

    class Module:
        _compiled_call_impl = None

        def _call_impl(self) -> NoReturn:
            raise NotImplementedError

    try:
        function(Module())
    except Exception as error:
        entry = error.__traceback__
        while entry is not None and entry.tb_frame.f_code is not code:
            entry = entry.tb_next
        return entry and TracebackType(None, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return None


def _is_training(module: nn.Module) -> bool:
    # A module whose own __init__ was never run has no mode.
    return torch.is_grad_enabled() and bool(module.__dict__.get("training", True))


def _phase_of(module: nn.Module) -> Any:
    if not _is_training(module):
        return _eval
    return _loss if isinstance(module, _Loss) else _forward
