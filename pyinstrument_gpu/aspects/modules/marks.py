# SPDX-License-Identifier: Apache-2.0
"""What the watch of modules asks of torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Variable

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hooks import look_at_torch


def observe() -> bool:
    """Hear of calls of modules and of backward passes, from now on. False where torch is not built
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
    with torch._C.DisableTorchFunction():
        for enters in (True, False):
            mark = torch.empty(0, device="cpu")
            mark._backward_hooks = {0: native.module_mark(number, enters)}
            marks.append(mark)
    return marks[0], marks[1]
