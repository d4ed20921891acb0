# SPDX-License-Identifier: Apache-2.0
"""Whether tensors that are read element by element fit each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor


def check_tensors(tensors: Mapping[str, Any], optional: Collection[str] = ("weight",)) -> None:
    """Raise TypeError or ValueError unless all are tensors of real numbers, of the first one's
    shape and on its device. Those that are optional may be None."""
    first = ""
    for name, tensor in tensors.items():
        if tensor is None and name in optional:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.is_complex():
            raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the device meta: it has no values")
        first = first or name
        reference = tensors[first]
        if tensor.device != reference.device:
            raise ValueError(
                f"all tensors must be on one device: {first} is on {reference.device}, "
                f"{name} is on {tensor.device}"
            )
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(reference.shape)}, "
                f"got {tuple(tensor.shape)}"
            )
