# SPDX-License-Identifier: Apache-2.0
"""Phase "h2d": `Tensor.to`, `Tensor.cuda` and `Tensor.copy_` from host memory to a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device, torch_function

_h2d = native.gpu_phase("h2d")


def install(session: Session) -> None:
    def count(tensor: torch.Tensor, non_blocking: bool) -> None:
        copies = session.copies.setdefault((tensor.is_pinned(), non_blocking), [0, 0])
        copies[0] += 1
        copies[1] += tensor.numel() * tensor.element_size()

    def wrap(
        name: str, source_of: Callable[..., Any], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        call = torch_function.heeding(torch.Tensor, name, original)

        @functools.wraps(original)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if tensor_device.plainly_stays(self, args, kwargs) or is_compiling():
                return original(self, *args, **kwargs)
            if session.passes_by():
                return call(self, *args, **kwargs)
            try:
                source = source_of(self, args, kwargs)
            except Exception:
                source = None  # wrong arguments: the method will say so
            if source is None:
                return call(self, *args, **kwargs)
            session.tell(lambda: count(source, tensor_device.is_non_blocking(args, kwargs)))
            token = session.begin(_h2d, session.detector.copies_to_device)
            try:
                return call(self, *args, **kwargs)
            finally:
                session.end(_h2d, token)

        return method

    for name, source_of in _SOURCES.items():
        session.patches.wrap(torch.Tensor, name, functools.partial(wrap, name, source_of))


def _source_of_cuda(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor if tensor_device.is_on_host(tensor) else None


def _source_of_to(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not tensor_device.is_on_host(tensor):
        return None
    target = tensor_device.target_of_to(args, kwargs)
    return None if target is None or target.type in tensor_device.HOST_TYPES else tensor


def _source_of_copy(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_copy = args and tensor_device.is_on_device(tensor) and tensor_device.is_on_host(args[0])
    return args[0] if is_copy else None


_SOURCES = {"to": _source_of_to, "cuda": _source_of_cuda, "copy_": _source_of_copy}
"""By method: the tensor of the host that a call copies to a device, or None."""
