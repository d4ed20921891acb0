# SPDX-License-Identifier: Apache-2.0
"""The accumulator of labels that are true or false: thresholds, curves and calibration."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyinstrument_gpu.metrics import element_reference
from pyinstrument_gpu.metrics.accumulator import Accumulator
from pyinstrument_gpu.metrics.addition import Addition
from pyinstrument_gpu.metrics.binary_options import BinaryOptions
from pyinstrument_gpu.metrics.binary_values import curves_of, ratios_of
from pyinstrument_gpu.metrics.state_snapshot import StateSnapshot
from pyinstrument_gpu.metrics.values import (
    calibration_error,
    counts_of,
    ratio,
    scalar_values_of,
    with_averages,
)

_LABELS = Addition(
    "update_binary",
    "Tensor logits, Tensor target, Tensor? weight",
    check=BinaryOptions.check,
    reference=element_reference.add_labels,
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
    `auroc_per_label` a NumPy array; likewise for the others. `exact_match` is the share of rows
    whose labels were all predicted.

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
        *("exact_match", "ece", "nonfinite"),
    )
    _reserved = frozenset(
        {
            *(
                f"{ratio}{suffix}"
                for ratio in _RATIOS
                for suffix in ("", "_micro", "_macro", "_per_label")
            ),
            *("count", "exact_match", "ece", "nonfinite", "first_nonfinite_update", "ignored"),
            *("invalid", "lost_updates", "reference_updates"),
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
                values["exact_match"] = ratio(state.correct[0], state.correct_weight[0])
            if options.calibration_bins:
                values["ece"] = calibration_error(calibration)
        values |= counts_of(snapshot)
        return values | scalar_values_of(snapshot.names, state.scalars, options.ema)
