# SPDX-License-Identifier: Apache-2.0
"""The accumulator of classification: accuracy, loss and a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyinstrument_gpu.metrics import reference
from pyinstrument_gpu.metrics.accumulator import Accumulator
from pyinstrument_gpu.metrics.addition import Addition
from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.metrics.state import MetricState, StateSnapshot
from pyinstrument_gpu.metrics.values import (
    counts_of,
    ema_of,
    ratio,
    scalar_values_of,
    shares,
    with_averages,
)

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


def _reserved_keys() -> frozenset[str]:
    """Return the keys of an accumulator with a confusion matrix, for all: ranks and later versions
    of a program may have one. So may a series of recordings."""
    options = MetricOptions(num_classes=1, confusion=True, ema=0.5)
    empty = MetricState.of(bytes(options.state_bytes), options.confusion_classes, scalars=0)
    values = _values_of(options, StateSnapshot(empty, (), 0))
    return frozenset(values) | {"reference_updates"}


def _values_of(options: MetricOptions, snapshot: StateSnapshot) -> dict[str, Any]:
    """The values of a state, as `MetricAccumulator.compute` describes them."""
    state, ema = snapshot.state, options.ema
    values: dict[str, Any] = {
        "count": state.count,
        "loss": ratio(state.loss_sum, state.loss_weight),
        "loss_min": state.loss_min if state.finite_losses else math.nan,
        "loss_max": state.loss_max if state.finite_losses else math.nan,
        "loss_last": state.loss_last if state.losses else math.nan,
        **({} if ema is None else {"loss_ema": ema_of(state.loss_ema, state.finite_losses, ema)}),
        "perplexity": _exp(ratio(state.nll_sum, state.nll_weight)),
        "entropy": ratio(state.entropy_sum, state.entropy_weight),
        **{
            f"accuracy@{k}": ratio(correct, weight)
            for k, correct, weight in zip(
                options.topk, state.correct, state.correct_weight, strict=False
            )
        },
        "nonfinite_rows": state.nonfinite_rows,
        "nonfinite_losses": state.nonfinite_losses,
        **counts_of(snapshot),
    }
    if state.confusion is not None:
        values |= {**_confusion_values(state.confusion), "confusion_matrix": state.confusion}
    values.update(scalar_values_of(snapshot.names, state.scalars, ema))
    return values


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _confusion_values(matrix: NDArray[np.float64]) -> dict[str, Any]:
    targets, predictions, correct = matrix.sum(axis=1), matrix.sum(axis=0), np.diagonal(matrix)
    occurs = (targets != 0) | (predictions != 0)
    by_class = {
        "precision": shares(correct, predictions, occurs),
        "recall": shares(correct, targets, occurs),
        "f1": shares(2 * correct, predictions + targets, occurs),
    }
    # With one label per row, precision, recall and F1 over all rows are one number.
    micro = ratio(float(correct.sum()), float(targets.sum()))
    return with_averages(by_class, dict.fromkeys(by_class, micro), "class")


class MetricAccumulator(Accumulator):
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

    _options: MetricOptions
    _extremes = ("loss_min", "loss_max", "first_nonfinite_update")
    _reserved = _reserved_keys()

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

    def _values(self, snapshot: StateSnapshot) -> dict[str, Any]:
        return _values_of(self._options, snapshot)

    @property
    def _series(self) -> list[str]:
        return [
            *("count", "loss", "loss_last", "loss_ema", "entropy"),
            *(f"accuracy@{k}" for k in self._options.topk),
            *("nonfinite", "precision_macro", "recall_macro", "f1_macro"),
        ]
