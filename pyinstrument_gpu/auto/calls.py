# SPDX-License-Identifier: Apache-2.0
"""The functions of torch whose calls reveal a training loop."""

from __future__ import annotations

import dis
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn, optim, serialization
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Variable
from torch.nn import functional, utils
from torch.nn.modules.loss import _Loss
from torch.optim import lr_scheduler, optimizer
from torch.utils.data import DataLoader, dataloader

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hooks import look_at_torch
from pyinstrument_gpu.patching.program_frames import cell_of, frames_of_call
from pyinstrument_gpu.recording.loader_use import options_of

_SCHEDULERS = [
    scheduler
    for scheduler in set(filter(inspect.isclass, vars(lr_scheduler).values()))
    if issubclass(scheduler, lr_scheduler.LRScheduler) and "step" in vars(scheduler)
]


class _Made:
    @staticmethod
    def made(optimizer: optim.Optimizer) -> None:
        """Stand for the `__init__` of one that was made before anybody listened."""


_CALLS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("module", nn.Module, ("__call__",)),
    ("data start", DataLoader, ("__iter__",)),
    ("data", dataloader._BaseDataLoaderIter, ("__next__",)),
    ("backward", type(Variable._execution_engine), ("run_backward",)),
    ("optimizer made", optim.Optimizer, ("__init__",)),
    ("optimizer made", _Made, ("made",)),
    ("scaler", GradScaler, ("step",)),
    ("zero_grad", optim.Optimizer, ("zero_grad",)),
    ("zero_grad", nn.Module, ("zero_grad",)),
    ("clip", utils, ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")),
    *(("scheduler", scheduler, ("step",)) for scheduler in _SCHEDULERS),
    ("checkpoint", serialization, ("save",)),
    ("compiled", torch._C._dynamo.eval_frame, ("set_eval_frame",)),
    # Builtin functions, which those of torch.nn.functional call.
    (
        "loss",
        torch._C._nn,
        (
            "binary_cross_entropy",
            "cross_entropy_loss",
            "huber_loss",
            "l1_loss",
            "mse_loss",
            "multi_margin_loss",
            "multilabel_margin_loss",
            "nll_loss_nd",
            "smooth_l1_loss",
            "soft_margin_loss",
        ),
    ),
    (
        "loss",
        torch,
        (
            "binary_cross_entropy_with_logits",
            "cosine_embedding_loss",
            "ctc_loss",
            "hinge_embedding_loss",
            "kl_div",
            "margin_ranking_loss",
            "poisson_nll_loss",
            "triplet_margin_loss",
        ),
    ),
    # Those that are made of other operations. (On Python 3.11 their calls are not seen.)
    (
        "loss",
        functional,
        (
            "gaussian_nll_loss",
            "multilabel_soft_margin_loss",
            "triplet_margin_with_distance_loss",
        ),
    ),
)
"""What csrc/auto calls the kind of call, the owner of the functions, and their names."""


_DEEPEST_ITEM = 8
"""Lists in lists, of which one may contain itself."""


def begin_loop(
    main_thread: int,
    on_step_end: Callable[[], None] | None,
    note_line: Callable[[str], None],
) -> None:
    """Forget what was seen of a training loop, and begin to look at one."""
    look_at_torch()
    native.begin_loop(
        loss_type=_Loss,
        is_grad_enabled=torch.is_grad_enabled,
        has_parameters=_has_parameters,
        samples_of=_samples_of,
        loader_options=options_of,
        times_written=_times_written,
        is_trained_in_eval_mode=_is_trained_in_eval_mode,
        are_of_one_iteration=_are_of_one_iteration,
        note_line=note_line,
        main_thread=main_thread,
        on_step_end=on_step_end,
    )


def install(not_hooked: list[str]) -> Callable[[], None]:
    """Hook the functions. Returns what takes torch's own hooks back; the others go with the loop.

    Args:
        not_hooked: gets the names of functions that are not built as expected.
    """
    for kind, owner, names in _CALLS:
        for name in names:
            function = vars(owner).get(name)  # versions of torch differ
            function = getattr(function, "__func__", function)  # of a staticmethod
            if kind == "clip":  # decorated; what the decorator's function calls
                function = getattr(function, "__wrapped__", function)
            if function is not None and not native.observe_calls(function, kind):
                not_hooked.append(f"{owner.__name__}.{name}")
    handles = [
        optimizer.register_optimizer_step_pre_hook(native.optimizer_steps),
        optimizer.register_optimizer_step_post_hook(native.optimizer_has_stepped),
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def note_line(lines: dict[str, tuple[str, int]], phase: str) -> None:
    """Note which line of the program makes the call that is under way."""
    program, _ = frames_of_call(sys._getframe())
    file = program.f_code.co_filename
    lines[phase] = cell_of(file) or file, program.f_lineno


def note_optimizer(optimizer: optim.Optimizer) -> None:
    """Note an optimizer that was made before the functions were hooked. Where there seems to be
    none, each backward pass counts as an update."""
    all(map(_Made.made, (optimizer,)))  # only what C code calls is seen on every Python


def _times_written(optimizer: optim.Optimizer) -> int:
    """Return how often some of its parameters and their state were written to. Each update writes
    to all that have a gradient. Fused ones count only writes to the state."""
    with torch._C.DisableTorchFunction():
        return sum(
            tensor._version
            for group in _some(optimizer.param_groups)
            for parameter in _some(group["params"])
            for tensor in (parameter, *optimizer.state.get(parameter, {}).values())
            if isinstance(tensor, torch.Tensor)
        )


def _is_trained_in_eval_mode(module: nn.Module) -> bool:
    """Return whether a backward pass has left gradients in the module's parameters."""
    with torch._C.DisableTorchFunction():
        return not module.training and any(
            parameter.is_leaf and parameter.grad is not None for parameter in module.parameters()
        )


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _are_of_one_iteration(code: CodeType, instruction: int, later: int) -> bool:
    """Return whether an instruction and one behind it are in the same loops of their function, so
    that the second comes in the iteration of the first."""
    loops: dict[int, int] = {}  # from the instruction that they jump back to
    for one in dis.get_instructions(code):
        if one.opcode in _JUMPS and one.argval < one.offset:
            loops[one.argval] = max(one.offset, loops.get(one.argval, 0))
    return all(later <= end for begin, end in loops.items() if begin <= instruction <= end)


def _some(things: Sequence[Any]) -> Sequence[Any]:
    return things[:: len(things) // 8 + 1]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _samples_of(item: object) -> float:
    """The length of the first tensor of a batch. NaN where there is none."""
    with torch._C.DisableTorchFunction():  # no class or mode should see our questions
        for _ in range(_DEEPEST_ITEM):
            if isinstance(item, Mapping):
                item = next(iter(item.values()), None)
            elif isinstance(item, Sequence) and not isinstance(item, str) and item:
                item = item[0]
            else:
                break
        if not isinstance(item, torch.Tensor) or item.dim() == 0:
            return math.nan
        return float(item.shape[0])
