# SPDX-License-Identifier: Apache-2.0
"""The accumulator: accuracy, loss, a confusion matrix, and running values."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyinstrument_gpu.metrics import reference
from pyinstrument_gpu.metrics.accumulated_state import AccumulatedState
from pyinstrument_gpu.metrics.across_ranks import PendingValues
from pyinstrument_gpu.metrics.addition import (
    Addition,
    accumulators,
    define,
    has_distributed,
    is_recomputing,
    local,
    never_compiled,
)
from pyinstrument_gpu.metrics.options import MetricOptions, checked_scalar
from pyinstrument_gpu.metrics.state import MAX_SCALARS, StateSnapshot
from pyinstrument_gpu.metrics.values import (
    Reading,
    clash_of,
    series_of,
    series_of_scalar,
    values_of,
)
from pyinstrument_gpu.metrics.window import PeriodicLog, Window
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.device_memory import outside_modes
from pyinstrument_gpu.patching.tensor_device import is_fake

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_HOST = torch.device("cpu")
_NO_ROOM = "a running value is left out, and counted in lost_updates"


_owners: weakref.WeakValueDictionary[tuple[int, str, str], Any] = weakref.WeakValueDictionary()
"""By recording, kind and text. An accumulator that is gone leaves what it had to the next one:
programs make a new one for each epoch."""


_BATCH = Addition(
    "update",
    "Tensor logits, Tensor target, Tensor? loss, Tensor? weight",
    check=MetricOptions.check,
    reference=reference.add_update,
    whole_axis=MetricOptions.class_axis,
)

_ROWS = Addition(
    "update_rows",
    "Tensor? loss, Tensor? correct, Tensor? rank, Tensor? entropy, Tensor? weight, Tensor? mask",
    check=MetricOptions.check_rows,
    reference=reference.add_rows,
)


class MetricAccumulator(AccumulatedState):
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

    The values of `compute()` and `latest()` have the keys `count` (rows that count), `loss` (mean
    over them), `loss_min`, `loss_max` and `loss_last` (of the updates' means), `perplexity` (exp of
    the mean negative log-likelihood), `entropy` (mean entropy of the softmax, in nats; of updates
    without a loss), `accuracy@k`, `nonfinite` (the sum of `nonfinite_rows` and `nonfinite_losses`),
    `first_nonfinite_update` (None if there was none), `ignored`, `invalid`, `lost_updates` (updates
    that could not be added because of an error; 0 unless there was a warning), the running values
    of `update_scalar`, and with a confusion matrix `precision_micro`, `precision_macro`,
    `precision_per_class` (likewise `recall` and `f1`) and `confusion_matrix`; these two are NumPy
    arrays. Values that are not known, such as an accuracy without rows, are NaN.

    Args:
        topk: for each k, `accuracy@k` is the share of rows whose target is among the k greatest
            logits. There can be up to 8.
        num_classes: how many classes the logits must have; None accepts any number.
        confusion: keep a confusion matrix, from which precision, recall and F1 come. Needs
            `num_classes`; takes 8 * num_classes**2 bytes.
        ignore_index: a row with this target is left out, as in `torch.nn.functional.cross_entropy`.
        class_dim: dimension of the classes: 1 for logits of shape (N, C) or (N, C, d1, ...), -1
            for (N, ..., C), as in language models.
        ema: keep exponential moving averages, too, of the updates' mean losses (`loss_ema`) and of
            running values (`NAME_ema`). It is the share of an average that remains at an update,
            such as 0.98. An update whose mean is not finite is left out.
        cross_entropy: updates without a loss compute it, and perplexity and entropy, from the
            logits. False is for scores that are no logits, such as probabilities; such updates
            then have no loss, and take less time.
        label_smoothing: of that cross-entropy, from 0 to 1, as in
            `torch.nn.functional.cross_entropy`.
        class_weight: likewise the weight of each class, a tensor of `num_classes` finite numbers
            of 0 or more. It is copied, and waited for if it is on a device.
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
        ema: float | None = None,
        cross_entropy: bool = True,
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        name: str = "",
    ) -> None:
        super().__init__(
            MetricOptions(
                tuple(sorted({topk} if isinstance(topk, int) else set(topk))),
                num_classes,
                confusion,
                ignore_index,
                class_dim,
                ema,
                cross_entropy,
                label_smoothing,
                class_weight,
            ),
            name,
        )

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
        operator and causes no graph break. Of DTensors the local part is added.

        Args:
            logits: (N, C), (N, C, d1, ...) or, with `class_dim=-1`, (N, ..., C); float64, float32,
                float16 or bfloat16, with any strides. With a loss, or `cross_entropy=False`, only
                their order matters, so probabilities work as well.
            target: the class of each row, int64, int32 or uint8, in the shape of the logits without
                C. A target that is not a class makes its row invalid: it is counted, and left out.
            loss: the loss of this batch, either one number, the mean over its rows, or one per row.
                One number may be one of Python or NumPy as well. It enters the sum with the weight
                of the rows that count. Without it, the cross-entropy of the logits is the loss: as
                that of `torch.nn.functional.cross_entropy`, but computed in the same pass.
            weight: the weight of each row, in the shape of the target. A row whose weight is not
                finite is invalid.

        Raises:
            TypeError, ValueError: the tensors do not fit each other or this accumulator, or logits
                are sharded over the classes.
        """
        if loss is not None and not isinstance(loss, Tensor) and isinstance(logits, Tensor):
            # Not by a copy, which would be waited for.
            if isinstance(loss, (float, int, np.number)):
                loss = torch.full((), float(loss), dtype=torch.float64, device=logits.device)
            elif torch.compiler.is_compiling() and isinstance(loss, np.ndarray):
                # A number of NumPy, as the compiler sees it.
                loss = torch.full((), loss, dtype=torch.float64, device=logits.device)
        self._add(_BATCH, logits, target, loss, weight)

    def update_rows(
        self,
        *,
        loss: Tensor | None = None,
        correct: Tensor | None = None,
        rank: Tensor | None = None,
        entropy: Tensor | None = None,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Add one batch of which the logits are not at hand, but what was computed from them, as
        losses give it that are fused with the last layer.

        All are tensors of one shape, any one, with a number for each row. What is not given stays
        unknown: a batch without `rank` and `correct` adds nothing to the accuracies, and one
        without `entropy` nothing to the entropy. Nothing is added to a confusion matrix, because
        the predictions are not known. In all else this is like `update`.

        Args:
            loss: the loss of each row, not yet weighted. It is also taken for the negative
                log-likelihood, from which `perplexity` comes.
            correct: whether the greatest logit was the target's, as booleans or as 0 and 1. It says
                something of `accuracy@1` alone. Another number makes its row invalid.
            rank: how many logits stood before the target's, 0 for none. It says something of all
                `accuracy@k`. A number that is negative or NaN makes its row invalid.
            entropy: of the prediction, in nats. One that is not finite is left out.
            weight: the weight of each row. A row whose weight is not finite is invalid.
            mask: False, or 0, for rows that are ignored.

        Raises:
            TypeError, ValueError: the tensors do not fit each other, are on another device than
                those of the first update, or none says anything.
        """
        self._add(_ROWS, loss, correct, rank, entropy, weight, mask)

    def update_scalar(self, name: str, value: Tensor | float, weight: Tensor | None = None) -> None:
        """Add to a running value, such as a gradient norm, the rewards of a batch, or a count of
        tokens.

        `compute()` returns the weighted mean of all numbers as `name`, and `name_sum` (weighted),
        `name_weight`, `name_std` (their standard deviation, that of a population), `name_min`,
        `name_max`, `name_last` (the mean of the last update), `name_nonfinite` (numbers that were
        left out because they, or their weights, are not finite, or because the weight is negative),
        and if the accumulator was made with `ema`, `name_ema`.

        This never waits for a device. A Python number costs less than a microsecond; a tensor on
        the CPU is read once.

        Args:
            name: 1 to 64 bytes. None of its keys may be that of another value, as with `loss`, or
                `lr_max` beside `lr`. An accumulator has room for 32 names. Numbers of further ones
                are left out, with one warning, and counted in `lost_updates`.
            value: a Python number, or a tensor of any shape. It should be where the logits are: one
                of several numbers that is in host memory is copied to the GPU, which may wait.
            weight: the weight of each number, in the shape of the value. A number with a weight of
                0 is left out whatever it is, so a mask can be a weight.

        Raises:
            TypeError, ValueError: the name, the value or the weight is of the wrong kind.
        """
        if torch.compiler.is_compiling():
            if not isinstance(value, Tensor):
                value = torch.full((), value, dtype=torch.float64)
            torch.ops.pyinstrument_gpu.metric_update_scalar(
                self._state,
                local(value, name).detach(),
                local(weight, "weight"),
                name,
                self._number,
            )
            return
        if is_recomputing():
            return
        slot = self._scalar_slots.get(name)
        reading_is_due = None
        if slot is not None and self._native is not None:
            reading_is_due = self._native.update_scalar(
                self._state, self._scratch, slot, value, weight
            )
        if reading_is_due is None:
            reading_is_due = self._update_scalar_with_care(name, value, weight)
        if reading_is_due:
            self.record_reading()

    @never_compiled
    def latest(self) -> Reading | None:
        """Return the newest values that have arrived, without waiting; None if none have.

        For tensors on the CPU they are the current ones. On a GPU there are none before the first
        update by the kernel, which has to be compiled first. The confusion matrix, and what is
        computed from it, is among them for up to 16 classes.
        """
        newest = self._newest()
        return None if newest is None else self._reading_of(newest)

    @never_compiled
    def window(self) -> Window:
        """Return a window: its `latest()` and `compute()` give what was added since its previous
        reading, or at first, since it was made. The accumulator does not change.

        Make it before the first update, or it may wait for a device once.

        Raises:
            RuntimeError: a CUDA graph is being captured, and there have been updates.
        """
        before: StateSnapshot | None = None
        with self._lock:
            if self._is_placed or self._scalar_slots or self._is_loaded:
                before = self._newest()
                before = before or self._current()
            return Window(self, before)

    @never_compiled
    def log_every(self, n: int, callback: Callable[[Reading], Any]) -> PeriodicLog:
        """Have a callback called with readings while training goes on, on a thread of its own.

            with metrics.log_every(100, lambda reading: wandb.log(reading.values, reading.update)):
                for x, y in gpu_steps(loader):
                    ...

        Each reading is that of a `window()`: of the updates since the previous call, of which there
        are at least `n`. It comes once they have been done. There are more if updates are faster
        than the thread looks, 20 times a second, or the callback is still busy. When the log is
        closed, at the end of the block or of the program, what is left is passed on as well.

        Nothing in the loop waits. If the callback raises an error, there is one warning with the
        error, and no more calls. There are none in a forked child.

        Args:
            n: how many updates there are at least between two calls. Where running values alone are
                kept, the numbers of one of them are counted.
            callback: takes a `Reading`.

        Returns:
            The log, a context manager with `close()`. One that was never closed keeps the
            accumulator alive until the program ends.

        Raises:
            ValueError, TypeError: `n` is no whole number >= 1, or the callback can't be called.
        """
        if type(n) is not int or n < 1:
            raise ValueError(f"n must be an int >= 1, got {n!r}")
        if not callable(callback):
            raise TypeError(f"callback must be a function, got {type(callback).__name__}")
        return PeriodicLog(self.window(), n, callback)

    @never_compiled
    def compute(
        self, across_ranks: bool = False, group: ProcessGroup | DeviceMesh | None = None
    ) -> dict[str, Any]:
        """Return the values of all updates since the last reset. This waits for them.

        The class says which keys there are. Values that are not known are NaN.

        Args:
            across_ranks: merge all ranks of a process group of `torch.distributed`. Every rank of
                it must call this, and all get the same values. The state does not change. Without a
                process group, only this process counts.
            group: the process group, or a device mesh of one dimension, whose ranks are merged;
                None for the default group.

        Raises:
            ValueError: the accumulators of the ranks were made with different arguments, or this
                process is not in the group.
            RuntimeError: a CUDA graph is being captured.
        """
        if across_ranks or group is not None:
            return self.compute_async(group).result()
        return values_of(self._options, self._current())

    @never_compiled
    def compute_async(self, group: ProcessGroup | DeviceMesh | None = None) -> PendingValues:
        """Begin what `compute(across_ranks=True)` does, and return at once.

        `pending.result()` is the values of this moment, whatever is added meanwhile, and
        `pending.done()` says whether it would wait. Every rank of the group must call this, in the
        same order as its other collective calls. It waits for a device only if the group can't take
        tensors from it, as with gloo alone.

        Args:
            group: as in `compute`.

        Raises:
            ValueError: this process is not in the group.
            RuntimeError: a CUDA graph is being captured.
        """
        with outside_modes():
            with self._lock:
                state, lost = self._copied()
                names = self._scalar_names
            has_device = self._is_placed
            return PendingValues(self._options, names, state, lost, has_device, group)

    def grad_norm(
        self,
        parameters: Iterable[Tensor] | Tensor,
        norm_type: float = 2.0,
        name: str = "grad_norm",
    ) -> Tensor:
        """Add the norm of all gradients, as that of one vector, to a running value, and return it.

        This is computed where the gradients are, by PyTorch's operations for lists of tensors, and
        not waited for. If they are clipped as well, their norm is there already:
        `metrics.update_scalar("grad_norm", torch.nn.utils.clip_grad_norm_(parameters, 1.0))`.

        Args:
            parameters: tensors whose `grad` counts, as `model.parameters()`. Those without one are
                left out. If gradients are DTensors, the norm is that of the whole tensors: an
                all_reduce, which each rank has to take part in.
            norm_type: 2.0 for the Euclidean norm, or another p; `math.inf` for the greatest value.
            name: of the running value, as in `update_scalar`.

        Returns:
            The norm, on the device of the gradients. NaN if there are none, and nothing is added.

        Raises:
            NotImplementedError, RuntimeError: PyTorch has no norm of such gradients, as
                `clip_grad_norm_` has none: they are sparse, or some are DTensors and others not.
        """
        given = [parameters] if isinstance(parameters, Tensor) else parameters
        gradients = [each.grad for each in given if each.grad is not None]
        if not gradients:
            return torch.full((), math.nan)
        with torch.no_grad():
            norm = torch.nn.utils.get_total_norm(gradients, norm_type)
            if has_distributed([norm]):
                norm = norm.full_tensor()  # type: ignore[attr-defined]
        self.update_scalar(name, norm)
        return norm

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
        state, values = newest.state, values_of(self._options, newest)
        series = series_of(self._options, values)
        if self._reference_updates:
            series.append(("reference_updates", self._reference_updates))
        step = self._native.step_of(state.updates)
        steps = [step] * len(series)
        # A name that is new has no values yet.
        for name, slot in tuple(self._scalar_slots.items())[: len(state.scalars)]:
            own = series_of_scalar(values, name)
            series += own
            step = self._native.step_of_scalar(slot, state.scalars[slot].updates)
            steps += [step] * len(own)
        names = _series_names(self._name, self, recording, [name for name, _ in series])
        native.append_reading(
            state.updates,
            [
                (name, value, None if step is None else step[0])
                for name, (_, value), step in zip(names, series, steps, strict=True)
            ],
        )

    def _add(self, addition: Addition, *tensors: Any, state: Tensor | None = None) -> None:
        """Make an update. The operator of a compiled function brings the state, or a copy that it
        will write back. At the first update that one is still in host memory."""
        if state is None:
            if torch.compiler.is_compiling():
                own = addition.local(self._options, tensors)
                operands = [None if each is None else each.detach() for each in own]
                addition.operator(self._state, *operands, self._number)
                return
            if is_recomputing():
                return
        reading_is_due = None
        if self._is_placed and self._native is not None:
            if state is None or state.device != self._state.device:
                state = self._state
            reading_is_due = addition.native(self._native, state, self._scratch, *tensors)
        if reading_is_due is None:
            reading_is_due = self._add_with_care(addition, state, tensors)
        if reading_is_due:
            self.record_reading()

    def _add_with_care(
        self, addition: Addition, state: Tensor | None, tensors: Sequence[Any]
    ) -> bool | None:
        """Add the first tensors, those that don't fit, those that the native side can't take, and
        what comes before its kernel. Returns whether a reading is due."""
        tensors = addition.local(self._options, tensors)
        addition.check(self._options, *tensors)
        first = next(tensor for tensor in tensors if tensor is not None)
        if is_fake(*tensors) or not (self._is_placed or self._place(first)):
            return None
        if state is None or state.device != self._state.device:
            state = self._state
        if first.device != state.device:
            raise ValueError(
                f"the first update was on {state.device}, this one is on {first.device}: "
                "make an accumulator for each device"
            )
        reading_is_due: bool | None = None
        if self._native is not None:
            if self._scratch is None:
                self._make_scratch()
            reading_is_due = addition.native(self._native, state, self._scratch, *tensors)
        if reading_is_due is None:
            self._add_in_torch(addition.reference, state, *tensors, self._options)
        return reading_is_due

    def _update_scalar_with_care(
        self,
        name: str,
        value: Tensor | float,
        weight: Tensor | None,
        state: Tensor | None = None,
    ) -> bool | None:
        """Add the first value of a name, one of another kind or place, one that the native side
        can't take, one of a compiled function, which brings the state as in `_add`. Returns whether
        a reading is due."""
        value = checked_scalar(name, local(value, name), weight := local(weight, "weight"))
        if is_fake(value, weight):
            return None
        device = value.device if isinstance(value, Tensor) else _HOST
        with self._lock:
            if name not in self._scalar_slots and (key := clash_of(name, self._scalar_names)):
                raise ValueError(
                    f"{name!r} can't be the name of a running value: {key!r} is among the other "
                    "values of this accumulator; choose another name"
                )
            if name not in self._scalar_slots and len(self._scalar_slots) == MAX_SCALARS:
                self._lost_updates += 1
                self._warn_once(_NO_ROOM, f"{name!r} is one too many for {MAX_SCALARS}")
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
            if weight is None and value.numel() == 1:
                value = float(value)
            else:
                value = value.to(state.device, non_blocking=True)
                weight = None if weight is None else weight.to(state.device, non_blocking=True)
        arguments = slot, value, weight
        reading_is_due: bool | None = None
        if self._native is not None:
            if self._scratch is None:
                self._make_scratch()
            reading_is_due = self._native.update_scalar(state, self._scratch, *arguments)
        if reading_is_due is None:
            ema = self._options.ema
            self._add_in_torch(reference.add_values, state, *arguments, ema, slot=slot)
        return reading_is_due


def _series_names(
    accumulator_name: str, owner: Any, recording: int, value_names: Iterable[str]
) -> list[str]:
    """The series of these values, the same throughout the recording: `name/value`, or `value` for
    an accumulator without a name. The second accumulator that has a name at the same time gets
    `name-2/value`, or `metrics-2/value`. A series that another accumulator has nevertheless, as
    with a running value `val/loss` beside an accumulator `val`, is called `val/loss-2`."""
    first = f"{accumulator_name}/" if accumulator_name else ""
    others = (f"{accumulator_name or 'metrics'}-{number}/" for number in itertools.count(2))
    prefix = _claimed("prefix", itertools.chain([first], others), owner, recording)
    return [
        _claimed("series", _numbered(prefix + value_name), owner, recording)
        for value_name in value_names
    ]


def _numbered(name: str) -> Iterable[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _claimed(kind: str, texts: Iterable[str], owner: Any, recording: int) -> str:
    """The first of the texts that no other accumulator has."""
    for text in texts:
        if _owners.setdefault((recording, kind, text), owner) is owner:
            return text
    raise AssertionError("there is no end to the texts")


def record_readings() -> None:
    """Write a reading of every accumulator into the active recording."""
    for accumulator in list(accumulators.values()):
        accumulator.record_reading()


def _update_scalar(
    accumulator: MetricAccumulator, state: Tensor, value: Tensor, weight: Tensor | None, name: str
) -> None:
    if accumulator._update_scalar_with_care(name, value, weight, state):
        accumulator.record_reading()


define("metric_update_scalar", "Tensor value, Tensor? weight, str name", _update_scalar)
