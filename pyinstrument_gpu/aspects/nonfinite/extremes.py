# SPDX-License-Identifier: Apache-2.0
"""The least and the greatest element of tensors, found where the tensors are and never waited for.

`torch.aminmax` is one kernel that passes NaN on. Other than the kernels of `metrics`, which have to
be compiled first, it is there from the first step on. Its results go into pages of memory of the
device. As a step ends these are copied to pinned memory, over a NaN that no copy brings, as those
of the program become another: where it is gone a result is there. A page is used again when all of
it is. This takes no call of the driver, and no order in which words arrive.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyinstrument_gpu.patching import device_memory
from pyinstrument_gpu.patching.device_memory import outside_modes

_PAGE = 512
_MOST_PAGES = 64
"""In use at one time: 64 times 512 tensors."""
_NOT_HERE = {2: 0x7FFA, 4: 0x7FFA_7FFA, 8: 0x7FFA_7FFA_7FFA_7FFA}
"""The bits of a NaN, in each type of so many bytes."""
_COUNTED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Extremes(NamedTuple):
    """The extremes of one tensor."""

    least: float
    greatest: float

    @property
    def is_nan(self) -> bool:
        return self.least != self.least or self.greatest != self.greatest

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.least) and math.isfinite(self.greatest)

    @property
    def is_mask(self) -> bool:
        """True if it is what is added to scores that don't count: 0 and minus infinity."""
        return self.greatest == 0 and self.least == -math.inf

    @property
    def magnitude(self) -> float:
        return max(abs(self.least), abs(self.greatest))


class _Page:
    """Memory for the extremes of tensors of one kind. One that is not there has a least value above
    the greatest."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        with outside_modes():
            self.values = self.host = torch.empty((2, _PAGE), dtype=dtype, device=device)
            self._bits: Any = None
            if device_memory.on_cuda(device):
                self.host = torch.empty((2, _PAGE), dtype=dtype, pin_memory=True)
                integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
                self._bits = self.host.view(integer).numpy()
            self.cells = list(zip(*(row.unbind() for row in self.values), strict=True))
        self.clear()

    def clear(self) -> None:
        self.values[0] = 1
        self.values[1] = 0
        self.numbers = itertools.count()
        self.used = 0
        if self._bits is not None:
            self._bits.fill(_NOT_HERE[self._bits.itemsize])
        device_memory.remember_stream(self.values)

    def send(self) -> None:
        self.used = min(next(self.numbers), _PAGE)
        if self._bits is not None:
            self.values.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=-math.inf)
            self.host.copy_(self.values, non_blocking=True)

    @property
    def is_here(self) -> bool:
        if self._bits is None:
            return True
        not_here = _NOT_HERE[self._bits.itemsize]
        # The last one comes late, as a rule: until then this is all that is looked at.
        return bool(self._bits[-1, -1] != not_here and (self._bits != not_here).all())


Place = tuple[_Page, int]
"""Where the extremes of a tensor will be."""


class Measurements:
    """The extremes of tensors of one step. `pool` has pages that may be used again."""

    def __init__(self, pool: list[_Page]) -> None:
        self._pool = pool
        self._pages: list[_Page] = []
        self._current: dict[tuple[torch.device, torch.dtype], _Page] = {}
        self.unknown = 0

    def take(self, tensor: Tensor) -> Place | None:
        """Enqueue the search of a tensor's extremes; None if it has no numbers, or none that can be
        looked at: that is counted."""
        try:
            with torch._C.DisableTorchFunction():
                if not torch._C._len_torch_dispatch_stack():
                    return self._take(tensor)
                with outside_modes():
                    return self._take(tensor)
        except Exception:  # of a kind of tensor that can't do this
            self.unknown += 1
            return None

    def _take(self, tensor: Tensor) -> Place | None:
        tensor = getattr(tensor, "_local_tensor", tensor).detach()  # of a DTensor
        if tensor.is_sparse:
            tensor = tensor._values()
        dtype = tensor.dtype
        if dtype.is_complex:
            tensor = torch.view_as_real(tensor.resolve_conj())
            dtype = tensor.dtype
        if not dtype.is_floating_point or tensor.numel() == 0:
            return None
        device = tensor.device
        on_cuda = device_memory.on_cuda(device)
        if (
            not (on_cuda or tensor.is_cpu)
            or dtype not in _COUNTED
            or type(tensor) is not Tensor
            or tensor.untyped_storage().nbytes() == 0  # as FSDP leaves weights that are elsewhere
            or torch._C._functorch.maybe_current_level() is not None
            or (on_cuda and device_memory.is_capturing(tensor))
            or (place := self._place(device, dtype)) is None
        ):
            self.unknown += 1
            return None
        page, number = place
        if on_cuda:
            device_memory.record_stream(page.values)
        # In the order of memory, which is several times faster where that is another.
        if not tensor.is_contiguous():
            order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
            tensor = tensor.permute(order)
        torch.aminmax(tensor, out=page.cells[number])
        return place

    def _place(self, device: torch.device, dtype: torch.dtype) -> Place | None:
        """The next free place."""
        page = self._current.get((device, dtype))
        number = _PAGE if page is None else next(page.numbers)
        if page is not None and number < _PAGE:
            return page, number
        if len(self._pages) == _MOST_PAGES:
            return None
        fitting = (
            one for one in self._pool if (one.values.device, one.values.dtype) == (device, dtype)
        )
        page = next(fitting, None)
        if page is None:
            page = _Page(device, dtype)
        else:
            self._pool.remove(page)
        self._pages.append(page)
        self._current[device, dtype] = page
        return page, next(page.numbers)

    def send(self) -> bool:
        """Have the results copied to the host, as no more tensors come. False during the capture of
        a graph, which would repeat that."""
        with torch._C.DisableTorchFunction(), outside_modes():
            if any(device_memory.is_capturing(page.values) for page in self._pages):
                return False
            for page in self._pages:
                page.send()
        return True

    @property
    def are_here(self) -> bool:
        return all(page.is_here for page in self._pages)

    def read(self) -> dict[Place, Extremes]:
        """Return the results that have arrived. To be called once, when all are here."""
        found: dict[Place, Extremes] = {}
        with torch._C.DisableTorchFunction(), outside_modes():
            for page in self._pages:
                used, before = page.used, len(found)
                for number, extremes in enumerate(map(Extremes, *page.host[:, :used].tolist())):
                    if not extremes.least > extremes.greatest:
                        found[page, number] = extremes
                if len(found) - before == used:
                    page.clear()
                    self._pool.append(page)
                else:  # another stream may still write there
                    self.unknown += before + used - len(found)
        return found
