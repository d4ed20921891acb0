# SPDX-License-Identifier: Apache-2.0
"""Phases "optimizer", "optimizer 2", ...: the steps of optimizers, numbered as they first step.

A step that a gradient scaler leaves out is a short phase, not a missing one: it is the scaler's
call that is timed.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch._C import _current_graph_task_id
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native


def install(session: Session) -> None:
    """Hook the steps of all optimizers; patch `GradScaler.step` and what makes an optimizer."""
    detector = session.detector
    phases: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()

    def phase_of(optimizer: object) -> Any:
        phase = phases.get(optimizer)
        if phase is None:
            number = f" {len(phases) + 1}" if phases else ""
            phase = phases[optimizer] = native.gpu_phase(f"optimizer{number}")
        return phase

    def is_in_backward() -> bool:
        # The other threads of a backward pass are autograd's own: those that run a graph.
        return session.is_in_backward and _current_graph_task_id() != -1

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        if is_in_backward():
            session.updated_in_backward = True
            session.tell(detector.has_stepped, optimizer)
        elif not session.passes_by():
            frame = sys._getframe(1)
            session.tell(lambda: session.begin_update(phase_of(optimizer), optimizer, frame))

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_compiling() and not is_in_backward() and not session.passes_by():
            session.end_update(optimizer)

    def wrap_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if session.passes_by():
                return original(self, optimizer, *args, **kwargs)
            phase = phase_of(optimizer)
            token = session.begin(phase, detector.begins_update, optimizer)
            try:
                result = original(self, optimizer, *args, **kwargs)
            finally:
                session.end(phase, token)
            session.tell(detector.ends_update, optimizer)
            return result

        return step

    def wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if session.patches.active:
                session.tell(detector.knows, self)

        return __init__

    session.patches.on_remove(register_optimizer_step_pre_hook(before_step).remove)
    session.patches.on_remove(register_optimizer_step_post_hook(after_step).remove)
    session.patches.wrap(GradScaler, "step", wrap_scaler_step)
    session.patches.wrap(Optimizer, "__init__", wrap_init)
