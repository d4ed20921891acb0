# SPDX-License-Identifier: Apache-2.0
"""From a state to the numbers that users read."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.metrics.state import CALIBRATION_SUMS, Scalar, State
from pyinstrument_gpu.metrics.state_snapshot import StateSnapshot


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


def reserved_keys() -> frozenset[str]:
    """Those of an accumulator with a confusion matrix, for all: ranks and later versions of a
    program may have one. And a series of recordings."""
    options = MetricOptions(num_classes=1, confusion=True, ema=0.5, calibration_bins=1)
    empty = State.of(bytes(options.state_bytes), options.confusion_classes, scalars=0)
    values = values_of(options, StateSnapshot(empty, (), 0, None))
    return frozenset(values) | {"reference_updates"}


def values_of(options: MetricOptions, snapshot: StateSnapshot) -> dict[str, Any]:
    """The values of a state, as `MetricAccumulator.compute` describes them."""
    state, ema = snapshot.state, options.ema
    bins = state.tail[: CALIBRATION_SUMS * options.calibration_bins].reshape(-1, CALIBRATION_SUMS)
    values: dict[str, Any] = {
        "count": state.count,
        "loss": ratio(state.loss_sum, state.loss_weight),
        "loss_min": state.loss_min if state.finite_losses else math.nan,
        "loss_max": state.loss_max if state.finite_losses else math.nan,
        "loss_last": state.loss_last if state.losses else math.nan,
        **({} if ema is None else {"loss_ema": ema_of(state.loss_ema, state.finite_losses, ema)}),
        "perplexity": _exp(ratio(state.nll_sum, state.nll_weight)),
        "entropy": ratio(state.entropy_sum, state.entropy_weight),
        **({"ece": calibration_error(bins)} if options.calibration_bins else {}),
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
    if (sums := snapshot.class_sums) is not None:
        values.update(_confusion_values(*sums))
    if state.confusion is not None:
        values["confusion_matrix"] = state.confusion
    values.update(scalar_values_of(snapshot.names, state.scalars, ema))
    return values


def counts_of(snapshot: StateSnapshot) -> dict[str, Any]:
    """What every accumulator counts beside `count`."""
    state = snapshot.state
    return {
        "nonfinite": state.nonfinite_rows + state.nonfinite_losses,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": snapshot.lost_updates,
    }


def scalar_values_of(
    names: Sequence[str], scalars: Sequence[Scalar], ema: float | None
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


def squares_of(scalar: Scalar) -> float:
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
    """Those of the values that are known. NaN is unknown, but for a last value that was NaN itself:
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


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


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


def _confusion_values(
    targets: NDArray[np.float64], predictions: NDArray[np.float64], correct: NDArray[np.float64]
) -> dict[str, Any]:
    occurs = (targets != 0) | (predictions != 0)
    by_class = {
        "precision": shares(correct, predictions, occurs),
        "recall": shares(correct, targets, occurs),
        "f1": shares(2 * correct, predictions + targets, occurs),
    }
    # With one label per row, precision, recall and F1 over all rows are one number.
    micro = ratio(float(correct.sum()), float(targets.sum()))
    return with_averages(by_class, dict.fromkeys(by_class, micro), "class")


def with_averages(
    values: Mapping[str, NDArray[np.float64]], pooled: Mapping[str, float], of: str
) -> dict[str, Any]:
    """For each value its `_micro`, over all classes or labels together, its `_macro`, the mean of
    those of which it is known, and `_per_class` or `_per_label`, by what they are of."""
    averages: dict[str, Any] = {}
    for name, each in values.items():
        known = each[~np.isnan(each)]
        averages[f"{name}_micro"] = pooled[name]
        averages[f"{name}_macro"] = float(known.mean()) if len(known) else math.nan
        averages[f"{name}_per_{of}"] = each
    return averages
