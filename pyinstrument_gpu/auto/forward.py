# SPDX-License-Identifier: Apache-2.0
"""Phases "forward", "eval" and "loss": the outermost call of a module.

Every call of a module comes by here, as that of a submodule is told from that of a root only by the
call around it. So that this costs a submodule next to nothing, the wrapper does there what torch's
own function does, a choice between two methods, instead of calling it. A root is being trained
where it is in training mode and gradients are enabled; else the phase is "eval".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.loss import _Loss

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import hidden_frames

_forward = native.gpu_phase("forward")
_eval = native.gpu_phase("eval")
_loss = native.gpu_phase("loss")


def install(session: Session) -> None:
    def announce(module: nn.Module) -> None:
        # A loss, a metric or a transform is in training mode in a validation loop too.
        if isinstance(module, _Loss) or next(module.parameters(), None) is None:
            return
        if _is_training(module):
            session.detector.runs_forward()
        else:
            session.detector.evaluates()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        stands_in = _is_torchs_own(original)
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

        wrapper: Any = __call__
        hidden_frames.stand_ins[wrapper.__code__] = _entry_instead_of
        return __call__

    session.patches.wrap(nn.Module, "__call__", wrap)


def _is_torchs_own(function: Any) -> bool:
    """Whether a function is torch's, and all it does is to choose between these two methods."""
    code = getattr(function, "__code__", None)
    return (
        function is vars(nn.Module).get("_wrapped_call_impl")
        and code is not None
        and code.co_names == ("_compiled_call_impl", "_call_impl")
        and not code.co_freevars
    )


def _entry_instead_of(frame: FrameType) -> TracebackType | None:
    """The entry of a traceback that torch's function would have left where the wrapper stood in for
    it; `frame` is the wrapper's."""
    if not frame.f_locals["stands_in"]:
        return None
    module, original = frame.f_locals["self"], frame.f_locals["original"]
    if not hasattr(module, "_compiled_call_impl"):
        stub: Any = object()
    else:
        stub = _Failing()
        if module._compiled_call_impl is not None:
            stub._compiled_call_impl = stub._call_impl
    try:
        original(stub)
    except Exception as error:
        entry = error.__traceback__ and error.__traceback__.tb_next
        if entry is not None:
            return TracebackType(None, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return None


class _Failing:
    """A module of which every call fails."""

    _compiled_call_impl: Any = None

    def _call_impl(self) -> NoReturn:
        raise RuntimeError


def _is_training(module: nn.Module) -> bool:
    # A module whose own __init__ was never run has no mode.
    return torch.is_grad_enabled() and bool(module.__dict__.get("training", True))


def _phase_of(module: nn.Module) -> Any:
    if not _is_training(module):
        return _eval
    return _loss if isinstance(module, _Loss) else _forward
