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
    """Patch the three methods."""

    def count(tensor: torch.Tensor, non_blocking: bool) -> None:
        copies = session.copies.setdefault((tensor.is_pinned(), non_blocking), [0, 0])
        copies[0] += 1
        copies[1] += tensor.numel() * tensor.element_size()

    def wrap(
        name: str,
        is_copy_to_device: Callable[[Any, tuple[Any, ...], dict[str, Any]], bool],
        source: Callable[[Any, tuple[Any, ...]], Any],
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap_method(original: Callable[..., Any]) -> Callable[..., Any]:
            call = torch_function.heeding(torch.Tensor, name, original)

            @functools.wraps(original)
            def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                if tensor_device.plainly_stays(self, args, kwargs):
                    return original(self, *args, **kwargs)
                if is_compiling():
                    return original(self, *args, **kwargs)
                if session.passes_by():
                    return call(self, *args, **kwargs)
                try:
                    is_copy = is_copy_to_device(self, args, kwargs)
                except Exception:
                    is_copy = False  # wrong arguments: the method will say so
                if not is_copy:
                    return call(self, *args, **kwargs)
                session.tell(
                    lambda: count(source(self, args), tensor_device.is_non_blocking(args, kwargs))
                )
                token = session.begin(_h2d, session.detector.copies_to_device)
                try:
                    return call(self, *args, **kwargs)
                finally:
                    session.end(_h2d, token)

            return method

        return wrap_method

    for name, is_copy, source in (
        ("to", _to_goes_to_device, lambda self, args: self),
        ("cuda", _is_on_host, lambda self, args: self),
        ("copy_", _copy_goes_to_device, lambda self, args: args[0]),
    ):
        session.patches.wrap(torch.Tensor, name, wrap(name, is_copy, source))


def _is_on_host(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return tensor_device.is_on_host(tensor)


def _to_goes_to_device(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not tensor_device.is_on_host(tensor):
        return False
    target = tensor_device.target_of_to(args, kwargs)
    return target is not None and target.type not in tensor_device.HOST_TYPES


def _copy_goes_to_device(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return tensor_device.is_on_device(tensor) and bool(args) and tensor_device.is_on_host(args[0])
