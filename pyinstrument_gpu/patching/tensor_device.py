# SPDX-License-Identifier: Apache-2.0
"""What a tensor's device says about waiting: host memory, or a device with a queue of its own."""

from __future__ import annotations

import sys
from typing import Any

import torch

HOST_TYPES = {"cpu", "meta"}
"""Types of devices on which nothing runs asynchronously."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types that nobody has given a meaning of their own."""


has_modes = torch._C._len_torch_function_stack
"""How many `TorchFunctionMode`s are active."""


def is_on_host(tensor: Any) -> bool:
    if type(tensor) in PLAIN and not has_modes():
        return bool(tensor.is_cpu)
    with torch._C.DisableTorchFunction():  # neither a subclass nor a mode need hear of it
        return bool(tensor.is_cpu)


def is_on_device(tensor: Any) -> bool:
    if is_on_host(tensor):
        return False
    with torch._C.DisableTorchFunction():
        return tensor.device.type not in HOST_TYPES


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no values, as those with which torch.compile looks into a program."""
    fake_tensor = sys.modules.get("torch._subclasses.fake_tensor")
    return fake_tensor is not None and isinstance(tensor, fake_tensor.FakeTensor)


def plainly_stays(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `tensor.to(*args, **kwargs)` is at a glance a call that leaves a tensor of the host
    there. False says nothing."""
    if not args or kwargs or type(tensor) not in PLAIN or has_modes() or not tensor.is_cpu:
        return False
    target = args[0]
    if type(target) is torch.device:
        return bool(target.type == "cpu")
    return type(target) is torch.dtype or (type(target) is str and target == "cpu")


def target_of_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
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


def is_non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of `Tensor.to`, `cuda` or `copy_` ask for a copy that does not wait."""
    # The first positional bool: `copy` stands behind it.
    flags = [argument for argument in args if isinstance(argument, bool)]
    return bool(kwargs.get("non_blocking", flags[0] if flags else False))
