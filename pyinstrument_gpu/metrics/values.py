# SPDX-License-Identifier: Apache-2.0
"""Conversion of a state to the numbers that users read."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.state import RunningValue, StateSnapshot


@dataclass(frozen=True)
class Reading:
    """The values after a certain update.

    Attributes:
        values: by name, as `MetricAccumulator.compute` describes them.
        update: the number of the newest update included, from 1. A reset does not restart it.
        step: the index of the step in which that update was made; None outside a step, while
            nothing is being recorded, or if the host did not see the update (a replay of a CUDA
            graph).
    """

    values: dict[str, Any]
    update: int
    step: int | None


Array = NDArray[np.float64]

_SCALAR_SUFFIXES = ("", "_sum", "_weight", "_std", "_min", "_max", "_last", "_nonfinite", "_ema")


def clash_of(name: str, others: Iterable[str], reserved: Iterable[str] = ()) -> str | None:
    """A key that a running value of this name would share with those that are reserved, or with
    another running value; None where it shares none."""
    taken = set(reserved).union(*(keys_of_scalar(other) for other in others if other != name))
    for key in keys_of_scalar(name):
        if key in taken or key.startswith("accuracy@"):
            return key
    return None


@functools.lru_cache(1024)
def keys_of_scalar(name: str) -> tuple[str, ...]:
    """The keys of a running value, in the order of `values_of`; the first is its mean."""
    return tuple(name + suffix for suffix in _SCALAR_SUFFIXES)


def counts_of(snapshot: StateSnapshot) -> dict[str, Any]:
    """Return what every accumulator counts beside `count`."""
    state = snapshot.state
    return {
        "nonfinite": state.nonfinite_rows + state.nonfinite_losses,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": snapshot.lost_updates,
    }


def scalar_values_of(
    names: Sequence[str], scalars: Sequence[RunningValue], ema: float | None
) -> dict[str, Any]:
    """The values of the running values with these names."""
    values: dict[str, Any] = {}
    for name, scalar in zip(names, scalars, strict=True):
        numbers = (
            ratio(scalar.sum, scalar.weight),
            scalar.sum,
            scalar.weight,
            math.sqrt(squares_of(scalar) / scalar.weight) if scalar.count else math.nan,
            scalar.min if scalar.count else math.nan,
            scalar.max if scalar.count else math.nan,
            scalar.last if scalar.count or scalar.nonfinite else math.nan,
            scalar.nonfinite,
        )
        values.update(zip(keys_of_scalar(name), numbers, strict=False))
        if ema is not None:
            values[f"{name}_ema"] = ema_of(scalar.ema, scalar.means, ema)
    return values


def squares_of(scalar: RunningValue) -> float:
    """The weighted sum of squares of the distances from the mean."""
    # Where all numbers are equal, the means of updates still differ by rounding.
    return 0.0 if scalar.min == scalar.max else float(scalar.m2)


def ema_of(biased: float, means: int, ema: float) -> float:
    """An exponential moving average that began at 0, without the share of that 0: Kingma and Ba,
    Adam: A Method for Stochastic Optimization (2014), section 3."""
    return biased / -math.expm1(means * math.log(ema)) if means else math.nan


def series_of_scalar(values: Mapping[str, Any], name: str) -> list[tuple[str, float]]:
    return known_series(values, [name, f"{name}_last", f"{name}_ema"])


def known_series(values: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the values that are known. NaN is unknown, but for a last value that was NaN itself:
    such a value was counted as not finite."""
    found = [(name, float(values.get(name, math.nan))) for name in names]
    return [(name, value) for name, value in found if value == value or _was_nan(values, name)]


def _was_nan(values: Mapping[str, Any], name: str) -> bool:
    if not name.endswith("_last"):
        return False
    counted = name.removesuffix("last") + "nonfinite"
    return bool(values.get("nonfinite_losses" if name == "loss_last" else counted, 0))


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def calibration_error(bins: NDArray[np.float64]) -> float:
    """The expected calibration error (Naeini, Cooper and Hauskrecht, 2015): how far the mean
    probability of a bin is from the share of labels that are true, averaged over bins by their
    weight. NaN without labels.

    Args:
        bins: (bins, CALIBRATION_SUMS): weight, weighted sum of probabilities, weight of true labels
            or of rows that were predicted correctly.
    """
    weight, probability, true = bins.T
    return ratio(float(np.abs(probability - true).sum()), float(weight.sum()))


def shares(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Ratios where they are known, NaN elsewhere. One that is known, but has nothing in the
    denominator, counts as 0, as in other packages."""
    ratios = np.zeros_like(numerators)
    np.divide(numerators, denominators, out=ratios, where=denominators != 0)
    return np.where(known, ratios, math.nan)


def with_averages(
    values: Mapping[str, NDArray[np.float64]], pooled: Mapping[str, float], of: str
) -> dict[str, Any]:
    """Add for each value its `_micro`, over all classes or labels together, its `_macro`, the mean
    over those that have one, and `_per_class` or `_per_label`, by what they are of."""
    averages: dict[str, Any] = {}
    for name, each in values.items():
        known = each[~np.isnan(each)]
        averages[f"{name}_micro"] = pooled[name]
        averages[f"{name}_macro"] = float(known.mean()) if len(known) else math.nan
        averages[f"{name}_per_{of}"] = each
    return averages


def area_under_roc(histograms: Array) -> tuple[Array, Array]:
    """The area under the receiver operating characteristic, and its greatest error.

    It is the share of pairs of a true and a false label in which the true one has the greater
    score; a tie is half a pair. So are two labels in one bin, and those are what may be wrong.

    Args:
        histograms: (labels, bins, 2): the weight of false and of true labels, by ascending scores.

    Returns:
        Both by label; NaN where all labels are true, or all are false.
    """
    with np.errstate(invalid="ignore"):
        false, true = np.moveaxis(histograms / histograms.sum(axis=1, keepdims=True), -1, 0)
    below = _before(false)
    halves = (true * false).sum(axis=1) / 2
    area = (true * below).sum(axis=1) + halves
    return np.clip(area, 0, 1), halves  # by rounding it may be above


def average_precision(histograms: Array) -> tuple[Array, Array]:
    """The average precision, which is the mean over true labels of the precision at their score,
    and its greatest error.

    The estimate has the true and false labels of a bin spread evenly over it, so that precision
    changes along the curve of Davis and Goadrich, The Relationship Between Precision-Recall and ROC
    Curves (2006). Precision is at its highest where the true labels of a bin are tied and stand
    before the false ones, and at its lowest where they stand behind them, one by one.

    Args and returns: as for `area_under_roc`; NaN where there is no true label.
    """
    # From the highest score to the lowest.
    false, true = np.moveaxis(histograms[:, ::-1], -1, 0)
    all_true = true.sum(axis=1)
    with np.errstate(all="ignore"):
        # Only ratios matter, and these numbers stay within what can be multiplied.
        scale = histograms.sum(axis=(1, 2))[:, np.newaxis]
        false, true, all_true = false / scale, true / scale, all_true / scale[:, 0]
        true_before, false_before = _before(true), _before(false)

        highest = true * (true_before + true) / (true_before + true + false_before)
        # The integral of (T + t) / (T + t + F) over t from 0 to `true`, with all false ones in F.
        others = false_before + false
        lowest = true - others * np.log1p(true / (true_before + others))
        # The same where F grows with t.
        slope = 1 + false / true
        begin = true_before + false_before
        even = (true + (true_before - begin / slope) * np.log1p(slope * true / begin)) / slope

        highest, lowest, even = (
            np.where(true > 0, each, 0).sum(axis=1) / all_true
            for each in (
                highest,
                np.where(others > 0, lowest, true),
                np.where(begin > 0, even, true / slope),
            )
        )
        # All lie between 0 and 1, but for rounding.
        even = np.clip(even, 0, 1)
        return even, np.clip(np.maximum(highest - even, even - lowest), 0, 1)


def ratios_of(counts: Array) -> dict[str, Array]:
    """Accuracy, precision, recall and F1 from (labels, 4): the weight of true positives, false
    positives, false negatives and true negatives. NaN where a label does not occur; of the last
    three also where it is neither true nor predicted to be."""
    true_positive, false_positive, false_negative, _ = counts.T
    occurs = true_positive + false_positive + false_negative > 0

    total = counts.sum(axis=1)
    correct = counts[:, 0] + counts[:, 3]
    return {
        "accuracy": shares(correct, total, total > 0),
        "precision": shares(true_positive, true_positive + false_positive, occurs),
        "recall": shares(true_positive, true_positive + false_negative, occurs),
        "f1": shares(
            2 * true_positive, 2 * true_positive + false_positive + false_negative, occurs
        ),
    }


def curves_of(histograms: Array) -> dict[str, Array]:
    """The areas under both curves and their errors, by label."""
    auroc, auroc_error = area_under_roc(histograms)
    precision, precision_error = average_precision(histograms)
    return {
        "auroc": auroc,
        "auroc_error": auroc_error,
        "average_precision": precision,
        "average_precision_error": precision_error,
    }


def _before(weights: Array) -> Array:
    """Return the total weight before each bin."""
    sums = np.cumsum(weights, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)
