# SPDX-License-Identifier: Apache-2.0
"""Follows the tensors of a program that runs on a CPU, and records where it would wait for a GPU.

A dispatch mode sees every operator: its results lie where its tensors do, and some operators wait.
What moves tensors is no operator on a CPU, where nothing has to be moved, so those calls are
patched. The values of the tensors, and the random numbers, are what they are without a preview.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from pyinstrument_gpu.aspects.syncs.allow import is_sync_allowed
from pyinstrument_gpu.aspects.syncs.preview.device_argument import is_device, makes_beside
from pyinstrument_gpu.aspects.syncs.preview.patches import Patches, keep_warning_locations, unheard
from pyinstrument_gpu.aspects.syncs.preview.placement import PLAIN, Placement, size_of, storage_key
from pyinstrument_gpu.aspects.syncs.preview.source_call import kind_of_read
from pyinstrument_gpu.aspects.syncs.preview.waiting_operators import MAY_MIX, READ, kind_of_wait
from pyinstrument_gpu.aspects.syncs.sites import site_of, site_of_class
from pyinstrument_gpu.core.sync_kind import ALLOWED, COPY_KINDS, SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hooks import Arguments, Hooks, Options, QuickCheck
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.program_frames import caller, callers, is_of_program
from pyinstrument_gpu.patching.tensor_device import is_non_blocking, target_of_to

_lift = torch.ops.aten.lift_fresh.default
_NO_DOUBT = {*MAY_MIX, torch.ops.aten.detach.default}
_PLACING = {
    "accelerate": {"send_to_device"},
    "lightning": {"batch_to", "move_data_to_device"},
    "lightning_fabric": {"batch_to", "move_data_to_device"},
    "pytorch_lightning": {"batch_to", "move_data_to_device"},
    "transformers": {"_prepare_input", "to"},
}
"""Functions of packages that move the tensors they are given to the device."""
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_AROUND_MODES = (os.path.join(_TORCH, "_dynamo") + os.sep, os.path.join(_TORCH, "_compile.py"))
_DDP = os.path.join(_TORCH, "nn", "parallel", "distributed.py")
_LOADING = {"load_state_dict", "_load_from_state_dict"}


class _ThisThread(threading.local):
    inside = False


class Preview:
    """The patches and the dispatch mode of one preview. It follows the thread that installs it."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._placement = Placement(native.sync_placed)
        self._thread = _ThisThread()
        self._mode = _Following(self)
        self._hooks = Hooks(self._leave_one_hot)
        self._pinning: weakref.WeakSet[Any] = weakref.WeakSet()
        self._doubts: set[int] = set()
        self.active = False

    def install(self) -> None:
        _device_constructors()  # it keeps the functions that it finds at its first call
        patches, tensor = self._patches, torch.Tensor
        keep_warning_locations(patches)
        patches.wrap(tensor, "to", functools.partial(self._moving, SyncKind.TO_CPU))
        patches.wrap(tensor, "cpu", functools.partial(self._moving, SyncKind.CPU))
        for name in ("as_tensor", "asarray"):
            patches.wrap(torch, name, self._converting)
        patches.on_remove(_known_to_jit(torch.as_tensor))
        # Below the Python object, which torch.jit looks up.
        hooks = self._hooks
        patches.on_remove(hooks.remove)
        hooks.function(torch, "tensor", QuickCheck.NEVER, self._enter_tensor)
        hooks.function(torch.nn.functional, "one_hot", QuickCheck.NEVER, self._enter_one_hot)
        for name in ("to", "cpu"):
            patches.wrap(torch.nn.Module, name, self._moving_module)
        for name, kind in {
            "tolist": SyncKind.TOLIST,
            "numpy": SyncKind.RAISES,
            "__repr__": SyncKind.PRINT,
            "__format__": SyncKind.FORMAT,
        }.items():
            patches.wrap(tensor, name, functools.partial(self._reading, kind))
        patches.wrap(torch.UntypedStorage, "clone", self._cloning)
        for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
            # Only memory of the host is copied to be shared with other processes.
            patches.wrap(torch.UntypedStorage, name, self._inside)
        from torch.utils.data import DataLoader, dataloader

        patches.wrap(DataLoader, "_get_iterator", self._iterating)
        for iterator in (
            dataloader._SingleProcessDataLoaderIter,
            dataloader._MultiProcessingDataLoaderIter,
        ):
            patches.wrap(iterator, "_next_data", self._fetching)
        # Dynamo compiles nothing under a mode, which is an error where a whole graph is asked for.
        patches.on_remove(when_imported("torch._dynamo", self._run_eagerly))
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self.active = True
        os.register_at_fork(after_in_child=self._deactivate)

    def _run_eagerly(self) -> None:
        before = torch.compiler.set_stance("force_eager")
        self._patches.on_remove(lambda: before.__exit__(None, None, None))

    def remove(self) -> None:
        self._deactivate()
        self._patches.remove()
        if _get_current_dispatch_mode() is self._mode:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _deactivate(self) -> None:
        self.active = False

    @property
    def has_moved(self) -> bool:
        """True if the program has placed anything on a device."""
        return self._placement.has_moved

    @property
    def not_hooked(self) -> list[str]:
        """Functions that are not built as expected, so that waits in them are not seen."""
        return self._hooks.not_hooked

    @property
    def _is_listening(self) -> bool:
        return self.active and not self._thread.inside

    def _inside(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose operators don't count."""
        self._thread.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self._thread.inside = False

    # Operators

    def before(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Record whether an operator is going to wait. Returns its tensors."""
        tensors = [*_tensors((*args, *kwargs.values()))]
        there = [self._placement.is_on_device(tensor) for tensor in tensors]
        if self._thread.inside:
            return tensors
        kind = kind_of_wait(operator, args, kwargs, self._placement) if any(there) else None
        if any(there) and self._placement.has_moved:
            for tensor in _tensors((*args, *kwargs.values()), _is_unfollowed):
                self._doubt_class(tensor, _calling_frame())
        if kind is not None:
            frame = _calling_frame()
            if operator in READ:
                kind = kind_of_read(frame)
            if kind is not SyncKind.H2D_PAGEABLE or not self._may_lie_there(frame):
                self._record(kind, frame, _size(kind, args))
        elif (
            self._placement.has_moved and operator not in _NO_DOUBT and _is_unplaced(tensors, there)
        ):
            self._doubt(SyncKind.UNPLACED, _calling_frame())
        return tensors

    def _may_lie_there(self, frame: FrameType) -> bool:
        """Return whether what an operator copies to the device may already be there on a GPU: in a
        program that moves nothing, or where it comes from a checkpoint."""
        return not self._placement.has_moved or frame.f_code.co_name in _LOADING

    def after(self, operator: Any, kwargs: dict[str, Any], tensors: list[Any], result: Any) -> None:
        """Say where the results of an operator lie."""
        placement = self._placement
        if operator is _lift:  # of `torch.tensor`
            self._create(result, _calling_frame())
            return
        if tensors:
            if not any(map(placement.is_on_device, tensors)):
                return
            given = {storage_key(tensor) for tensor in tensors}
            for tensor in _tensors((result,)):
                if storage_key(tensor) not in given:
                    placement.inherit(tensor)
        elif kwargs.get("device") is not None:
            frame = _calling_frame()
            if self._is_created_on_device(frame):
                for tensor in _tensors((result,)):
                    placement.put(tensor, True)
            elif makes_beside(frame, placement):
                for tensor in _tensors((result,)):
                    placement.inherit(tensor)

    def _is_created_on_device(self, frame: FrameType) -> bool:
        if frame.f_code.co_filename == _DDP:
            return self._placement.has_moved  # the buckets lie where the parameters do
        for outer in callers(frame):
            in_program = is_of_program(outer)
            found = is_device(outer, self._placement, undecided=True if in_program else None)
            if outer is frame and found is not None:
                return found
            # A library passes on what it was given, or takes the place of a tensor that it has.
            is_beside = outer is not frame and makes_beside(outer, self._placement)
            if found or (is_beside and self._placement.has_moved):
                return True
            if in_program:
                break
        return False

    def _create(self, tensor: Any, frame: FrameType) -> None:
        if type(tensor) in PLAIN and self._is_created_on_device(frame):
            self._record(SyncKind.H2D_PAGEABLE, frame, tensor.nbytes)
            self._placement.put(tensor, True)

    # Calls that move

    def _moving(
        self,
        to_host: SyncKind,
        original: Callable[..., Any],
        tensor: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(tensor, *args, **kwargs)
        if self._is_listening and _is_unfollowed(tensor):
            unheard(None, self._doubt_moved, caller(sys._getframe(1)), tensor, args, kwargs)
        elif self._is_listening and type(tensor) in PLAIN and type(result) in PLAIN:
            frame = caller(sys._getframe(1))
            # Without it, the result is right, in the wrong place.
            return unheard(result, self._move, to_host, frame, tensor, result, args, kwargs)
        return result

    def _doubt_moved(
        self,
        frame: FrameType,
        tensor: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if self._target(frame, args, kwargs):
            self._doubt_class(tensor, frame)

    def _move(
        self,
        to_host: SyncKind,
        frame: FrameType,
        tensor: torch.Tensor,
        result: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        placement = self._placement
        was_there = placement.is_on_device(tensor)
        is_there = False if to_host is SyncKind.CPU else self._target(frame, args, kwargs)
        if is_there is None or is_there == was_there:
            return result
        kind = placement.copy_kind(tensor, is_non_blocking(args, kwargs)) if is_there else to_host
        if kind is not None:
            self._record(kind, frame, size_of(tensor))
        if result is tensor:
            return placement.moved(tensor, is_there)
        placement.put(result, is_there)
        return result

    def _target(
        self, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool | None:
        """Return whether a call of `to` moves to a device, or to the host; None: nothing moves."""
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, torch.Tensor):
            is_there = self._placement.is_on_device(other)
            return None if is_there and not self._placement.has_moved else is_there
        target = target_of_to(args, kwargs)
        if target is None or target.type == "meta":
            return None
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        moves = is_of_program(frame) or frame.f_code.co_name in _PLACING.get(package, ())
        undecided = True if moves else None
        return is_device(frame, self._placement, undecided=undecided, position=0)

    def _moving_module(
        self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_listening:
            return original(module, *args, **kwargs)
        result = self._inside(original, module, *args, **kwargs)
        frame, is_cpu = caller(sys._getframe(1)), original.__name__ == "cpu"
        unheard(None, self._move_module, frame, module, args, kwargs, is_cpu)
        return result

    def _move_module(
        self,
        frame: FrameType,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_cpu: bool,
    ) -> None:
        is_there = False if is_cpu else self._target(frame, args, kwargs)
        if is_there is None and not is_of_program(frame):
            # Where a library places a module, that is the device.
            is_there = bool(args and isinstance(args[0], (str, int, torch.device))) or None
        if is_there is None:
            return
        placement = self._placement
        for tensor in (*module.parameters(), *module.buffers()):
            was_there = placement.has_moved and placement.is_on_device(tensor)
            if was_there != is_there:
                non_blocking = is_non_blocking(args, kwargs)
                kind = placement.copy_kind(tensor, non_blocking) if is_there else SyncKind.TO_CPU
                if kind is not None:
                    self._record(kind, frame, size_of(tensor))
            for one in (tensor, tensor.grad):
                if one is not None:
                    placement.put(one, is_there)

    def _converting(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._is_listening and type(result) in PLAIN and kwargs.get("device") is not None:
            return unheard(result, self._convert, caller(sys._getframe(1)), result)
        return result

    def _convert(self, frame: FrameType, result: torch.Tensor) -> torch.Tensor:
        is_there = is_device(frame, self._placement, undecided=is_of_program(frame))
        if not is_there or self._placement.is_on_device(result):
            return result
        self._record(SyncKind.H2D_PAGEABLE, frame, result.nbytes)
        return self._placement.moved(result, True)

    def _reading(
        self, kind: SyncKind, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_listening or not self._placement.is_on_device(tensor):
            return original(tensor, *args, **kwargs)
        result = self._inside(original, tensor, *args, **kwargs)
        unheard(None, self._record, kind, caller(sys._getframe(1)), size_of(tensor))
        return result

    def _enter_tensor(self, args: Arguments, kwargs: Options | None) -> None:
        """Note the waits of `torch.tensor`, which reads a sequence of tensors one by one."""
        if self._is_listening and args and isinstance(args[0], (list, tuple)):
            for tensor in _elements(args[0]):
                if self._placement.is_on_device(tensor):
                    self._record(SyncKind.ITEM, caller(sys._getframe(1)), tensor.nbytes)

    def _enter_one_hot(self, args: Arguments, kwargs: Options | None) -> int | None:
        """Begin a `one_hot`. On the host it checks the classes. On a device it only counts them,
        unless it is told how many there are."""
        if not self._is_listening or not self._placement.is_on_device(args[0]):
            return None
        count = int(args[1] if len(args) > 1 else (kwargs or {}).get("num_classes", -1))
        self._thread.inside = True
        return count

    def _leave_one_hot(self, count: int, args: Arguments, succeeded: bool) -> None:
        self._thread.inside = False
        if count == -1:
            self._record(SyncKind.DATA_DEPENDENT_SHAPE, caller(sys._getframe(1)), 0)

    def _cloning(self, original: Callable[..., Any], storage: Any) -> Any:
        result = original(storage)
        unheard(None, self._placement.follow, storage, result)
        return result

    # Loaders that would pin their batches

    def _iterating(self, original: Callable[..., Any], loader: Any) -> Any:
        iterator = original(loader)
        if loader.pin_memory:
            self._pinning.add(iterator)
        return iterator

    def _fetching(self, original: Callable[..., Any], iterator: Any) -> Any:
        data = original(iterator)
        if self.active and iterator in self._pinning:
            unheard(None, self._pin, data)
        return data

    def _pin(self, data: Any) -> None:
        for tensor in _tensors((data,)):
            self._placement.pin(tensor)

    # Records

    def _record(self, kind: SyncKind, frame: FrameType, size: int) -> None:
        if not self._is_listening:
            return
        site = site_of(frame, kind, ALLOWED if is_sync_allowed() else 0)
        if site is not None:
            native.sync_end(site, None, size)
        if not self._placement.has_moved and kind not in COPY_KINDS:
            self._doubt(SyncKind.PRESUMED, frame)

    def _doubt(self, kind: SyncKind, frame: FrameType) -> None:
        """Note, once a line, what the preview can't know there."""
        self._doubt_at(site_of(frame, kind, ALLOWED))

    def _doubt_class(self, tensor: Any, frame: FrameType) -> None:
        """Note, once a line, that it met such a tensor."""
        name = type(tensor).__name__
        self._doubt_at(site_of_class(frame, SyncKind.UNFOLLOWED, ALLOWED, name))

    def _doubt_at(self, site: int | None) -> None:
        if site is not None and site not in self._doubts:
            self._doubts.add(site)
            native.sync_end(site, None, 0)


class _Following(TorchDispatchMode):
    def __init__(self, preview: Preview) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._preview = preview

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        preview = self._preview
        if not preview.active:
            return func(*args, **kwargs)
        tensors = unheard(None, preview.before, func, args, kwargs)
        result = func(*args, **kwargs)
        if tensors is not None:
            unheard(None, preview.after, func, kwargs, tensors, result)
        return result


def _known_to_jit(as_tensor: Callable[..., Any]) -> Callable[[], None]:
    """Have torch.jit take our function for the one that it knows. Returns what ends that."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()
    table[id(as_tensor)] = "aten::as_tensor"
    return functools.partial(table.__delitem__, id(as_tensor))


def _calling_frame() -> FrameType:
    """The innermost frame that called an operator: around a dispatch mode lie some of Dynamo's."""
    frame = caller(sys._getframe(1))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_AROUND_MODES):
        frame = caller(frame.f_back)
    return frame


def _is_unplaced(tensors: list[torch.Tensor], there: list[bool]) -> bool:
    """Return whether tensors of the host meet such of the device, or are trained without any."""
    of_host = [tensor for tensor, is_there in zip(tensors, there, strict=True) if not is_there]
    if any(there):
        return any(tensor.dim() for tensor in of_host)
    is_recorded = torch.is_grad_enabled()
    return is_recorded and any(tensor.is_leaf and tensor.requires_grad for tensor in of_host)


def _is_followed(value: Any) -> bool:
    return type(value) in PLAIN


def _is_unfollowed(value: Any) -> bool:
    """Return whether it is a tensor of a class of its own."""
    return issubclass(type(value), torch.Tensor) and type(value) not in PLAIN


def _tensors(values: Any, are: Callable[[Any], bool] = _is_followed) -> Iterator[torch.Tensor]:
    """The tensors that are such among some values, and in what contains them."""
    for value in values:
        if are(value):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value, are)
        elif isinstance(value, dict):
            yield from _tensors(value.values(), are)


def _elements(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of a sequence, or of sequences in it, if such is what it begins with."""
    if values and isinstance(values[0], (list, tuple)):
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from _elements(value)
    elif values and isinstance(values[0], torch.Tensor):
        yield from (value for value in values if type(value) in PLAIN)


def _size(kind: SyncKind, args: tuple[Any, ...]) -> int:
    """The bytes that would be copied between host and device."""
    if kind in COPY_KINDS:
        return next((t.nbytes for t in list(_tensors(args))[1:]), 0)
    if kind in (SyncKind.DATA_DEPENDENT_SHAPE, SyncKind.BOOLEAN_INDEX, SyncKind.COMPARE):
        return 0
    return next((size_of(tensor) for tensor in _tensors(args)), 0)
