# SPDX-License-Identifier: Apache-2.0
"""Watching the calls with which a program makes the host wait for a device.

The methods of `torch.Tensor` and the functions of torch that wait are wrapped. Of calls inside each
other only the outermost counts. docs/honest-time.md says what this can't see.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling

from pyinstrument_gpu.model.sync_kind import ALLOWED, SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo, tensor_device, torch_function, warning_locations
from pyinstrument_gpu.patching.patches import Patches
from pyinstrument_gpu.syncs import is_sync_allowed
from pyinstrument_gpu.syncs.sites import caller, names_cpu, site_of, stays_on_host

_Arguments = tuple[Any, ...]
_Options = dict[str, Any]
_Waits = Callable[[_Arguments, _Options], SyncKind | None]
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
    "__repr__": SyncKind.PRINT,
    "__format__": SyncKind.FORMAT,
    "__contains__": SyncKind.COMPARE,
}
_FUNCTIONS = {  # of torch, and methods of the same name
    "nonzero": SyncKind.DATA_DEPENDENT_SHAPE,
    "argwhere": SyncKind.DATA_DEPENDENT_SHAPE,
    "unique": SyncKind.DATA_DEPENDENT_SHAPE,
    "unique_consecutive": SyncKind.DATA_DEPENDENT_SHAPE,
    "masked_select": SyncKind.DATA_DEPENDENT_SHAPE,
    "bincount": SyncKind.DATA_DEPENDENT_SHAPE,
    "equal": SyncKind.COMPARE,
    "allclose": SyncKind.COMPARE,
    "is_nonzero": SyncKind.BOOL,
}
_SYNCHRONIZERS: tuple[tuple[Any, SyncKind], ...] = (
    (torch.cuda, SyncKind.SYNCHRONIZE),
    (torch.accelerator, SyncKind.SYNCHRONIZE),
    (torch.cuda.Stream, SyncKind.STREAM_SYNCHRONIZE),
    (torch.cuda.Event, SyncKind.EVENT_SYNCHRONIZE),
)


class _ThisThread(threading.local):
    copied: tuple[int, int, int] | None = None  # tensor and frame, by id, and line


class SyncWatch:
    """The patches of one watch.

    Args:
        as_if: count calls on tensors of the host as if they lay on a device. Nothing is waited for,
            so their price is unknown.
    """

    def __init__(self, as_if: bool = False) -> None:
        self._as_if = as_if
        self._patches = Patches()
        self._thread = _ThisThread()

    def install(self) -> None:
        patches = self._patches
        patches.on_remove(dynamo.leave_out(sys.modules[__name__], torch_function))
        builtins = [getattr(torch, name) for name in (*_FUNCTIONS, "repeat_interleave", "where")]
        patches.on_remove(dynamo.keep_in_graphs(list(filter(inspect.isbuiltin, builtins))))
        warning_locations.install(patches)
        for name, kind in _METHODS.items():
            patches.wrap(torch.Tensor, name, self._watching_reader(name, kind))
        for name, kind in _FUNCTIONS.items():
            for owner in (torch.Tensor, torch):
                self._wrap_function(owner, name, self._reads(kind))
        for owner in (torch.Tensor, torch):
            self._wrap_function(owner, "repeat_interleave", self._repeats)
        self._wrap_function(torch, "where", self._finds)
        patches.wrap(torch.Tensor, "to", self._watching_to)
        methods: dict[str, _Waits] = {
            "cuda": self._goes_to_device,
            "copy_": self._copies,
        }
        for name, waits in methods.items():
            patches.wrap(torch.Tensor, name, self._watching(torch.Tensor, name, waits))
        for owner, kind in _SYNCHRONIZERS:
            patches.wrap(owner, "synchronize", self._watching(owner, "synchronize", _always(kind)))
        self._hook_subscripts()

    def remove(self) -> None:
        self._patches.remove()

    def _hook_subscripts(self) -> None:
        with torch._C.DisableTorchFunction():  # no mode need hear of these two
            probes = [torch.empty(0, device=device) for device in ("cpu", "meta")]
        native.glance_at_tensors(torch.Tensor, torch.nn.Parameter, *probes)
        leave = self._leaves
        if native.hook_subscripts(
            torch._C.TensorBase,
            enter_get=self._entering(self._indexes),
            enter_set=self._entering(self._assigns),
            leave=leave,
            hears_of_host=self._as_if,
        ):
            self._patches.on_remove(lambda: native.unhook(leave))

    def _entering(self, waits: _Waits) -> Callable[[_Arguments, _Options | None], _Wait | None]:
        """What hears of the begin of a hooked call."""

        def enter(args: _Arguments, kwargs: _Options | None) -> _Wait | None:
            with torch._C.DisableTorchFunction():  # no class or mode need hear of questions of ours
                kind = waits(args, kwargs or {})
            if kind is None:
                return None
            native.set_in_watched_call(True)
            return kind, native.sync_begin()

        return enter

    def _leaves(self, wait: _Wait, args: _Arguments, succeeded: bool) -> None:
        native.set_in_watched_call(False)
        if succeeded:
            self._record(*wait, args, caller(sys._getframe(1)))

    def _wrap_function(self, owner: Any, name: str, waits: _Waits) -> None:
        from torch._jit_internal import boolean_dispatched
        from torch.jit import _builtins

        original: Any = getattr(owner, name, None)
        operator = _builtins._find_builtin(original)
        self._patches.wrap(owner, name, self._watching(owner, name, waits))
        wrapper = getattr(owner, name)
        # torch.jit.script then takes the wrapper for the function.
        if original in boolean_dispatched:
            boolean_dispatched[wrapper] = boolean_dispatched[original]
        if operator is not None:
            _builtins._register_builtin(wrapper, operator)
            table = _builtins._get_builtin_table()
            self._patches.on_remove(lambda: table.pop(id(wrapper), None))

    def _watching(
        self, owner: Any, name: str, waits: _Waits
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        patches = self._patches

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            call = torch_function.heeding(owner, name, original)

            @functools.wraps(original)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(*args, **kwargs)
                if native.in_watched_call() or not patches.active:
                    return call(*args, **kwargs)
                try:
                    kind = waits(args, kwargs)
                except Exception:
                    kind = None  # wrong arguments: the function itself will say so
                if kind is None:
                    return call(*args, **kwargs)
                begin = native.sync_begin()
                native.set_in_watched_call(True)
                try:
                    result = call(*args, **kwargs)
                finally:
                    native.set_in_watched_call(False)
                self._record(kind, begin, args, caller(sys._getframe(1)))
                return result

            return wrapper

        return wrap

    def _watching_reader(
        self, name: str, kind: SyncKind
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """As `_watching`, with a short way for what is called most: plain tensors of the host."""
        as_if, has_modes = self._as_if, tensor_device.has_modes

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            watched = self._watching(torch.Tensor, name, self._reads(kind))(original)

            @functools.wraps(original)
            def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                if (
                    type(self) in tensor_device.PLAIN
                    and not has_modes()
                    and self.is_cpu
                    and not as_if
                ):
                    return original(self, *args, **kwargs)
                return watched(self, *args, **kwargs)

            return method

        return wrap

    def _watching_to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """As `_watching`, with a short way for what plainly stays on the host."""
        watched = self._watching(torch.Tensor, "to", self._moves)(original)
        as_if = self._as_if

        @functools.wraps(original)
        def to(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not as_if and tensor_device.plainly_stays(self, args, kwargs):
                return original(self, *args, **kwargs)
            return watched(self, *args, **kwargs)

        return to

    def _record(self, kind: SyncKind, begin: int, args: _Arguments, frame: FrameType) -> None:
        try:
            tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
            is_real = tensor is None or kind in _TO_DEVICE or tensor_device.is_on_device(tensor)
            if not is_real and (
                stays_on_host(frame)
                or (kind is SyncKind.TO_CPU and not names_cpu(frame))
                or self._was_copied(kind, tensor, frame)
            ):
                return
            site = site_of(frame, kind, ALLOWED if is_sync_allowed() else 0)
            if site is not None:
                native.sync_end(site, begin if is_real else None, _bytes_of(kind, args))
        except Exception:
            # A wait that is not counted, and a program that goes on.
            return

    def _was_copied(self, kind: SyncKind, tensor: Any, frame: FrameType) -> bool:
        # `x.cpu().numpy()` waits once; where nothing is on a device, both are calls on x.
        here = (id(tensor), id(frame), frame.f_lineno)
        before, self._thread.copied = self._thread.copied, None
        if kind in (SyncKind.CPU, SyncKind.TO_CPU):
            self._thread.copied = here
            return False
        return before == here

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

    def _reads(self, kind: SyncKind) -> _Waits:
        return lambda args, kwargs: kind if args and self._lies_there(args[0]) else None

    def _repeats(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        is_known = kwargs.get("output_size") is not None or not self._lies_there(repeats)
        return None if is_known else SyncKind.DATA_DEPENDENT_SHAPE

    def _finds(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        is_found = len(args) + len(kwargs) == 1 and args and self._lies_there(args[0])
        return SyncKind.DATA_DEPENDENT_SHAPE if is_found else None

    def _indexes(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        for part in _parts(args[1]):
            if isinstance(part, torch.Tensor) and self._lies_there(part):
                if _is_mask(part):
                    return SyncKind.BOOLEAN_INDEX
                if _is_scalar(part):
                    return SyncKind.INT  # PyTorch reads it: ATen/TensorIndexing.h
        return None

    def _assigns(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
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

    def _moves(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        target = tensor_device.target_of_to(args[1:], kwargs)
        if target is None:
            return None
        if target.type == "cpu":
            return SyncKind.TO_CPU if self._lies_there(args[0]) else None
        if target.type in tensor_device.HOST_TYPES:
            return None
        return self._goes_to_device(args, kwargs)

    def _goes_to_device(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        return _copy_kind(args[0], tensor_device.is_non_blocking(args[1:], kwargs))

    def _copies(self, args: _Arguments, kwargs: _Options) -> SyncKind | None:
        target, source = args[0], args[1]
        if tensor_device.is_on_device(target):
            return _copy_kind(source, tensor_device.is_non_blocking(args[2:], kwargs))
        non_blocking = tensor_device.is_non_blocking(args[2:], kwargs)
        return SyncKind.CPU if tensor_device.is_on_device(source) and not non_blocking else None


def _always(kind: SyncKind) -> _Waits:
    return lambda args, kwargs: kind


_TO_DEVICE = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)


def _copy_kind(source: torch.Tensor, non_blocking: bool) -> SyncKind | None:
    if not tensor_device.is_on_host(source):
        return None
    if not source.is_pinned():
        return SyncKind.H2D_PAGEABLE
    return None if non_blocking else SyncKind.H2D_PINNED


def _parts(index: Any) -> _Arguments:
    return index if type(index) is tuple else (index,)


def _is_mask(index: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return index.dtype in (torch.bool, torch.uint8)


def _is_scalar(index: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(index, torch.Tensor) and index.dim() == 0


def _bytes_of(kind: SyncKind, args: _Arguments) -> int:
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
