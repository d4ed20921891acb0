# SPDX-License-Identifier: Apache-2.0
"""The state of an accumulator: where it is, and what is done with all of it."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyinstrument_gpu.metrics import kernels
from pyinstrument_gpu.metrics.addition import never_compiled, number
from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES, MetricOptions
from pyinstrument_gpu.metrics.state import (
    MAX_SCALARS,
    RESET_OFFSET,
    STATE_DTYPE,
    MetricState,
    StateSnapshot,
    word,
)
from pyinstrument_gpu.metrics.state_dict import loaded, state_dict_of
from pyinstrument_gpu.metrics.values import Reading, values_of
from pyinstrument_gpu.native import IMPORT_ERROR, native
from pyinstrument_gpu.patching import device_memory
from pyinstrument_gpu.patching.device_memory import outside_modes

_LOST = "an update of the metrics was lost, and counted in lost_updates"
_PLACED_IN_CAPTURE = (
    "the first one was inside the capture of a CUDA graph, where the accumulator cannot be set up; "
    "make one update before the capture"
)
_EXTREMES = ("loss_min", "loss_max", "first_nonfinite_update")
"""Values that a window can't tell, besides those of running values."""

_captured: list[tuple[Tensor, Tensor | None]] = []
"""State and scratch of accumulators that are gone, and of whose updates some were captured into a
graph: it may be replayed at any time, and the kernels in it write there."""


class AccumulatedState:
    """A state in the memory of a device, beside what the host knows of it.

    It is made in host memory, and moved to the device of the first tensors. It is copied, cleared,
    saved, loaded and read here; what adds to it is a `MetricAccumulator`.
    """

    def __init__(self, options: MetricOptions, name: str) -> None:
        self._options: MetricOptions = options
        if not isinstance(name, str) or len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"name must be a str of up to {MAX_NAME_BYTES} bytes, got {name!r}")
        self._name = name
        # In host memory until the first tensors say where it belongs: so far it has only numbers.
        # The pages of NumPy's zeros take no memory before they are used.
        with outside_modes():
            self._state = torch.from_numpy(np.zeros(self._options.state_bytes, np.uint8))
        self._is_placed = self._is_loaded = False
        self._scalar_slots: dict[str, int] = {}
        self._lost_updates = 0
        self._reference_updates = 0
        self._resets = 0
        self._updates_at_reset = 0  # in host memory, where an update without rows changes no more
        self._begin(counts=[0] * (1 + MAX_SCALARS))

    def _begin(self, counts: Sequence[int] | None) -> None:
        """Initialise what each accumulator has for itself, a copy too."""
        self._native = _new_native(self._options, counts)
        self._scratch: Tensor | None = None
        self._has_captured = False  # an update in torch operations
        self._warnings: set[str] = set()
        self._loaded: StateSnapshot | None = None
        # Held while the state is made or moved, and during an addition in torch operations: that is
        # many of them, and nothing may come in between.
        self._lock = threading.RLock()
        self._number = number(self)

    def __del__(self) -> None:
        try:
            if self._has_captured or (self._native is not None and self._native.was_captured()):
                _captured.append((self._state, self._scratch))
        except Exception:  # it was never whole, or the interpreter is ending
            pass

    def __getstate__(self) -> dict[str, Any]:
        own = {"_native", "_scratch", "_has_captured", "_warnings", "_loaded", "_lock", "_number"}
        with self._lock, outside_modes():
            copied = {name: value for name, value in vars(self).items() if name not in own}
            copied["_scalar_slots"] = dict(self._scalar_slots)
            copied["_lost_updates"] = self._all_lost_updates()
            copied["counts"] = None if self._native is None else self._native.counts()
            if self._state.device.type == "cpu" and not device_memory.on_cuda(self._state.device):
                # An array goes to another process by value. A tensor would be shared, and would
                # have to live until the process has it.
                copied["_state"] = np.asarray(data := self._read())
                if self._native is not None:
                    # Other threads may have gone on.
                    copied["counts"] = self._state_of(data, MAX_SCALARS).counts
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> AccumulatedState:
        # `__getstate__` copies all that may change. PyTorch's own copy of a tensor is one with no
        # memory where a mode of fake tensors is active.
        return copy.copy(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        counts = state.pop("counts")
        self.__dict__.update(state)
        data = self._state
        with outside_modes():
            self._state = torch.from_numpy(data) if isinstance(data, np.ndarray) else data.clone()
        self._begin(counts)
        device_memory.remember_stream(self._state)

    @property
    def reference_updates(self) -> int:
        """The number of updates, and of numbers of `update_scalar`, added by torch operations since
        the accumulator was made. On a GPU, these are the updates before the kernel was ready, those
        without a kernel, and those with tensors that the kernel does not take. Their values are the
        same, but each takes dozens of kernels."""
        return self._reference_updates

    @never_compiled
    def reset(self) -> None:
        """Discard all values. The numbers of updates continue. This does not wait for a device."""
        with self._lock, outside_modes():
            self._forget_lost()
            device_memory.record_stream(self._state)
            updates = None if self._native is None else self._native.reset(self._state)
            if updates is not None:
                self._updates_at_reset = updates
            else:
                self._state[RESET_OFFSET:].zero_()
                self._state.view(torch.int64)[word("resets")] += 1
                if self._native is not None:
                    self._native.reset_scalars()
            self._resets += 1

    @never_compiled
    def state_dict(self) -> dict[str, Any]:
        """Return all that the accumulator has seen, to be saved with a checkpoint.

        This does not wait for a device, where it makes a copy of the state. The result is a dict of
        strings, numbers, lists and tensors, which `torch.load` reads with `weights_only=True`.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        with self._lock, outside_modes():
            state, lost = self._copied()
            names = self._scalar_names
        with outside_modes():
            return state_dict_of(self._options, state, names, lost, self._reference_updates)

    @never_compiled
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace all values by those of a `state_dict()`, and go on from there.

        The state is replaced in place, so graphs that were captured go on as well. This waits for
        the device where the state is, or the tensors of the dict are. The next readings know of no
        step that an update before was made in.

        Raises:
            ValueError: the dict is none of `state_dict()`, was saved by an accumulator that was
                made with other arguments, or by another version of this package.
            RuntimeError: a CUDA graph is being captured.
        """
        with self._lock, outside_modes():
            self._refuse_capture()
            resets = self._resets + 1  # what was read before is no longer true
            data, new = loaded(self._options, state_dict, self._scalar_names, resets)
            reference_updates = int(state_dict["reference_updates"])
            self._resets = resets
            if self._native is not None:
                self._native.begin_other()
            try:
                self._forget_lost()
                device_memory.record_stream(self._state)
                self._state.copy_(torch.from_numpy(data))
            finally:
                if self._native is not None:
                    self._native.replace_counts(None if self._has_captured else new.state.counts)
                    self._native.end_other(self._state, False, None, True)
            self._scalar_slots = {name: slot for slot, name in enumerate(new.names)}
            self._lost_updates = new.lost_updates
            self._reference_updates = reference_updates
            self._updates_at_reset = new.state.updates
            self._is_loaded = True
            self._loaded = new

    def _reading_of(self, snapshot: StateSnapshot) -> Reading:
        updates = snapshot.state.updates
        step = None if self._native is None else self._native.step_of(updates)
        return Reading(
            values_of(self._options, snapshot), updates, None if step is None else step[1]
        )

    def _reading_of_window(self, now: StateSnapshot, before: StateSnapshot | None) -> Reading:
        reading = self._reading_of(now.since(before))
        names = (f"{name}{end}" for name in now.names for end in ("_min", "_max"))
        for unknown in (*_EXTREMES, *names):
            reading.values.pop(unknown, None)
        return reading

    def _newest(self) -> StateSnapshot | None:
        """The newest state that has arrived."""
        if self._native is None:
            return None
        on_cuda = device_memory.on_cuda(self._state.device)
        read = self._native.read(self._state)
        if read is None and not on_cuda:
            with self._lock:  # until an addition in torch operations is done
                read = self._native.read(self._state)
        if read is None:
            return None
        data, lost = read
        classes = self._options.confusion_classes
        if len(data) < self._options.state_bytes:
            classes = 0
        names = self._scalar_names
        state = MetricState.of(data, classes, len(names))
        if state.resets != self._resets:
            return None  # a snapshot from before the reset
        if (
            not on_cuda
            and state.updates == self._updates_at_reset
            and data.count(0, RESET_OFFSET) == len(data) - RESET_OFFSET
        ):
            return None
        return StateSnapshot(state, names, lost + self._lost_updates)

    def _current(self) -> StateSnapshot:
        """The state after all that was enqueued, which is waited for."""
        names = self._scalar_names
        state = self._state_of(self._read(), len(names))
        return StateSnapshot(state, names, self._all_lost_updates())

    def _copied(self) -> tuple[Tensor, Tensor]:
        """A copy of the state, and of the number of lost updates, made by the current stream."""
        if not device_memory.on_cuda(self._state.device):
            state = torch.frombuffer(self._read(), dtype=torch.uint8)
            return state, torch.tensor(self._lost_updates)
        self._refuse_capture()
        device_memory.record_stream(self._state)
        if self._scratch is None:
            return self._state.clone(), torch.tensor(self._lost_updates)
        device_memory.record_stream(self._scratch)
        return self._state.clone(), _lost_on_device(self._scratch) + self._lost_updates

    def _read(self) -> memoryview:
        """Return a copy of all the state, of after an update and before the next one."""
        if device_memory.on_cuda(self._state.device):
            self._refuse_capture()
            with outside_modes():
                return np.asarray(self._state.cpu().numpy()).data
        data = np.empty(self._options.state_bytes, np.uint8)
        if self._native is None or not self._native.copy(self._state, data):
            with self._lock, outside_modes():  # until an addition in torch operations is done
                if self._native is None or not self._native.copy(self._state, data):
                    data[:] = self._state.cpu().numpy()
        return data.data

    def _state_of(self, data: bytes | memoryview, scalars: int) -> MetricState:
        return MetricState.of(data, self._options.confusion_classes, scalars)

    def _forget_lost(self) -> None:
        self._lost_updates = 0
        if self._scratch is not None:
            device_memory.record_stream(self._scratch)
            _lost_on_device(self._scratch).zero_()

    def _refuse_capture(self) -> None:
        if device_memory.is_capturing(self._state):
            raise RuntimeError(
                "this can't be part of a CUDA graph: call it before or after the capture"
            )

    def _all_lost_updates(self) -> int:
        """Return the number of lost updates, with those that the device lost. This waits for it."""
        scratch = self._scratch
        return self._lost_updates + (0 if scratch is None else int(_lost_on_device(scratch)))

    @property
    def _scalar_names(self) -> tuple[str, ...]:
        """The names of the running values in use, in the order of their slots."""
        return tuple(self._scalar_slots)

    def _add_in_torch(
        self, add: Callable[..., None], state: Tensor, *arguments: Any, slot: int | None = None
    ) -> None:
        """Add in torch operations what the native side has not. Where they fail too, it is lost:
        that is counted, and the training goes on."""
        error = ""
        device_memory.record_stream(state)
        with self._lock:
            added = is_captured = False
            if self._native is not None:
                self._native.begin_other()
                error = self._native.launch_error()
            what = "metrics are updated by many small kernels, which is slower"
            try:
                is_captured = device_memory.is_capturing(state)
                self._has_captured = self._has_captured or is_captured
                add(state, *arguments)
                added = True
                self._reference_updates += 1
            except Exception as raised:
                self._lost_updates += 1
                what = _LOST
                error = f"{error}; {_reason(raised)}" if error else _reason(raised)
            finally:
                if self._native is not None:
                    # An error of a device may come after its state has been changed.
                    is_counted = not is_captured and (
                        added or not device_memory.on_cuda(state.device)
                    )
                    self._native.end_other(state, added, slot, is_counted)
        if self._native is not None and device_memory.on_cuda(state.device):
            kernels.request(state.device.index)
        if error:
            self._warn_once(what, error)

    def _warn_once(self, what: str, why: str) -> None:
        if what not in self._warnings:
            self._warnings.add(what)
            _warn(f"{what}: {why}")

    def _place(self, tensor: Tensor) -> bool:
        """Have the state on the device of the first tensor. Where that fails the update is lost. It
        is not done during a capture: each replay of the graph would allocate the state again."""
        with self._lock:
            if self._is_placed:
                return True
            try:
                error = _PLACED_IN_CAPTURE
                if not device_memory.is_capturing(tensor):
                    self._move_state(tensor.device)
                    return True
            except Exception as raised:
                error = _reason(raised)
            self._lost_updates += 1
            self._warn_once(_LOST, error)
            return False

    def _move_state(self, device: torch.device) -> None:
        if self._state.device != device:
            state = device_memory.zeros(self._options.state_bytes, device)
            if self._scalar_slots or self._resets:
                # So far there is nothing in the matrix, unless it was loaded.
                used = slice(None if self._is_loaded else STATE_DTYPE.itemsize)
                state[used].copy_(self._state[used], non_blocking=device_memory.on_cuda(device))
            self._state = state
        device_memory.remember_stream(self._state)
        self._options.class_weight_on(device)  # it may not be copied there during a capture
        self._is_placed = True

    def _make_scratch(self) -> None:
        """Make the memory that the kernel needs besides the state, where there is a kernel. Not
        during a capture, of which each replay would clear it."""
        if not device_memory.on_cuda(self._state.device):
            return
        with self._lock, contextlib.suppress(Exception):  # PyTorch's operations do without it
            if self._scratch is None and not device_memory.is_capturing(self._state):
                device, size = self._state.device, native.METRIC_SCRATCH_BYTES
                weights = self._options.class_weight_on(device)
                if weights is None:
                    scratch = device_memory.zeros(size, device)
                else:
                    scratch = device_memory.zeros(size + 8 * len(weights), device)
                    scratch[size:].view(torch.float64).copy_(weights)
                device_memory.remember_stream(scratch)
                self._scratch = scratch


def _new_native(options: MetricOptions, counts: Sequence[int] | None) -> Any:
    """The native side of an accumulator whose state has so many updates and numbers; None where
    there is none, and the reference has to do all work."""
    if IMPORT_ERROR is not None or not _torch_is_known():
        return None
    return native.MetricAccumulator(counts=counts, **options.native_arguments())


@functools.cache
def _torch_is_known() -> bool:
    api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    known = api is not None and native.set_torch(
        Tensor, api, torch.get_num_threads, device_memory.record_stream
    )
    if not known:
        _warn(
            "metrics are updated by many small kernels, which is slower: "
            f"PyTorch {torch.__version__} has no DLPack C exchange API of version 1; 2.10 and "
            "newer have it"
        )
    return known


def _lost_on_device(scratch: Tensor) -> Tensor:
    return scratch.view(torch.int64)[native.METRIC_SCRATCH_LOST_WORD]


def _reason(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


def _warn(message: str) -> None:
    """Warn, naming the nearest line that is neither ours nor PyTorch's. What PyTorch has generated
    for a compiled function belongs to a module of its own, or to none."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "torch")
        if module.partition(".")[0] not in ("pyinstrument_gpu", "torch"):
            break
        level += 1
        frame = frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)
