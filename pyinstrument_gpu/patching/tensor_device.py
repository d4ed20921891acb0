# SPDX-License-Identifier: Apache-2.0
"""Devices of tensors with regard to waiting: host memory, or a device with a queue of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

HOST_TYPES = {"cpu", "meta"}
"""Types of devices on which nothing runs asynchronously."""


def accelerator_type() -> str | None:
    """The kind of device that this build of torch knows beside the host. Asking initialises
    none."""
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # how torch 2.6 says no
        return None
    return None if accelerator is None else accelerator.type


def is_on_host(tensor: Any) -> bool:
    with torch._C.DisableTorchFunction():  # neither a subclass nor a mode should see it
        return bool(tensor.is_cpu)


def is_on_device(tensor: Any) -> bool:
    if is_on_host(tensor):
        return False
    with torch._C.DisableTorchFunction():
        return tensor.device.type not in HOST_TYPES


def is_fake_tensor(tensor: Any) -> bool:
    """Return whether a tensor has no values, as those with which torch.compile looks into a
    program. `is_fake` looks into subclasses, too, which takes ten times as long."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def is_fake(*values: Any) -> bool:
    """Return whether any of them only stands for a tensor's shape, as while a program is compiled
    or exported: there are no numbers."""
    module = sys.modules.get("torch._subclasses.fake_tensor")  # without it there are none
    return module is not None and any(map(module.is_fake, values))


def bytes_of(tensor: torch.Tensor) -> int:
    """The bytes of all elements. While torch.jit traces, `numel` gives a tensor, and to take that
    for a number is a wait like the one that asks."""
    if tensor.layout is torch.strided:
        return int(tensor.nbytes)
    return tensor.numel() * tensor.element_size()


def target_of_to(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that the arguments of `Tensor.to` name, or None."""
    target = args[0] if args else kwargs.get("other", kwargs.get("device"))
    if isinstance(target, torch.dtype) or target is None:
        target = kwargs.get("device")
    if isinstance(target, torch.Tensor):
        return target.device
    if isinstance(target, torch.device) or target is None:
        return target
    with torch._C.DisableTorchFunction():  # of which a mode would hear
        return torch.device(target)


def is_non_blocking(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the arguments of `Tensor.to`, `cuda` or `copy_` ask not to wait."""
    # The first positional bool: `copy` stands behind it.
    flags = [argument for argument in args if isinstance(argument, bool)]
    return bool(kwargs.get("non_blocking", flags[0] if flags else False))
