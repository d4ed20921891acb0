# SPDX-License-Identifier: Apache-2.0
"""The model in torch, for the watch of modules: which modules of it are timed, and their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import nn
from torch.autograd import Variable

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.device_memory import outside_modes
from pyinstrument_gpu.patching.hooks import look_at_torch

COARSE = "coarse"
ALL = "all"


def selected(model: nn.Module, select: str) -> list[tuple[str, nn.Module]]:
    """The names and modules that a selection chooses, parents before their children.

    Args:
        select: "coarse": the children of each `ModuleList` and their own children, and what stands
            beside a `ModuleList`. Without one: two levels of children. "all": every module but the
            model itself. Anything else is a regular expression that must match the whole name.

    Raises:
        ValueError: the regular expression can't be compiled.
    """
    modules = [(name, module) for name, module in model.named_modules() if name]
    # Containers, such as `ModuleList`, are not called.
    called = [(name, module) for name, module in modules if not _is_container(module)]
    if select == ALL:
        return called
    if select == COARSE:
        chosen = set(_coarse(modules))
        return [(name, module) for name, module in called if name in chosen]
    try:
        pattern = re.compile(select)
    except re.error as error:
        raise ValueError(
            f'select must be "{COARSE}", "{ALL}" or a regular expression, got {select!r}: {error}'
        ) from error
    return [(name, module) for name, module in called if pattern.fullmatch(name)]


def _is_container(module: nn.Module) -> bool:
    # Of a scripted class it can't be asked for.
    return getattr(type(module), "forward", None) is nn.Module.forward


def _coarse(modules: list[tuple[str, nn.Module]]) -> Iterator[str]:
    names = [name for name, _ in modules]
    lists = {name for name, module in modules if isinstance(module, nn.ModuleList)}
    if not lists:
        yield from (name for name in names if name.count(".") <= 1)
        return
    children: dict[str, list[str]] = {}
    for name in names:
        children.setdefault(name.rpartition(".")[0], []).append(name)
    around = {outer for name in lists for outer in prefixes(name)} | lists
    for one in lists:
        for child in children.get(one, ()):
            yield child
            yield from (name for name in children.get(child, ()) if name not in lists)
        # And what stands beside it, and beside what it stands in.
        for outer in (one, *prefixes(one)):
            beside = children.get(outer.rpartition(".")[0], [])
            yield from (name for name in beside if name not in around)


def prefixes(name: str) -> Iterator[str]:
    """The names of the modules around one, innermost first, but for the model itself."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def observe() -> bool:
    """Observe calls of modules and backward passes from now on. False where torch is not built
    as expected."""
    look_at_torch()
    return native.observe_modules(
        call=nn.Module.__call__,
        run_backward=type(Variable._execution_engine).run_backward,
        grad_fn=torch.Tensor.grad_fn,
        mode_count=torch._C._len_torch_function_stack,
        without_modes=torch._C.DisableTorchFunction,
    )


def new_marks(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The marks of a module: tensors without elements, which exist for their hooks."""
    marks = []
    with torch._C.DisableTorchFunction(), outside_modes():  # none should see them being made
        for enters in (True, False):
            mark = torch.empty(0, device="cpu")
            mark._backward_hooks = native.module_mark(number, enters)
            marks.append(mark)
    return marks[0], marks[1]
