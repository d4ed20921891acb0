# SPDX-License-Identifier: Apache-2.0
"""The tensors that would lie on a device.

The place belongs to the storage, so views and detached tensors have that of their base. A tensor
that is moved gets a storage of its own over the same memory: on a CPU `x.to(device)` is `x` itself,
but on a GPU there would be two, in two places.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from pyinstrument_gpu.core.sync_kind import SyncKind

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are followed."""


class _Storages:
    """A set of storages, which it doesn't keep alive."""

    def __init__(self) -> None:
        # By the address, which another storage may have later. Not torch's own StorageWeakRef, with
        # which the memory of a storage outlives it.
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sweep_at = 4096

    def __contains__(self, storage: torch.UntypedStorage | None) -> bool:
        if storage is None:
            return False
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is storage

    def add(self, storage: torch.UntypedStorage | None) -> None:
        if storage is not None:
            self._references[storage._cdata] = weakref.ref(storage)
        if len(self._references) >= self._sweep_at:
            self._references = {k: v for k, v in self._references.items() if v() is not None}
            self._sweep_at = max(4096, 2 * len(self._references))

    def discard(self, storage: torch.UntypedStorage) -> None:
        self._references.pop(storage._cdata, None)

    def clear(self) -> None:
        self._references.clear()


class Placement:
    """The placement of a program's tensors: on the host, unless they were moved to a device or
    computed from what lies there.

    Until something has been moved, parameters and what is computed from them are presumed to lie on
    the device.
    """

    def __init__(self, on_first_move: Callable[[], None]) -> None:
        self._on_first_move = on_first_move
        self._device = _Storages()
        self._presumed = _Storages()
        self._pinned = _Storages()
        self.has_moved = False
        """Whether anything was moved to a device."""

    @property
    def _here(self) -> _Storages:
        """The storages on the device, as far as is known now."""
        return self._device if self.has_moved else self._presumed

    def is_on_device(self, tensor: Any) -> bool:
        if type(tensor) not in PLAIN:
            return False
        storage = _storage_of(tensor)
        if self.has_moved:
            return storage in self._device
        if type(tensor) is torch.nn.Parameter and storage not in self._presumed:
            self._presumed.add(storage)  # for what shares it
        return storage in self._presumed

    def inherit(self, tensor: torch.Tensor) -> None:
        """Put the result of a computation on the device."""
        self._here.add(_storage_of(tensor))

    def put(self, tensor: torch.Tensor, on_device: bool) -> None:
        """Put a tensor, and all that share its storage, where the program moves it."""
        storage = _storage_of(tensor)
        if storage is None:
            return
        if on_device:
            if not self.has_moved:
                self.has_moved = True
                self._presumed.clear()
                self._on_first_move()
            self._device.add(storage)
        else:
            self._device.discard(storage)
            self._presumed.discard(storage)

    def follow(self, storage: torch.UntypedStorage, copy: torch.UntypedStorage) -> None:
        """Put a copy of a storage where the storage lies."""
        for storages in (self._device, self._presumed):
            if storage in storages:
                storages.add(copy)

    def pin(self, tensor: torch.Tensor) -> None:
        """Take a tensor of the host for one in pinned memory."""
        self._pinned.add(_storage_of(tensor))

    def copy_kind(self, source: torch.Tensor, non_blocking: bool) -> SyncKind | None:
        """Return what the host waits for in a copy of a tensor to the device; None: nothing."""
        if _storage_of(source) not in self._pinned:
            return SyncKind.H2D_PAGEABLE
        return None if non_blocking else SyncKind.H2D_PINNED

    def moved(self, tensor: torch.Tensor, on_device: bool) -> torch.Tensor:
        """The tensor that stands for a copy of this one in the other place: the same memory, and
        the same gradients, in a storage of its own."""
        is_parameter = on_device and tensor.is_leaf and tensor.requires_grad
        if is_parameter or tensor.layout is not torch.strided:
            # A leaf has to stay one, which optimizers know by its identity.
            self.put(tensor, on_device)
            return tensor
        if tensor.is_conj() or tensor.is_neg():
            return tensor
        if tensor.requires_grad and torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                result: torch.Tensor = _Moved.apply(tensor, self, on_device)  # type: ignore[no-untyped-call]
        else:
            result = self._alias(tensor, on_device)
            result.requires_grad_(tensor.requires_grad)
        result.__dict__.update(tensor.__dict__)
        return result

    def _alias(self, tensor: torch.Tensor, on_device: bool) -> torch.Tensor:
        with no_dispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            raw = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
            own = torch._C._from_dlpack(torch._C._to_dlpack(raw)).untyped_storage()
            result = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
                own, tensor.storage_offset(), tensor.size(), tensor.stride()
            )
        self.put(result, on_device)
        return result


class _Moved(torch.autograd.Function):
    """The copy to another place, as autograd sees it: gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, placement: Placement, on_device: bool) -> Any:
        ctx.placement, ctx.on_device = placement, on_device
        return placement._alias(tensor, on_device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # A copy: autograd adds in place to a gradient whose storage nobody else has.
        gradient = gradients[0].clone()
        ctx.placement.put(gradient, not ctx.on_device)
        return gradient, None, None


def size_of(tensor: torch.Tensor) -> int:
    """The bytes that a copy of a tensor moves; of a sparse one, those of its values."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    storage = _storage_of(tensor)
    return 0 if storage is None else storage.nbytes()


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a key that tensors with the same storage share."""
    storage = _storage_of(tensor)
    return None if storage is None else storage._cdata


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        with torch._C.DisableTorchFunction():
            if tensor.layout is torch.strided:
                return tensor.untyped_storage()
            with no_dispatch():  # the values of a sparse one stand for all of it
                values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
                return values.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
