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

from pyinstrument_gpu.metrics.state import CALIBRATION_SUMS, STATE_DTYPE, Scalar, State


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


@functools.cache
def reserved_keys() -> frozenset[str]:
    """Those of an accumulator with a confusion matrix, for all: ranks and later versions of a
    program may have one. And a series of recordings."""
    empty = State.of(bytes(STATE_DTYPE.itemsize + 8 * (CALIBRATION_SUMS + 1)), 1, scalars=0)
    values = values_of(empty, (), (), 0, ema=0.5, calibration_bins=1)
    return frozenset(values) | {"reference_updates"}


def values_of(
    state: State,
    topk: Sequence[int],
    scalar_names: Sequence[str],
    lost_updates: int,
    confusion_sums: NDArray[np.float64] | None = None,
    ema: float | None = None,
    calibration_bins: int = 0,
) -> dict[str, Any]:
    """The values of a state, as `MetricAccumulator.compute` describes them.

    Args:
        confusion_sums: of a confusion matrix that the state lacks, for each class: the sum of its
            row, the sum of its column, and the element of the diagonal.
        ema: how much of the moving averages remains at an update; None where there are none.
        calibration_bins: how many the tail of the state begins with.
    """
    loss = ratio(state.loss_sum, state.loss_weight)
    values: dict[str, Any] = {
        "count": state.count,
        "loss": loss,
        "loss_min": state.loss_min if state.finite_losses else math.nan,
        "loss_max": state.loss_max if state.finite_losses else math.nan,
        "loss_last": state.loss_last if state.losses else math.nan,
        **({} if ema is None else {"loss_ema": ema_of(state.loss_ema, state.finite_losses, ema)}),
        "perplexity": _exp(ratio(state.nll_sum, state.nll_weight)),
        "entropy": ratio(state.entropy_sum, state.entropy_weight),
        **({"ece": _calibration_error(state, calibration_bins)} if calibration_bins else {}),
        **{
            f"accuracy@{k}": ratio(correct, weight)
            for k, correct, weight in zip(topk, state.correct, state.correct_weight, strict=False)
        },
        "nonfinite": state.nonfinite_rows + state.nonfinite_losses,
        "nonfinite_rows": state.nonfinite_rows,
        "nonfinite_losses": state.nonfinite_losses,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": lost_updates,
    }
    matrix = state.confusion
    if matrix is not None:
        confusion_sums = np.stack([matrix.sum(axis=1), matrix.sum(axis=0), np.diagonal(matrix)])
    if confusion_sums is not None:
        values.update(_confusion_values(*confusion_sums))
    if matrix is not None:
        values["confusion_matrix"] = matrix
    values.update(scalar_values_of(scalar_names, state.scalars, ema))
    return values


def counts_of(state: State, lost_updates: int) -> dict[str, Any]:
    """What every accumulator without losses counts beside `count`."""
    return {
        "nonfinite": state.nonfinite_rows,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": lost_updates,
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


def series_of(values: Mapping[str, Any], topk: Sequence[int]) -> list[tuple[str, float]]:
    """What of a reading becomes a time series: what changes and cannot be computed from the rest.
    The running values have their own.

    What is not known (NaN) is left out.
    """
    names = [
        "count",
        "loss",
        "loss_last",
        "loss_ema",
        "entropy",
        *(f"accuracy@{k}" for k in topk),
        "nonfinite",
        "ece",
    ]
    if "f1_macro" in values:
        names += ["precision_macro", "recall_macro", "f1_macro"]
    return known_series(values, names)


def series_of_scalar(values: Mapping[str, Any], name: str) -> list[tuple[str, float]]:
    return known_series(values, [name, f"{name}_last", f"{name}_ema"])


def known_series(values: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, float]]:
    known = [name for name in names if not math.isnan(values.get(name, math.nan))]
    return [(name, float(values[name])) for name in known]


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _calibration_error(state: State, bins: int) -> float:
    """Naeini, Cooper and Hauskrecht, 2015: how far confidence and accuracy are apart, averaged over
    the bins by their weight."""
    sums = state.tail[: bins * CALIBRATION_SUMS].reshape(bins, CALIBRATION_SUMS)
    weights, confidences, correct = sums.T
    return ratio(float(np.abs(confidences - correct).sum()), float(weights.sum()))


def _confusion_values(
    targets: NDArray[np.float64], predictions: NDArray[np.float64], correct: NDArray[np.float64]
) -> dict[str, Any]:
    occurs = (targets != 0) | (predictions != 0)

    def per_class(denominators: NDArray[np.float64], numerators: NDArray[np.float64]) -> Any:
        # A class that occurs but has nothing in the denominator counts as 0, as elsewhere.
        known = denominators != 0
        ratios = np.divide(numerators, denominators, out=np.zeros(len(known)), where=known)
        return np.where(occurs, ratios, math.nan)

    by_class = {
        "precision": per_class(predictions, correct),
        "recall": per_class(targets, correct),
        "f1": per_class(predictions + targets, 2 * correct),
    }
    # With one label per row, precision, recall and F1 over all rows are one number.
    micro = ratio(float(correct.sum()), float(targets.sum()))
    values: dict[str, Any] = {}
    for name, ratios in by_class.items():
        values[f"{name}_micro"] = micro
        values[f"{name}_macro"] = float(ratios[occurs].mean()) if occurs.any() else math.nan
        values[f"{name}_per_class"] = ratios
    return values
