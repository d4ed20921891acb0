# SPDX-License-Identifier: Apache-2.0
"""Phase "h2d": `Tensor.to`, `Tensor.cuda` and `Tensor.copy_` from host memory to a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyinstrument_gpu.auto import batches
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.patching.hooks import Arguments, Enter, Hooks, Options, QuickCheck

_h2d = native.gpu_phase("h2d")
_FETCHED = -1
"""The token of a copy that is part of fetching a batch."""


def install(count: Callable[[torch.Tensor, bool], None]) -> Hooks:
    """Hook the methods.

    Args:
        count: called with each tensor that is copied, and whether the copy is `non_blocking`.
    """

    def entering(source_of: Callable[..., Any]) -> Enter:
        def enter(args: Arguments, kwargs: Options | None) -> int | None:
            is_fetching = batches.is_fetching()
            if native.loop_passes_by() and not is_fetching:
                return None
            tensor, *others = args
            options = kwargs or {}
            with torch._C.DisableTorchFunction():  # no class or mode should see our questions
                source = source_of(tensor, others, options)
                if source is None or tensor_device.is_fake_tensor(source):
                    return None
                count(source, tensor_device.is_non_blocking(others, options))
            if is_fetching:
                _h2d.begin()  # within the phase "data"
                return _FETCHED
            return native.begin_copy(_h2d)

        return enter

    def leave(token: int, args: Arguments, succeeded: bool) -> None:
        if token == _FETCHED:
            _h2d.end()
        else:
            native.end_copy(_h2d, token)

    hooks = Hooks(leave)
    for name, (quick_check, source_of) in _SOURCES.items():
        hooks.method(name, quick_check, entering(source_of))
    return hooks


def _source_of_cuda(tensor: Any, args: Sequence[Any], kwargs: Options) -> Any:
    return tensor if tensor_device.is_on_host(tensor) else None


def _source_of_to(tensor: Any, args: Sequence[Any], kwargs: Options) -> Any:
    if not tensor_device.is_on_host(tensor):
        return None
    target = tensor_device.target_of_to(args, kwargs)
    return None if target is None or target.type in tensor_device.HOST_TYPES else tensor


def _source_of_copy(tensor: Any, args: Sequence[Any], kwargs: Options) -> Any:
    is_copy = args and tensor_device.is_on_device(tensor) and tensor_device.is_on_host(args[0])
    return args[0] if is_copy else None


_SOURCES = {
    "to": (QuickCheck.TO, _source_of_to),
    "cuda": (QuickCheck.NEVER, _source_of_cuda),
    "copy_": (QuickCheck.ARGUMENTS, _source_of_copy),
}
"""By method: how a call is passed through, and which tensor of the host it copies to a device, or
None."""
