# SPDX-License-Identifier: Apache-2.0
"""Watching the calls with which a program makes the host wait for a device.

The methods of `torch.Tensor` and the functions of torch that wait are hooked. Of calls inside each
other only the outermost counts. docs/honest-time.md says what this can't see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pyinstrument_gpu.model.sync_kind import ALLOWED, SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo, tensor_device
from pyinstrument_gpu.patching import hooks as hooks_module
from pyinstrument_gpu.patching.hooks import Arguments, Enter, Glance, Hooks, Options
from pyinstrument_gpu.syncs import is_sync_allowed, sites
from pyinstrument_gpu.syncs.sites import caller, site_of

_Waits = Callable[[Arguments, Options], SyncKind | None]
"""Whether a call waits, and how; the first argument is `self`, if there is one."""
_Wait = tuple[SyncKind, int]
"""A wait that goes on, and the tick at which it began."""
_INDICES = (int, slice, type(None), type(...))

_METHODS = {
    "item": SyncKind.ITEM,
    "__float__": SyncKind.FLOAT,
    "__int__": SyncKind.INT,
    "__index__": SyncKind.INT,
    "__bool__": SyncKind.BOOL,
    "__complex__": SyncKind.COMPLEX,
    "tolist": SyncKind.TOLIST,
    "numpy": SyncKind.NUMPY,
    "cpu": SyncKind.CPU,
}
_FUNCTIONS = {  # of torch, and methods of the same name
    "nonzero": SyncKind.DATA_DEPENDENT_SHAPE,
    "argwhere": SyncKind.DATA_DEPENDENT_SHAPE,
    "masked_select": SyncKind.DATA_DEPENDENT_SHAPE,
    "bincount": SyncKind.DATA_DEPENDENT_SHAPE,
    "equal": SyncKind.COMPARE,
    "allclose": SyncKind.COMPARE,
    "is_nonzero": SyncKind.BOOL,
}
_UNIQUE = ("_unique2", "unique_dim", "unique_consecutive")
"""Builtin functions, which `unique` and `unique_consecutive` call."""
_SLOTS: tuple[tuple[type, str, SyncKind], ...] = (
    (torch.Tensor, "__repr__", SyncKind.PRINT),
    (torch.nn.Parameter, "__repr__", SyncKind.PRINT),
    (torch.Tensor, "__format__", SyncKind.FORMAT),
    (torch.Tensor, "__contains__", SyncKind.COMPARE),
)
"""Functions in Python, which slots of the type call."""
_SYNCHRONIZERS: tuple[tuple[Any, SyncKind], ...] = (
    (torch.cuda, SyncKind.SYNCHRONIZE),
    (torch.accelerator, SyncKind.SYNCHRONIZE),
    (torch.cuda.Stream, SyncKind.STREAM_SYNCHRONIZE),
    (torch.cuda.Event, SyncKind.EVENT_SYNCHRONIZE),
)


def can_wait() -> bool:
    """Whether this build of torch knows a kind of device that a host could wait for."""
    return tensor_device.accelerator_type() is not None


class SyncWatch:
    """The hooks of one watch.

    Args:
        as_if: count calls on tensors of the host as if they lay on a device. Nothing is waited for,
            so their price is unknown.
    """

    def __init__(self, as_if: bool = False) -> None:
        self._as_if = as_if
        self._hooks = Hooks(self._leaves, as_if)
        self._withdraw: Callable[[], None] | None = None

    def install(self) -> None:
        hooks = self._hooks
        ours = (sys.modules[__name__], hooks_module, tensor_device, sites)
        self._withdraw = dynamo.leave_out(*ours)
        for name, kind in _METHODS.items():
            hooks.method(name, Glance.FIRST, self._entering(self._reads(kind)))
        for name, kind in _FUNCTIONS.items():
            hooks.method(name, Glance.FIRST, self._entering(self._reads(kind)))
            hooks.function(torch, name, Glance.FIRST, self._entering(self._reads(kind)))
        shape = self._reads(SyncKind.DATA_DEPENDENT_SHAPE)
        for name in _UNIQUE:
            functions = torch._C._VariableFunctions
            hooks.function(functions, name, Glance.FIRST, self._entering(shape))
        for kind_of_type, name, kind in _SLOTS:
            hooks.function(kind_of_type, name, Glance.FIRST, self._entering(self._reads(kind)))
        hooks.method("repeat_interleave", Glance.ARGUMENTS, self._entering(self._repeats))
        hooks.function(torch, "repeat_interleave", Glance.ARGUMENTS, self._entering(self._repeats))
        hooks.function(torch, "where", Glance.ONLY, self._entering(self._finds))
        hooks.method("to", Glance.TO, self._entering(self._moves))
        hooks.method("cuda", Glance.NEVER, self._entering(self._goes_to_device))
        hooks.method("copy_", Glance.ARGUMENTS, self._entering(self._copies))
        hooks.subscripts(self._entering(self._indexes), self._entering(self._assigns))
        for owner, kind in _SYNCHRONIZERS:
            hooks.function(owner, "synchronize", Glance.NEVER, self._entering(self._always(kind)))

    @property
    def not_hooked(self) -> list[str]:
        return self._hooks.not_hooked

    def remove(self) -> None:
        self._hooks.remove()
        if self._withdraw is not None:
            self._withdraw()

    def _entering(self, waits: _Waits) -> Enter:
        """What hears of the begin of a hooked call."""

        def enter(args: Arguments, kwargs: Options | None) -> _Wait | None:
            with torch._C.DisableTorchFunction():  # no class or mode need hear of questions of ours
                kind = waits(args, kwargs or {})
            if kind is None:
                return None
            native.set_in_watched_call(True)
            return kind, native.sync_begin()

        return enter

    def _leaves(self, wait: _Wait, args: Arguments, succeeded: bool) -> None:
        native.set_in_watched_call(False)
        if succeeded:
            with torch._C.DisableTorchFunction():
                self._record(*wait, args, caller(sys._getframe(1)))

    def _record(self, kind: SyncKind, begin: int, args: Arguments, frame: FrameType) -> None:
        try:
            tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
            is_real = tensor is None or kind in _TO_DEVICE or tensor_device.is_on_device(tensor)
            site = site_of(frame, kind, ALLOWED if is_sync_allowed() else 0)
            if site is not None:
                native.sync_end(site, begin if is_real else None, _bytes_of(kind, args))
        except Exception:
            # A wait that is not counted, and a program that goes on.
            return

    # Whether a call waits

    def _lies_there(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and not tensor_device.is_fake(tensor)
            and (
                tensor_device.is_on_device(tensor)
                or (self._as_if and tensor_device.is_on_host(tensor))
            )
        )

    def _always(self, kind: SyncKind) -> _Waits:
        return lambda args, kwargs: kind

    def _reads(self, kind: SyncKind) -> _Waits:
        return lambda args, kwargs: kind if args and self._lies_there(args[0]) else None

    def _repeats(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        is_known = kwargs.get("output_size") is not None or not self._lies_there(repeats)
        return None if is_known else SyncKind.DATA_DEPENDENT_SHAPE

    def _finds(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        is_found = len(args) + len(kwargs) == 1 and args and self._lies_there(args[0])
        return SyncKind.DATA_DEPENDENT_SHAPE if is_found else None

    def _indexes(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        for part in _parts(args[1]):
            if isinstance(part, torch.Tensor) and self._lies_there(part):
                if _is_mask(part):
                    return SyncKind.BOOLEAN_INDEX
                if _is_scalar(part):
                    return SyncKind.INT  # PyTorch reads it: ATen/TensorIndexing.h
        return None

    def _assigns(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        # PyTorch fills by the mask, without counting what it selects, if the value is one number
        # that the host knows and nothing else in the index selects elements
        # (`canDispatchToMaskedFill` in ATen/native/TensorAdvancedIndexingUtils.h).
        index, value = args[1], args[2]
        is_known = not isinstance(value, torch.Tensor) or (
            value.numel() == 1 and not self._lies_there(value)
        )
        selecting = [part for part in _parts(index) if type(part) not in _INDICES]
        is_filled = is_known and len(selecting) == 1 and not _is_scalar(selecting[0])
        return None if is_filled else self._indexes(args, kwargs)

    def _moves(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        target = tensor_device.target_of_to(args[1:], kwargs)
        if target is None:
            return None
        if target.type == "cpu":
            return SyncKind.TO_CPU if self._lies_there(args[0]) else None
        if target.type in tensor_device.HOST_TYPES:
            return None
        return self._goes_to_device(args, kwargs)

    def _goes_to_device(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        return _copy_kind(args[0], tensor_device.is_non_blocking(args[1:], kwargs))

    def _copies(self, args: Arguments, kwargs: Options) -> SyncKind | None:
        target, source = args[0], args[1]
        if tensor_device.is_on_device(target):
            return _copy_kind(source, tensor_device.is_non_blocking(args[2:], kwargs))
        non_blocking = tensor_device.is_non_blocking(args[2:], kwargs)
        return SyncKind.CPU if tensor_device.is_on_device(source) and not non_blocking else None


_TO_DEVICE = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)


def _copy_kind(source: torch.Tensor, non_blocking: bool) -> SyncKind | None:
    if not tensor_device.is_on_host(source):
        return None
    if not source.is_pinned():
        return SyncKind.H2D_PAGEABLE
    return None if non_blocking else SyncKind.H2D_PINNED


def _parts(index: Any) -> Arguments:
    return index if type(index) is tuple else (index,)


def _is_mask(index: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return index.dtype in (torch.bool, torch.uint8)


def _is_scalar(index: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(index, torch.Tensor) and index.dim() == 0


def _bytes_of(kind: SyncKind, args: Arguments) -> int:
    """The bytes that were copied between host and device: those of the first argument, of the
    source of a `copy_`, or of an index that was read."""
    if kind in (SyncKind.DATA_DEPENDENT_SHAPE, SyncKind.BOOLEAN_INDEX, SyncKind.COMPARE):
        return 0
    tensors = [argument for argument in args[:2] if isinstance(argument, torch.Tensor)]
    if kind in _TO_DEVICE:
        tensors = [tensor for tensor in tensors if tensor_device.is_on_host(tensor)]
    elif kind is SyncKind.INT and len(args) > 1:
        tensors = list(filter(_is_scalar, _parts(args[1])))
    return tensors[0].numel() * tensors[0].element_size() if tensors else 0
