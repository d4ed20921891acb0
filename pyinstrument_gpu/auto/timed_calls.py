# SPDX-License-Identifier: Apache-2.0
"""Calls that are a phase and no more: "zero_grad", "loss", "clip", "scheduler" and "checkpoint".

Modules that compute a loss are in forward.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import is_grad_enabled, nn, serialization
from torch.compiler import is_compiling
from torch.nn import functional, utils
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native

_LOSSES = (
    *(name for name in vars(functional) if name.endswith("_loss") and not name.startswith("_")),
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
)
_SCHEDULERS = [
    scheduler
    for scheduler in set(filter(inspect.isclass, vars(lr_scheduler).values()))
    if issubclass(scheduler, lr_scheduler.LRScheduler) and "step" in vars(scheduler)
]
_UPDATE = ("zero_grad", "clip", "scheduler")
"""The phases that belong to the update, also where they follow it."""
_CALLS: tuple[tuple[str, Any, tuple[str, ...], tuple[Any, ...]], ...] = (
    ("zero_grad", Optimizer, ("zero_grad",), ()),
    ("zero_grad", nn.Module, ("zero_grad",), ()),
    ("loss", functional, _LOSSES, ()),
    ("clip", clip_grad, ("clip_grad_norm_", "clip_grad_value_"), (utils,)),
    ("clip", utils, ("clip_grads_with_norm_",), ()),
    *(("scheduler", scheduler, ("step",), ()) for scheduler in _SCHEDULERS),
    ("checkpoint", serialization, ("save",), (torch,)),
)
"""Phase, owner, names, and other owners of the same functions."""


def install(session: Session) -> None:
    for phase, owner, names, others in _CALLS:
        for name in names:
            session.patches.wrap(owner, name, functools.partial(timed, session, phase), *others)


def timed(session: Session, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each call is an activity: the phase `name`."""
    phase = native.gpu_phase(name)
    is_loss = name == "loss"
    no_loss = native.gpu_phase("eval")
    announce = session.detector.clears_gradients if name == "zero_grad" else None
    follow = session.detector.follows_update if name in _UPDATE else None

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or session.passes_by():
            return original(*args, **kwargs)
        if name == "scheduler" and getattr(args[0] if args else None, "_is_initial", False):
            return original(*args, **kwargs)  # its constructor sets the first rate
        of_call = no_loss if is_loss and not is_grad_enabled() else phase
        token = session.begin(of_call, announce)
        try:
            return original(*args, **kwargs)
        finally:
            session.end(of_call, token)
            if follow is not None:
                session.tell(follow)

    if is_loss:
        # torch.jit.script then compiles the function itself.
        wrapper.__dict__.update(__script_if_tracing_wrapper=True, __original_fn=original)
    return wrapper
