# SPDX-License-Identifier: Apache-2.0
"""The norm of gradients, on their device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.distributed_tensors import has_distributed


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor] | Tensor, norm_type: float) -> Tensor | None:
    """The norm of all gradients together, as that of one vector; None where there are none."""
    given = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [each.grad for each in given if each.grad is not None]
    if not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients, norm_type)
    if has_distributed([norm]):
        norm = norm.full_tensor()  # type: ignore[attr-defined]
    return norm
