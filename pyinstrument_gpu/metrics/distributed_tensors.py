# SPDX-License-Identifier: Apache-2.0
"""DTensors, of which an accumulator adds what this rank has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch


def has_distributed(tensors: Sequence[Any]) -> bool:
    """Whether one of them is a DTensor."""
    # Without the module there are none.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(each, module.DTensor) for each in tensors)


def local(tensor: Any, name: str, whole_dim: int | None = None) -> Any:
    """The part of a DTensor that this rank has; other things as they are.

    Args:
        whole_dim: a dimension of which each rank must have all.

    Raises:
        ValueError: the parts mean nothing by themselves.
    """
    if not has_distributed([tensor]):
        return tensor
    for placement in tensor.placements:
        # Parts whose mean is the value are means of what each rank has.
        if placement.is_partial() and placement.reduce_op != "avg":
            raise ValueError(
                f"{name} is a DTensor whose parts have still to be added up, with placements "
                f"{tensor.placements}: pass {name}.full_tensor()"
            )
        if whole_dim is not None and getattr(placement, "dim", None) == whole_dim:
            raise ValueError(
                f"{name} is a DTensor that is sharded over the classes, dimension {whole_dim} of "
                f"{tuple(tensor.shape)}, so no rank has a whole row: pass "
                f"{name}.redistribute(placements=...) with Replicate() for {placement}"
            )
    with torch.no_grad():  # or it would be a node of the graph
        return tensor.to_local()
