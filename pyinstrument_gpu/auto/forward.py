# SPDX-License-Identifier: Apache-2.0
"""Phases "forward", "eval" and "loss": the outermost call of a module.

Every call of a module comes by here, as that of a submodule is told from that of a root only by the
call around it; it costs a submodule one function more. A root is being trained where it is in
training mode and gradients are enabled; else the phase is "eval".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.loss import _Loss

from pyinstrument_gpu._native import native
from pyinstrument_gpu.auto.session import Session

_forward = native.gpu_phase("forward")
_eval = native.gpu_phase("eval")
_loss = native.gpu_phase("loss")


def install(session: Session) -> None:
    """Patch `Module.__call__`."""

    def announce(module: nn.Module) -> None:
        # A loss, a metric or a transform is in training mode in a validation loop too.
        has_parameters = next(module.parameters(), None) is not None
        if has_parameters and not isinstance(module, _Loss):
            if _is_training(module):
                session.border.runs_forward()
            else:
                session.border.evaluates()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        # What the module is called with may have any name.
        @functools.wraps(original)
        def __call__(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or session.passes_by():
                return original(self, *args, **kwargs)
            phase = _phase_of(self)
            token = session.begin(phase, announce, self)
            try:
                return original(self, *args, **kwargs)
            finally:
                session.end(phase, token)

        return __call__

    session.patches.wrap(nn.Module, "__call__", wrap)


def _is_training(module: nn.Module) -> bool:
    # A module whose own __init__ was never run has no mode.
    return torch.is_grad_enabled() and bool(module.__dict__.get("training", True))


def _phase_of(module: nn.Module) -> Any:
    if not _is_training(module):
        return _eval
    return _loss if isinstance(module, _Loss) else _forward
