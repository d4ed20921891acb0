# SPDX-License-Identifier: Apache-2.0
"""Modules whose times are known: they do nothing but move a fake clock on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Advance = Callable[[int], None]


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        ctx.work = backward
        ctx.save_for_backward(x)  # so that a checkpoint has to recompute this too
        forward()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _ = ctx.saved_tensors
        # On a GPU, a thread of autograd's has no context before an operation of torch's.
        grad = grads[0].clone()
        ctx.work()
        return grad, None, None


class Work(nn.Module):
    """Takes `forward_ns` when it is called, and `backward_ns` in a backward pass."""

    def __init__(self, advance: Advance, forward_ns: int, backward_ns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.forward_ns, self.backward_ns = forward_ns, backward_ns
        self._advance = advance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: Any = _Work.apply(  # type: ignore[no-untyped-call]
            x * self.weight,
            lambda: self._advance(self.forward_ns),
            lambda: self._advance(self.backward_ns),
        )
        result: torch.Tensor = y
        return result
