# SPDX-License-Identifier: Apache-2.0
"""The accumulator of metrics: from tensors to values."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyinstrument_gpu.metrics import kernels, reference
from pyinstrument_gpu.metrics.across_ranks import has_other_ranks, merged_across_ranks
from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES, MetricOptions, checked_scalar
from pyinstrument_gpu.metrics.series_prefix import series_prefix
from pyinstrument_gpu.metrics.state import MAX_SCALARS, RESET_OFFSET, STATE_DTYPE, State, word
from pyinstrument_gpu.metrics.values import (
    Reading,
    clash_of,
    series_of,
    series_of_scalar,
    values_of,
)
from pyinstrument_gpu.native import IMPORT_ERROR, native

_HOST = torch.device("cpu")
_LOST = "an update of the metrics was lost, and counted in lost_updates"
_PLACED_IN_CAPTURE = (
    "the first one was inside the capture of a CUDA graph, where the accumulator cannot be set up; "
    "make one update before the capture"
)

_disabled_modes: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The backward pass that the calling thread is in; -1 for none."""

_made_on = WeakIdKeyDictionary()
"""The streams that were current when tensors were made, and events behind their making. PyTorch
knows of these streams, and with cudaMallocAsync it warns if it is told again."""

_captured: list[tuple[Tensor, Tensor | None]] = []
"""State and scratch of accumulators that are gone, and of whose updates some were captured into a
graph: it may be replayed at any time, and the kernels in it write there."""

_numbers = itertools.count(1)
_live: weakref.WeakValueDictionary[int, MetricAccumulator] = weakref.WeakValueDictionary()


class MetricAccumulator:
    """Accumulates accuracy, loss and more on the device of the logits, without waiting for it.

        metrics = pig.MetricAccumulator(topk=(1, 5))
        for x, y in gpu_steps(loader):
            ...
            metrics.update(logits, y, loss)
            if (reading := metrics.latest()) is not None:
                print(reading.step, reading.values["loss"], reading.values["accuracy@1"])
        print(metrics.compute())
        metrics.reset()

    The state is one small tensor on the device of the first update. An accumulator serves one
    device; for several, use one per rank and `compute(across_ranks=True)`. Threads may share it. A
    copy made by `copy.deepcopy` or `pickle` starts with the values so far and is independent.

    Args:
        topk: for each k, `accuracy@k` is the share of rows whose target is among the k greatest
            logits. There can be up to 8.
        num_classes: how many classes the logits must have; None accepts any number.
        confusion: keep a confusion matrix, from which precision, recall and F1 come. Needs
            `num_classes`; takes 8 * num_classes**2 bytes.
        ignore_index: a row with this target is left out, as in `torch.nn.functional.cross_entropy`.
        class_dim: dimension of the classes: 1 for logits of shape (N, C) or (N, C, d1, ...), -1
            for (N, ..., C), as in language models.
        name: is put before the names of the values in a recording, as in `val/loss`, to tell
            accumulators apart. Where several have the same one, or none, the second one that is
            read is called `val-2`, or `metrics-2`.

    Raises:
        TypeError, ValueError: an argument is wrong.
        MissingDependencyError: PyTorch is not installed.
    """

    def __init__(
        self,
        topk: int | Sequence[int] = (1, 5),
        num_classes: int | None = None,
        confusion: bool = False,
        ignore_index: int = -100,
        class_dim: int = 1,
        *,
        name: str = "",
    ) -> None:
        self._options = MetricOptions.of(topk, num_classes, confusion, ignore_index, class_dim)
        if not isinstance(name, str) or len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"name must be a str of up to {MAX_NAME_BYTES} bytes, got {name!r}")
        self._name = name
        # In host memory until the first tensors say where it belongs: so far it has only numbers.
        # The pages of NumPy's zeros take no memory before they are used.
        with _outside_modes():
            self._state = torch.from_numpy(np.zeros(self._options.state_bytes, np.uint8))
        self._is_placed = False
        self._scalar_slots: dict[str, int] = {}
        self._lost_updates = 0
        self._reference_updates = 0
        self._resets = 0
        self._updates_at_reset = 0  # in host memory, where an update without rows changes no more
        self._begin(counts=[0] * (1 + MAX_SCALARS))

    def _begin(self, counts: Sequence[int] | None) -> None:
        """What each accumulator has for itself, a copy too."""
        self._native = _new_native(self._options, counts)
        self._scratch: Tensor | None = None
        self._has_captured = False  # an update in torch operations
        self._warnings: set[str] = set()
        # Held while the state is made or moved, and during an addition in torch operations: that is
        # many of them, and nothing may come in between.
        self._lock = threading.RLock()
        self._number = next(_numbers)
        _live[self._number] = self

    def __del__(self) -> None:
        try:
            if self._has_captured or (self._native is not None and self._native.was_captured()):
                _captured.append((self._state, self._scratch))
        except Exception:  # it was never whole, or the interpreter is ending
            pass

    def __getstate__(self) -> dict[str, Any]:
        own = {"_native", "_scratch", "_has_captured", "_warnings", "_lock", "_number"}
        copied = {name: value for name, value in vars(self).items() if name not in own}
        copied["_lost_updates"] = self._all_lost_updates()
        return {**copied, "counts": None if self._native is None else self._native.counts()}

    def __deepcopy__(self, memo: dict[int, Any]) -> MetricAccumulator:
        # `__setstate__` copies all that may change. PyTorch's own copy of a tensor is one with no
        # memory where a mode of fake tensors is active.
        return copy.copy(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        counts = state.pop("counts")
        self.__dict__.update(state)
        self._scalar_slots = dict(self._scalar_slots)
        with _outside_modes():
            self._state = self._state.clone()
        self._begin(counts)
        _remember_stream(self._state)

    def update(
        self,
        logits: Tensor,
        target: Tensor,
        loss: Tensor | float | None = None,
        weight: Tensor | None = None,
    ) -> None:
        """Add one batch.

        This never waits for a device. On a GPU it is one kernel, which allocates nothing. Until the
        kernel has been compiled, in the background, torch operations do the same at a higher cost;
        `reference_updates` counts them. The first update has to come before the capture of a CUDA
        graph; inside one it is lost, with a warning. On the CPU an update reads the logits once,
        with as many of PyTorch's threads as is worthwhile. Inside `torch.compile` it is one
        operator and causes no graph break.

        Args:
            logits: (N, C), (N, C, d1, ...) or, with `class_dim=-1`, (N, ..., C); float64, float32,
                float16 or bfloat16, with any strides. Only their order matters, so probabilities
                work as well.
            target: the class of each row, int64, int32 or uint8, in the shape of the logits without
                C. A target that is not a class makes its row invalid: it is counted, and left out.
            loss: the loss of this batch, either one number, the mean over its rows, or one per row.
                One number may be one of Python or NumPy as well. It enters the sum with the weight
                of the rows that count.
            weight: the weight of each row, in the shape of the target. A row whose weight is not
                finite is invalid.

        Raises:
            TypeError, ValueError: the tensors do not fit each other or this accumulator.
        """
        if isinstance(loss, (float, int, np.number)) and isinstance(logits, Tensor):
            # Not by a copy, which would be waited for.
            loss = torch.full((), float(loss), dtype=torch.float64, device=logits.device)
        if torch.compiler.is_compiling():
            detached_loss = None if loss is None else loss.detach()
            torch.ops.pyinstrument_gpu.metric_update(
                self._state, logits.detach(), target, detached_loss, weight, self._number
            )
        elif not _is_recomputing():
            self._update(None, logits, target, loss, weight)

    def update_scalar(self, name: str, value: Tensor | float) -> None:
        """Add a number to a running value, such as a gradient norm or a count of tokens.

        `compute()` returns its mean as `name`, and `name_sum`, `name_min`, `name_max`, `name_last`
        and `name_nonfinite`. Numbers that are not finite are counted and left out.

        Args:
            name: 1 to 64 bytes. None of its six keys may be that of another value, as with `loss`,
                or `lr_max` beside `lr`. An accumulator has room for 16 names; further ones are left
                out, with one warning.
            value: a tensor of one element, which is not waited for, or a Python number.

        Raises:
            TypeError, ValueError: the name or the value is of the wrong kind.
        """
        if torch.compiler.is_compiling():
            if not isinstance(value, Tensor):
                value = torch.full((), value, dtype=torch.float64)
            torch.ops.pyinstrument_gpu.metric_update_scalar(
                self._state, value.detach(), name, self._number
            )
            return
        if _is_recomputing():
            return
        slot = self._scalar_slots.get(name)
        reading_is_due = None
        if slot is not None and self._native is not None:
            reading_is_due = self._native.update_scalar(self._state, self._scratch, slot, value)
        if reading_is_due is None:
            reading_is_due = self._update_scalar_with_care(name, value)
        if reading_is_due:
            self.record_reading()

    def latest(self) -> Reading | None:
        """Return the newest values that have arrived, without waiting; None if none have.

        For tensors on the CPU they are the current ones. On a GPU there are none before the first
        update by the kernel, which has to be compiled first. The confusion matrix is among them for
        up to 16 classes, and on a GPU that also goes for what is computed from it.
        """
        newest = self._newest()
        if newest is None:
            return None
        state, values = newest
        step = self._native.step_of(state.updates)
        return Reading(values, state.updates, None if step is None else step[1])

    def _newest(self) -> tuple[State, dict[str, Any]] | None:
        """The newest state that has arrived, and its values."""
        if self._native is None:
            return None
        on_cuda = _on_cuda(self._state.device)
        read = self._native.read(self._state)
        if read is None and not on_cuda:
            with self._lock:  # until an addition in torch operations is done
                read = self._native.read(self._state)
        if read is None:
            return None
        data, lost, sums = read
        classes = self._options.confusion_classes
        if len(data) < self._options.state_bytes:
            classes = 0
        state = State.of(data, classes, len(self._scalar_slots))
        if state.resets != self._resets:
            return None  # a snapshot from before the reset
        if (
            not on_cuda
            and state.updates == self._updates_at_reset
            and data.count(0, RESET_OFFSET) == len(data) - RESET_OFFSET
        ):
            return None
        names = tuple(self._scalar_slots)[: len(state.scalars)]
        by_class = None if sums is None else np.frombuffer(sums).reshape(3, -1)
        lost += self._lost_updates
        return state, values_of(state, self._options.topk, names, lost, by_class)

    @property
    def reference_updates(self) -> int:
        """How many updates, and numbers of `update_scalar`, torch operations have added since the
        accumulator was made. On a GPU, these are the updates before the kernel was ready, those
        without a kernel, and those with tensors that the kernel does not take. Their values are
        the same, but each takes dozens of kernels."""
        return self._reference_updates

    def compute(self, across_ranks: bool = False, **refused: NoReturn) -> dict[str, Any]:
        """Return the values of all updates since the last reset. This waits for them.

        Keys: `count` (rows that count), `loss` (mean over them), `loss_min`, `loss_max` and
        `loss_last` (of the updates' means), `perplexity` (exp of `loss`), `accuracy@k`,
        `nonfinite` (the sum of `nonfinite_rows` and `nonfinite_losses`), `first_nonfinite_update`
        (None if there was none), `ignored`, `invalid`, `lost_updates` (updates that could not be
        added because of an error; 0 unless there was a warning), the running values of
        `update_scalar`, and with a confusion matrix `precision_micro`, `precision_macro`,
        `precision_per_class` (likewise `recall` and `f1`) and `confusion_matrix`; these two are
        NumPy arrays. Values that are not known, such as an accuracy without rows, are NaN.

        Args:
            across_ranks: merge all ranks of the default process group of `torch.distributed`.
                Every rank must call it, and all get the same values. The state does not change.
                Without a process group, only this process counts.

        Raises:
            ValueError: the accumulators of the ranks were made with different arguments.
            TypeError: there is no option of that name.
        """
        for name in refused:
            hint = ": merging the ranks is compute(across_ranks=True)" if name == "sync" else ""
            raise TypeError(f"compute() has no option {name!r}{hint}")
        data = self._read()
        classes = self._options.confusion_classes
        names = tuple(self._scalar_slots)
        if across_ranks and has_other_ranks():
            device = self._state.device if self._is_placed else None
            state, names, lost = merged_across_ranks(
                data, names, self._all_lost_updates(), self._options, device
            )
        else:
            state, lost = State.of(data, classes, len(names)), self._all_lost_updates()
        return values_of(state, self._options.topk, names, lost)

    def reset(self) -> None:
        """Discard all values. The numbers of updates continue. This does not wait for a device."""
        with self._lock, _outside_modes():
            self._lost_updates = 0
            if _on_cuda(self._state.device):
                _record_stream(self._state)
            if self._scratch is not None:
                _record_stream(self._scratch)
                _lost_on_device(self._scratch).zero_()
            updates = None if self._native is None else self._native.reset(self._state)
            if updates is not None:
                self._updates_at_reset = updates
            else:
                self._state[RESET_OFFSET:].zero_()
                self._state.view(torch.int64)[word("resets")] += 1
                if self._native is not None:
                    self._native.reset_scalars()
            self._resets += 1

    def record_reading(self) -> None:
        """Write the latest values into the active recording, if there is one and they are new.

        `update` does this automatically a few times per second, and so does the recording when it
        stops.
        """
        recording = 0 if self._native is None else self._native.take_news()
        if not recording:
            return
        newest = self._newest()
        if newest is None:
            return
        state, values = newest
        series = series_of(values, self._options.topk)
        if self._reference_updates:
            series.append(("reference_updates", self._reference_updates))
        names = tuple(self._scalar_slots)
        prefix = series_prefix(self._name, self, recording)
        step = self._native.step_of(state.updates)
        steps = [step] * len(series)
        for slot, (name, scalar) in enumerate(zip(names, state.scalars, strict=False)):
            own = series_of_scalar(values, name)
            series += own
            step = self._native.step_of_scalar(slot, scalar.count + scalar.nonfinite)
            steps += [step] * len(own)
        native.append_reading(
            state.updates,
            [
                (prefix + name, value, None if step is None else step[0])
                for (name, value), step in zip(series, steps, strict=True)
            ],
        )

    def _update(self, state: Tensor | None, logits: Tensor, *others: Any) -> None:
        """Where a compiled function calls this it brings the state, or a copy that it will write
        back. At the first update that one is still in host memory."""
        if not self._is_placed:
            self._options.check(logits, *others)
            if _is_fake(logits, *others) or not self._place(logits):
                return
        if state is None or state.device != logits.device:
            state = self._state
        reading_is_due = None
        if self._native is not None:
            reading_is_due = self._native.update(state, self._scratch, logits, *others)
            if reading_is_due is None and self._scratch is None and self._make_scratch():
                reading_is_due = self._native.update(state, self._scratch, logits, *others)
        if reading_is_due is None:
            self._options.check(logits, *others)
            if _is_fake(logits, *others):
                return
            if logits.device != state.device:
                raise ValueError(
                    f"the first update was on {state.device}, this one is on {logits.device}: "
                    "make an accumulator for each device"
                )
            self._add_in_torch(reference.add_update, state, logits, *others, self._options)
        elif reading_is_due:
            self.record_reading()

    def _update_scalar_with_care(
        self, name: str, value: Tensor | float, state: Tensor | None = None
    ) -> bool | None:
        """The first value of a name, one of another kind or place, one that the native side can't
        take, one of a compiled function, which brings the state as in `_update`. Whether a reading
        is due."""
        value = checked_scalar(name, value)
        if _is_fake(value):
            return None
        device = value.device if isinstance(value, Tensor) else _HOST
        with self._lock:
            if name not in self._scalar_slots and (key := clash_of(name, self._scalar_slots)):
                raise ValueError(
                    f"{name!r} can't be the name of a running value: {key!r} is among the other "
                    "values of this accumulator; choose another name"
                )
            if name not in self._scalar_slots and len(self._scalar_slots) == MAX_SCALARS:
                warnings.warn(
                    f"{name!r} is left out: an accumulator has room for {MAX_SCALARS} running "
                    "values",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return None
            slot = self._scalar_slots.setdefault(name, len(self._scalar_slots))
        # Numbers in host memory say nothing of where the logits will be.
        must_place = not self._is_placed and device.type != _HOST.type
        if isinstance(value, Tensor) and must_place and not self._place(value):
            return None
        if state is None or state.device != self._state.device:
            state = self._state
        if isinstance(value, Tensor) and device != state.device:
            if device.type != _HOST.type:
                raise ValueError(
                    f"{name} is on {device}, the first update was on {state.device}: make an "
                    "accumulator for each device"
                )
            value = float(value)
        reading_is_due: bool | None = None
        if self._native is not None:
            reading_is_due = self._native.update_scalar(state, self._scratch, slot, value)
            if reading_is_due is None and self._scratch is None and self._make_scratch():
                reading_is_due = self._native.update_scalar(state, self._scratch, slot, value)
        if reading_is_due is None:
            self._add_in_torch(reference.add_scalar, state, slot, value, slot=slot)
        return reading_is_due

    def _add_in_torch(
        self, add: Callable[..., None], state: Tensor, *arguments: Any, slot: int | None = None
    ) -> None:
        """Add in torch operations what the native side has not. Where they fail too, it is lost:
        that is counted, and the training goes on."""
        error = ""
        if _on_cuda(state.device):
            _record_stream(state)
        with self._lock:
            added = is_captured = False
            if self._native is not None:
                self._native.begin_other()
                error = self._native.launch_error()
            what = "metrics are updated by many small kernels, which is slower"
            try:
                is_captured = self._is_capturing(state)
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
                    is_counted = not is_captured and (added or not _on_cuda(state.device))
                    self._native.end_other(state, added, slot, is_counted)
        if self._native is not None and _on_cuda(state.device):
            kernels.request(state.device.index)
        if error:
            self._warn_once(what, error)

    def _warn_once(self, what: str, why: str) -> None:
        """To be called by what `update` or `update_scalar` calls by one other function."""
        if what not in self._warnings:
            self._warnings.add(what)
            warnings.warn(f"{what}: {why}", RuntimeWarning, stacklevel=5)

    def _place(self, tensor: Tensor) -> bool:
        """Have the state on the device of the first tensor. Where that fails the update is lost. It
        is not done during a capture: each replay of the graph would make the state anew."""
        with self._lock:
            if self._is_placed:
                return True
            try:
                error = _PLACED_IN_CAPTURE
                if not self._is_capturing(tensor):
                    self._move_state(tensor.device)
                    return True
            except Exception as raised:
                error = _reason(raised)
            self._lost_updates += 1
            self._warn_once(_LOST, error)
            return False

    def _move_state(self, device: torch.device) -> None:
        if self._state.device != device:
            state = _zeros(self._options.state_bytes, device)
            if self._scalar_slots or self._resets:
                head = slice(STATE_DTYPE.itemsize)  # there is nothing in the matrix
                state[head].copy_(self._state[head], non_blocking=_on_cuda(device))
            self._state = state
        _remember_stream(self._state)
        self._is_placed = True

    def _make_scratch(self) -> bool:
        """Make the memory that the kernel needs besides the state, where there is a kernel. Not
        during a capture, of which each replay would clear it."""
        if not _on_cuda(self._state.device):
            return False
        with self._lock, contextlib.suppress(Exception):  # PyTorch's operations do without it
            if self._scratch is None and not self._is_capturing(self._state):
                self._scratch = _zeros(native.METRIC_SCRATCH_BYTES, self._state.device)
                _remember_stream(self._scratch)
        return self._scratch is not None

    def _is_capturing(self, tensor: Tensor) -> bool:
        """Whether what is enqueued on the tensor's device now becomes part of a CUDA graph."""
        return _on_cuda(tensor.device) and _current_stream_is_captured(tensor)

    def _read(self) -> memoryview:
        """A copy of all the state, of after an update and before the next one."""
        if _on_cuda(self._state.device):
            with _outside_modes():
                return np.asarray(self._state.cpu().numpy()).data
        data = np.empty(self._options.state_bytes, np.uint8)
        if self._native is None or not self._native.copy(self._state, data):
            with self._lock, _outside_modes():  # until an addition in torch operations is done
                if self._native is None or not self._native.copy(self._state, data):
                    data[:] = self._state.cpu().numpy()
        return data.data

    def _all_lost_updates(self) -> int:
        """Those that the device has lost as well. This waits for it."""
        scratch = self._scratch
        return self._lost_updates + (0 if scratch is None else int(_lost_on_device(scratch)))


def record_readings() -> None:
    """Write a reading of every accumulator into the active recording."""
    for accumulator in list(_live.values()):
        accumulator.record_reading()


def _update_of(*arguments: Any) -> None:
    *tensors, number = arguments
    _live[number]._update(*tensors)


def _update_scalar_of(state: Tensor, value: Tensor, name: str, number: int) -> None:
    accumulator = _live[number]
    if accumulator._update_scalar_with_care(name, value, state):
        accumulator.record_reading()


# Updates as operators, for torch.compile. Eager updates do not pass through it: an operator's
# dispatch costs more than a small update does.
_library = torch.library.Library("pyinstrument_gpu", "DEF")
_library.define(
    "metric_update(Tensor(a!) state, Tensor logits, Tensor target, Tensor? loss, Tensor? weight, "
    "SymInt accumulator) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "metric_update_scalar(Tensor(a!) state, Tensor value, str name, SymInt accumulator) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("metric_update", _update_of, "CompositeExplicitAutograd")
_library.impl("metric_update_scalar", _update_scalar_of, "CompositeExplicitAutograd")
for _operator in ("metric_update", "metric_update_scalar"):
    torch.library.register_fake(
        f"pyinstrument_gpu::{_operator}", lambda *arguments: None, lib=_library
    )


def _new_native(options: MetricOptions, counts: Sequence[int] | None) -> Any:
    """A `_C.MetricAccumulator` whose state has so many updates and numbers; None where there is
    none, and the reference has to do all work."""
    if IMPORT_ERROR is not None or not _torch_is_known():
        return None
    return native.MetricAccumulator(
        topk=options.topk,
        num_classes=options.num_classes or 0,
        confusion=options.confusion,
        ignore_index=options.ignore_index,
        class_dim=options.class_dim,
        counts=counts,
    )


@functools.cache
def _torch_is_known() -> bool:
    api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    known = api is not None and native.set_torch(Tensor, api, torch.get_num_threads, _record_stream)
    if not known:
        warnings.warn(
            "metrics are updated by many small kernels, which is slower: "
            f"PyTorch {torch.__version__} has no DLPack C exchange API of version 1; 2.10 and "
            "newer have it",
            RuntimeWarning,
            stacklevel=5,
        )
    return known


def _is_recomputing() -> bool:
    """Whether a backward pass runs what calls this once more, by `torch.utils.checkpoint`. PyTorch
    tells of the backward pass only; hooks run in one too, and what they add is new."""
    if _graph_task() == -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == torch.utils.checkpoint.__file__:
            return True
        if file == torch.autograd.graph.__file__:
            return False  # a hook: a backward pass of its own is nearer than any recomputation
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _outside_modes() -> Iterator[None]:
    """What is made in here outlives the modes of PyTorch that are active now: what inference has
    made may not be changed later, and what a mode of fake tensors has made has no memory."""
    with _disabled_modes(), torch.inference_mode(False):
        yield


def _is_fake(*values: Any) -> bool:
    """Whether any of them only stands for a tensor's shape, as while a program is exported or
    traced: there are no numbers to add."""
    module = sys.modules.get("torch._subclasses.fake_tensor")  # without it there are none
    return module is not None and any(map(module.is_fake, values))


def _zeros(size: int, device: torch.device) -> Tensor:
    with _outside_modes():
        return torch.zeros(size, dtype=torch.uint8, device=device)


def _remember_stream(tensor: Tensor) -> None:
    """To be called where a tensor was made."""
    if _on_cuda(tensor.device):
        stream, made = torch.cuda.current_stream(tensor.device), torch.cuda.Event()
        made.record(stream)
        _made_on[tensor] = stream, made


def _lost_on_device(scratch: Tensor) -> Tensor:
    return scratch.view(torch.int64)[native.METRIC_SCRATCH_LOST_WORD]


def _record_stream(*tensors: Tensor) -> None:
    """Have the current stream wait until tensors on one device are made, and keep PyTorch from
    using their memory for others before the stream is done with it. An accumulator may be gone by
    then."""
    with contextlib.suppress(Exception):  # of an allocator that can't
        stream = torch.cuda.current_stream(tensors[0].device)
        is_captured = None
        for tensor in tensors:
            made_on, made = _made_on.get(tensor, (None, None))
            if made_on == stream:
                continue
            if made is not None:
                # A capture may not wait for what is outside of it. PyTorch has waited for all that
                # was under way when it began.
                if is_captured is None:
                    is_captured = _current_stream_is_captured(tensor)
                if not is_captured:
                    made.wait(stream)
            tensor.record_stream(stream)


def _current_stream_is_captured(tensor: Tensor) -> bool:
    # PyTorch would ask the driver with the GIL.
    answer: bool | None = None if IMPORT_ERROR is not None else native.is_capturing(tensor)
    if answer is not None:
        return answer
    with torch.cuda.device(tensor.device):
        return torch.cuda.is_current_stream_capturing()


def _on_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


def _reason(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
