# SPDX-License-Identifier: Apache-2.0
"""The accumulator of labels that are true or false: thresholds, curves and calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.accumulator import Accumulator
from pyinstrument_gpu.metrics.accumulator_options import (
    AccumulatorOptions,
    check_alike,
    check_ema,
)
from pyinstrument_gpu.metrics.addition import Addition
from pyinstrument_gpu.metrics.reference import add_counts, flat
from pyinstrument_gpu.metrics.state import CALIBRATION_SUMS, STATE_DTYPE, StateSnapshot
from pyinstrument_gpu.metrics.values import (
    calibration_error,
    counts_of,
    curves_of,
    ratios_of,
    scalar_values_of,
    with_averages,
)

_LOGIT_RANGE = 16
"""Bins reach from minus this to this; the outer ones take what lies beyond."""
_MAX_LABELS = 1 << 16
_MAX_BINS = 1 << 16
_MAX_BINS_OF_ALL = 1 << 26
"""A gigabyte."""
_COUNTS, _SIDES = 4, 2


@dataclass(frozen=True)
class BinaryOptions(AccumulatorOptions):
    """Checked arguments of `BinaryAccumulator`, which describes them."""

    task: ClassVar[str] = "binary"

    num_labels: int | None = None
    threshold: float = 0.5
    bins: int = 1024
    from_logits: bool = True
    ignore_index: int = -100
    calibration_bins: int = 15
    ema: float | None = None

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("num_labels", self.num_labels, 1, _MAX_LABELS),
            ("bins", self.bins, 1, _MAX_BINS),
            ("calibration_bins", self.calibration_bins, 0, _MAX_BINS),
        ):
            if value is None and name == "num_labels":
                continue
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be an int from {least} to {most}, got {value!r}")
        if (self.num_labels or 1) * self.bins > _MAX_BINS_OF_ALL:
            raise ValueError(
                f"num_labels * bins must be at most {_MAX_BINS_OF_ALL}, "
                f"got {self.num_labels} * {self.bins}"
            )
        if not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be a probability, 0 to 1, got {self.threshold!r}")
        if type(self.ignore_index) is not int or abs(self.ignore_index) > 2**53:
            raise ValueError(
                f"ignore_index must be an int of at most 2**53, got {self.ignore_index!r}"
            )
        check_ema(self.ema)

    @property
    def score_threshold(self) -> float:
        """The threshold in terms of what `update` gets."""
        if not self.from_logits:
            return float(self.threshold)
        if self.threshold in (0, 1):
            return math.inf if self.threshold else -math.inf
        return math.log(self.threshold / (1 - self.threshold))

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The sizes of the parts of the tail, in float64."""
        labels = self.num_labels or 1
        return (
            CALIBRATION_SUMS * self.calibration_bins,
            _COUNTS * labels,
            _SIDES * labels * self.bins,
        )

    @property
    def state_bytes(self) -> int:
        return STATE_DTYPE.itemsize + 8 * sum(self._sizes)

    def parts_of(self, tail: Any) -> tuple[Any, Any, Any]:
        """Split what follows the state, a tensor or an array, into (calibration bins, 3): weight,
        sum of probabilities, weight of true labels; (labels, 4): true positives, false positives,
        false and true negatives; and (labels, bins, 2): false and true labels.
        `csrc/metrics/binary_totals.h` has the same layout."""
        calibration, counts, histograms = self._sizes
        return (
            tail[:calibration].reshape(self.calibration_bins, CALIBRATION_SUMS),
            tail[calibration : calibration + counts].reshape(-1, _COUNTS),
            tail[calibration + counts :][:histograms].reshape(-1, self.bins, _SIDES),
        )

    def native_arguments(self) -> dict[str, Any]:
        given = super().native_arguments()
        labels = given.pop("num_labels") or 0
        return {**given, "labels": labels, "threshold": self.score_threshold}

    def check(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Raise TypeError or ValueError unless the tensors fit each other and the options."""
        if self.num_labels is None:
            check_alike({"logits": logits, "target": target, "weight": weight})
        else:
            check_alike({"logits": logits, "target": target})
            if logits.ndim == 0 or logits.shape[-1] != self.num_labels:
                raise ValueError(
                    f"logits must have {self.num_labels} labels in the last dimension "
                    f"(num_labels), got shape {tuple(logits.shape)}"
                )
            if weight is not None:
                check_alike({"logits[..., 0]": logits[..., 0], "weight": weight})
        if not logits.is_floating_point():
            raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}")


@torch.no_grad()
def _add_labels(
    state: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: BinaryOptions,
) -> None:
    """The tensors are as `BinaryAccumulator.update` takes them, checked."""
    labels = options.num_labels or 1
    scores, targets = flat(logits), flat(target)
    if weight is None:
        weights = torch.ones_like(scores)
    elif options.num_labels is not None:
        weights = flat(weight[..., None].expand(target.shape))
    else:
        weights = flat(weight)
    ignored = (targets == options.ignore_index) | (weights == 0)
    wrong = ~weights.isfinite() | (weights < 0) | ((targets != 0) & (targets != 1))
    nonfinite = ~(ignored | wrong | scores.isfinite())
    if options.from_logits:
        wrong |= scores.isnan()
        logit, probability = scores, 1 / (1 + torch.exp(-scores))
    else:
        wrong |= ~((scores >= 0) & (scores <= 1))
        logit, probability = torch.log(scores / (1 - scores)), scores
    counted = ~(ignored | wrong)
    true, predicted = targets == 1, scores > options.score_threshold
    weights = torch.where(counted, weights, 0)

    # Places in the tail, 0 for a label that does not count: its weight is 0.
    tail = state.view(torch.float64)[STATE_DTYPE.itemsize // 8 :]
    calibration, counts, histograms = options.parts_of(tail)
    which = torch.arange(len(scores), device=state.device) % labels
    outcomes = torch.where(true, torch.where(predicted, 0, 2), torch.where(predicted, 1, 3))
    counts.view(-1).index_add_(0, torch.where(counted, which * 4 + outcomes, 0), weights)
    bins = _binned((logit + _LOGIT_RANGE) * (options.bins / (2 * _LOGIT_RANGE)), options.bins)
    places = 2 * (which * options.bins + bins) + true
    histograms.view(-1).index_add_(0, torch.where(counted, places, 0), weights)
    if size := options.calibration_bins:
        bins = torch.where(counted, _binned(probability * size, size), 0)
        probability = torch.where(counted, probability, 0)
        columns = (weights, weights * probability, torch.where(true, weights, 0))
        for column, added in enumerate(columns):
            calibration[:, column].index_add_(0, bins, added)
    add_counts(state, counted, ignored, wrong, weights, nonfinite.sum())


def _binned(position: Tensor, bins: int) -> Tensor:
    return position.nan_to_num(0).clamp(0, bins - 1).to(torch.int64)


_LABELS = Addition(
    "update_binary",
    "Tensor logits, Tensor target, Tensor? weight",
    check=BinaryOptions.check,
    reference=_add_labels,
)

_RATIOS = (
    *("accuracy", "precision", "recall", "f1"),
    *("auroc", "auroc_error", "average_precision", "average_precision_error"),
)


class BinaryAccumulator(Accumulator):
    """Accumulates metrics of labels that are true or false on the device of their logits, without
    waiting for it: of one label per row, or of several (multilabel classification).

        metrics = pig.BinaryAccumulator()
        for x, y in gpu_steps(loader):
            logits = model(x)
            ...
            metrics.update(logits, y)
        values = metrics.compute()
        print(f"AUROC {values['auroc']:.3f} +- {values['auroc_error']:.1g}")

    In all else it is like `MetricAccumulator`: what `latest`, `compute`, `reset` and
    `update_scalar` do, copies, threads, and recordings. Its state does not grow with the number of
    updates: it takes 4 KB, and 16 * `bins` bytes for each label.

    The values have the keys `count` (labels), `accuracy`, `precision`, `recall` and `f1` (at the
    threshold), `auroc` (area under the receiver operating characteristic), `average_precision`,
    `ece` (expected calibration error), `nonfinite` (labels whose logit is not finite),
    `first_nonfinite_update`, `ignored`, `invalid`, `lost_updates`, and the running values of
    `update_scalar`. Values that are not known, such as `auroc` while all labels are true, are NaN.

    `auroc` and `average_precision` come from histograms of the scores. The exact value is at most
    `auroc_error` and `average_precision_error` away, which is what the order of the scores within
    the bins can change, besides the rounding of sums in float64.

    With `num_labels`, each of these ratios and areas and each error has three keys: `auroc_micro`
    is of all labels together, `auroc_macro` the mean over the labels of which it is known, and
    `auroc_per_label` a NumPy array; likewise for the others.

    Args:
        num_labels: the number of labels of a row, the last dimension of the logits; None: each
            logit is a row of its own.
        threshold: a label is predicted to be true if its probability is above this.
        bins: how many bins each histogram has, up to 65,536. They are uniform in the logit, from
            -16 to 16; the outer ones take what lies beyond.
        from_logits: whether `update` gets logits. Otherwise it gets probabilities.
        ignore_index: a label with this target is left out.
        calibration_bins: how many bins of equal width the probabilities have for `ece`. With 0
            there is none, and on the CPU an update is faster.
        ema: also keep exponential moving averages of the running values (`NAME_ema`). It is the
            share of an average that remains at an update, such as 0.98.
        name: is put before the names of the values in a recording, as in `val/auroc`.

    Raises:
        TypeError, ValueError: an argument is wrong.
        MissingDependencyError: PyTorch is not installed.
    """

    _options: BinaryOptions
    _series = (
        "count",
        *(f"{ratio}{average}" for ratio in _RATIOS for average in ("", "_macro")),
        *("ece", "nonfinite"),
    )
    _reserved = frozenset(
        {
            *(
                f"{ratio}{suffix}"
                for ratio in _RATIOS
                for suffix in ("", "_micro", "_macro", "_per_label")
            ),
            *("count", "ece", "nonfinite", "first_nonfinite_update", "ignored", "invalid"),
            *("lost_updates", "reference_updates"),
        }
    )

    def __init__(
        self,
        num_labels: int | None = None,
        threshold: float = 0.5,
        bins: int = 1024,
        from_logits: bool = True,
        ignore_index: int = -100,
        calibration_bins: int = 15,
        *,
        ema: float | None = None,
        name: str = "",
    ) -> None:
        super().__init__(
            BinaryOptions(
                num_labels, threshold, bins, from_logits, ignore_index, calibration_bins, ema
            ),
            name,
        )

    def update(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add one batch.

        This never waits for a device. What `MetricAccumulator.update` says of kernels, CUDA graphs
        and `torch.compile` holds here as well.

        Args:
            logits: one number for each label, in any shape, or in shape (..., `num_labels`);
                float64, float32, float16 or bfloat16, with any strides. With `from_logits=False`
                these are probabilities. A label with a logit of NaN, or with a number that is no
                probability, is invalid; an infinite logit counts, and is also counted in
                `nonfinite`.
            target: 0 or 1 for each label, in the same shape; booleans, integers or floating-point
                numbers. Another number, but for `ignore_index`, makes its label invalid: it is
                counted, and left out.
            weight: the weight of each row: in the shape of the target, and with `num_labels`
                without the last dimension; 0 or more. A row with a weight of 0 is ignored, so a
                mask can be a weight. One whose weight is negative or not finite is invalid.

        Raises:
            TypeError, ValueError: the tensors do not fit each other, the options, or the device of
                the first update.
        """
        self._add(_LABELS, logits, target, weight)

    def _values(self, snapshot: StateSnapshot) -> dict[str, Any]:
        options, state = self._options, snapshot.state
        values: dict[str, Any] = {"count": state.count}
        tail = state.tail
        if len(tail):  # a reading on a GPU has none
            calibration, counts, histograms = options.parts_of(tail)
            by_label = ratios_of(counts)
            pooled = ratios_of(counts.sum(axis=0, keepdims=True))
            if len(histograms):
                by_label |= curves_of(histograms)
                if options.num_labels is not None:
                    pooled |= curves_of(histograms.sum(axis=0, keepdims=True))
            if options.num_labels is None:
                values |= {name: float(ratios[0]) for name, ratios in by_label.items()}
            else:
                of_all = {name: float(ratios[0]) for name, ratios in pooled.items()}
                values |= with_averages(by_label, of_all, "label")
            if options.calibration_bins:
                values["ece"] = calibration_error(calibration)
        values |= counts_of(snapshot)
        return values | scalar_values_of(snapshot.names, state.scalars, options.ema)
