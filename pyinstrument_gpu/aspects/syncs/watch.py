# SPDX-License-Identifier: Apache-2.0
"""Watching the calls with which a program makes the host wait for a device.

The methods of `torch.Tensor` and the functions of torch that wait are hooked. Of calls inside each
other only the outermost counts. docs/waits.md says what this can't see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pyinstrument_gpu.aspects.syncs import sites
from pyinstrument_gpu.aspects.syncs.allow import is_sync_allowed
from pyinstrument_gpu.aspects.syncs.sites import site_of
from pyinstrument_gpu.core.sync_kind import ALLOWED, COPY_KINDS, SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo, program_frames, tensor_device
from pyinstrument_gpu.patching import hooks as hooks_module
from pyinstrument_gpu.patching.hooks import Arguments, Enter, Hooks, Options, QuickCheck
from pyinstrument_gpu.patching.program_frames import caller

_Waits = Callable[[Arguments, Options], SyncKind | None]
"""Whether a call waits, and how; the first argument is `self`, if there is one."""
_Wait = tuple[SyncKind, int]
"""A wait that goes on, and the tick at which it began."""
_INDICES = (int, slice, type(None), type(...))


def can_wait() -> bool:
    """Return whether this build of torch knows a kind of device that a host could wait for."""
    return tensor_device.accelerator_type() is not None


class SyncWatch:
    """The hooks of one watch."""

    def __init__(self) -> None:
        self._hooks = Hooks(self._leaves)

    def install(self) -> None:
        dynamo.leave_out(sys.modules[__name__], hooks_module, tensor_device, sites, program_frames)
        hooks = self._hooks
        for name, quick_check, waits in _METHODS:
            hooks.method(name, quick_check, _entering(waits))
        for owner, name, quick_check, waits in _FUNCTIONS:
            hooks.function(owner, name, quick_check, _entering(waits))
        hooks.subscripts(QuickCheck.INDEX, _entering(_indexes), _entering(_assigns))

    @property
    def not_hooked(self) -> list[str]:
        return self._hooks.not_hooked

    def remove(self) -> None:
        self._hooks.remove()

    def _leaves(self, wait: _Wait, args: Arguments, succeeded: bool) -> None:
        native.set_in_watched_call(False)
        if succeeded:
            with torch._C.DisableTorchFunction():
                _record(*wait, args, caller(sys._getframe(1)))


def _entering(waits: _Waits) -> Enter:
    """Return the function for the begin of a hooked call."""

    def enter(args: Arguments, kwargs: Options | None) -> _Wait | None:
        with torch._C.DisableTorchFunction():  # no class or mode should see our questions
            kind = waits(args, kwargs or {})
        if kind is None:
            return None
        native.set_in_watched_call(True)
        return kind, native.sync_begin()

    return enter


def _record(kind: SyncKind, begin: int, args: Arguments, frame: FrameType) -> None:
    try:
        site = site_of(frame, kind, ALLOWED if is_sync_allowed() else 0)
        if site is not None:
            native.sync_end(site, begin, _bytes_of(kind, args))
    except Exception:
        # A wait that is not counted, and a program that goes on.
        return


def _lies_there(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor_device.is_on_device(tensor)
        and not tensor_device.is_fake_tensor(tensor)
    )


# Whether a call waits


def _always(kind: SyncKind) -> _Waits:
    return lambda args, kwargs: kind


def _reads(kind: SyncKind) -> _Waits:
    return lambda args, kwargs: kind if args and _lies_there(args[0]) else None


def _repeats(args: Arguments, kwargs: Options) -> SyncKind | None:
    repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
    is_known = kwargs.get("output_size") is not None or not _lies_there(repeats)
    return None if is_known else SyncKind.DATA_DEPENDENT_SHAPE


def _finds(args: Arguments, kwargs: Options) -> SyncKind | None:
    is_found = len(args) + len(kwargs) == 1 and args and _lies_there(args[0])
    return SyncKind.DATA_DEPENDENT_SHAPE if is_found else None


def _indexes(args: Arguments, kwargs: Options) -> SyncKind | None:
    for part in _parts(args[1]):
        if _lies_there(part):
            if _is_mask(part):
                return SyncKind.BOOLEAN_INDEX
            if _is_scalar(part):
                return SyncKind.INT  # PyTorch reads it: ATen/TensorIndexing.h
    return None


def _assigns(args: Arguments, kwargs: Options) -> SyncKind | None:
    # PyTorch fills by the mask, without counting what it selects, if the value is one number
    # that the host knows and nothing else in the index selects elements
    # (`canDispatchToMaskedFill` in ATen/native/TensorAdvancedIndexingUtils.h).
    index, value = args[1], args[2]
    is_known = not isinstance(value, torch.Tensor) or (
        tensor_device.bytes_of(value) == value.element_size() and not _lies_there(value)
    )
    selecting = [part for part in _parts(index) if type(part) not in _INDICES]
    is_filled = is_known and len(selecting) == 1 and not _is_scalar(selecting[0])
    return None if is_filled else _indexes(args, kwargs)


def _moves(args: Arguments, kwargs: Options) -> SyncKind | None:
    target = tensor_device.target_of_to(args[1:], kwargs)
    if target is None:
        return None
    if target.type == "cpu":
        return SyncKind.TO_CPU if _lies_there(args[0]) else None
    if target.type in tensor_device.HOST_TYPES:
        return None
    return _goes_to_device(args, kwargs)


def _goes_to_device(args: Arguments, kwargs: Options) -> SyncKind | None:
    return _copy_kind(args[0], tensor_device.is_non_blocking(args[1:], kwargs))


def _copies(args: Arguments, kwargs: Options) -> SyncKind | None:
    target, source = args[0], args[1]
    non_blocking = tensor_device.is_non_blocking(args[2:], kwargs)
    if tensor_device.is_on_device(target):
        return _copy_kind(source, non_blocking)
    return SyncKind.CPU if tensor_device.is_on_device(source) and not non_blocking else None


def _copy_kind(source: torch.Tensor, non_blocking: bool) -> SyncKind | None:
    if not tensor_device.is_on_host(source):
        return None
    if not source.is_pinned():
        return SyncKind.H2D_PAGEABLE
    return None if non_blocking else SyncKind.H2D_PINNED


def _parts(index: Any) -> Arguments:
    return index if type(index) is tuple else (index,)


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _is_scalar(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dim() == 0


def _bytes_of(kind: SyncKind, args: Arguments) -> int:
    """The bytes that were copied between host and device: those of the first argument, of the
    source of a `copy_`, or of an index that was read."""
    if kind in (SyncKind.DATA_DEPENDENT_SHAPE, SyncKind.BOOLEAN_INDEX, SyncKind.COMPARE):
        return 0
    tensors = [argument for argument in args[:2] if isinstance(argument, torch.Tensor)]
    if kind in COPY_KINDS:
        tensors = [tensor for tensor in tensors if tensor_device.is_on_host(tensor)]
    elif kind is SyncKind.INT and len(args) > 1:
        tensors = list(filter(_is_scalar, _parts(args[1])))
    return tensor_device.bytes_of(tensors[0]) if tensors else 0


_SHAPE = _reads(SyncKind.DATA_DEPENDENT_SHAPE)
_BOTH = (
    ("nonzero", QuickCheck.FIRST, _SHAPE),
    ("argwhere", QuickCheck.FIRST, _SHAPE),
    ("masked_select", QuickCheck.FIRST, _SHAPE),
    ("bincount", QuickCheck.FIRST, _SHAPE),
    ("equal", QuickCheck.FIRST, _reads(SyncKind.COMPARE)),
    ("allclose", QuickCheck.FIRST, _reads(SyncKind.COMPARE)),
    ("is_nonzero", QuickCheck.FIRST, _reads(SyncKind.BOOL)),
    ("repeat_interleave", QuickCheck.ARGUMENTS, _repeats),
)
"""Both methods and functions of torch."""
_METHODS: tuple[tuple[str, QuickCheck, _Waits], ...] = (
    *_BOTH,
    ("item", QuickCheck.FIRST, _reads(SyncKind.ITEM)),
    ("__float__", QuickCheck.FIRST, _reads(SyncKind.FLOAT)),
    ("__int__", QuickCheck.FIRST, _reads(SyncKind.INT)),
    ("__index__", QuickCheck.FIRST, _reads(SyncKind.INT)),
    ("__bool__", QuickCheck.FIRST, _reads(SyncKind.BOOL)),
    ("__complex__", QuickCheck.FIRST, _reads(SyncKind.COMPLEX)),
    ("tolist", QuickCheck.FIRST, _reads(SyncKind.TOLIST)),
    ("numpy", QuickCheck.FIRST, _reads(SyncKind.NUMPY)),
    ("cpu", QuickCheck.FIRST, _reads(SyncKind.CPU)),
    ("to", QuickCheck.TO, _moves),
    ("cuda", QuickCheck.NEVER, _goes_to_device),
    ("copy_", QuickCheck.ARGUMENTS, _copies),
)
_FUNCTIONS: tuple[tuple[Any, str, QuickCheck, _Waits], ...] = (
    *((torch, *each) for each in _BOTH),
    (torch, "where", QuickCheck.ONLY, _finds),
    # Builtin functions, which `unique` and `unique_consecutive` call.
    (torch._C._VariableFunctions, "_unique2", QuickCheck.FIRST, _SHAPE),
    (torch._C._VariableFunctions, "unique_dim", QuickCheck.FIRST, _SHAPE),
    (torch._C._VariableFunctions, "unique_consecutive", QuickCheck.FIRST, _SHAPE),
    # Functions in Python, which slots of the type call.
    (torch.Tensor, "__repr__", QuickCheck.FIRST, _reads(SyncKind.PRINT)),
    (torch.nn.Parameter, "__repr__", QuickCheck.FIRST, _reads(SyncKind.PRINT)),
    (torch.Tensor, "__format__", QuickCheck.FIRST, _reads(SyncKind.FORMAT)),
    (torch.Tensor, "__contains__", QuickCheck.FIRST, _reads(SyncKind.COMPARE)),
    (torch.cuda, "synchronize", QuickCheck.NEVER, _always(SyncKind.SYNCHRONIZE)),
    (torch.accelerator, "synchronize", QuickCheck.NEVER, _always(SyncKind.SYNCHRONIZE)),
    (torch.cuda.Stream, "synchronize", QuickCheck.NEVER, _always(SyncKind.STREAM_SYNCHRONIZE)),
    (torch.cuda.Event, "synchronize", QuickCheck.NEVER, _always(SyncKind.EVENT_SYNCHRONIZE)),
)
