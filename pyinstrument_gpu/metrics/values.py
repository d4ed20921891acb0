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

from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.metrics.state import MetricState, RunningValue, StateSnapshot


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


def values_of(options: MetricOptions, snapshot: StateSnapshot) -> dict[str, Any]:
    """The values of a state, as `MetricAccumulator.compute` describes them."""
    state, ema = snapshot.state, options.ema
    values: dict[str, Any] = {
        "count": state.count,
        "loss": _ratio(state.loss_sum, state.loss_weight),
        "loss_min": state.loss_min if state.finite_losses else math.nan,
        "loss_max": state.loss_max if state.finite_losses else math.nan,
        "loss_last": state.loss_last if state.losses else math.nan,
        **({} if ema is None else {"loss_ema": _ema_of(state.loss_ema, state.finite_losses, ema)}),
        "perplexity": _exp(_ratio(state.nll_sum, state.nll_weight)),
        "entropy": _ratio(state.entropy_sum, state.entropy_weight),
        **{
            f"accuracy@{k}": _ratio(correct, weight)
            for k, correct, weight in zip(
                options.topk, state.correct, state.correct_weight, strict=False
            )
        },
        "nonfinite_rows": state.nonfinite_rows,
        "nonfinite_losses": state.nonfinite_losses,
        "nonfinite": state.nonfinite_rows + state.nonfinite_losses,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": snapshot.lost_updates,
    }
    if state.confusion is not None:
        values |= {**_confusion_values(state.confusion), "confusion_matrix": state.confusion}
    values.update(_scalar_values_of(snapshot.names, state.scalars, ema))
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
        "precision": _shares(correct, predictions, occurs),
        "recall": _shares(correct, targets, occurs),
        "f1": _shares(2 * correct, predictions + targets, occurs),
    }
    # With one label per row, precision, recall and F1 over all rows are one number.
    micro = _ratio(float(correct.sum()), float(targets.sum()))
    values: dict[str, Any] = {}
    for name, each in by_class.items():
        known = each[~np.isnan(each)]
        values[f"{name}_micro"] = micro
        values[f"{name}_macro"] = float(known.mean()) if len(known) else math.nan
        values[f"{name}_per_class"] = each
    return values


def _shares(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Ratios where they are known, NaN elsewhere. One that is known, but has nothing in the
    denominator, counts as 0, as in other packages."""
    ratios = np.zeros_like(numerators)
    np.divide(numerators, denominators, out=ratios, where=denominators != 0)
    return np.where(known, ratios, math.nan)


def _scalar_values_of(
    names: Sequence[str], scalars: Sequence[RunningValue], ema: float | None
) -> dict[str, Any]:
    """The values of the running values with these names."""
    values: dict[str, Any] = {}
    for name, scalar in zip(names, scalars, strict=True):
        # Where all numbers are equal, the means of updates still differ by rounding.
        squares = 0.0 if scalar.min == scalar.max else scalar.m2
        numbers = (
            _ratio(scalar.sum, scalar.weight),
            scalar.sum,
            scalar.weight,
            math.sqrt(squares / scalar.weight) if scalar.count else math.nan,
            scalar.min if scalar.count else math.nan,
            scalar.max if scalar.count else math.nan,
            scalar.last if scalar.count or scalar.nonfinite else math.nan,
            scalar.nonfinite,
        )
        values.update(zip(_keys_of_scalar(name), numbers, strict=False))
        if ema is not None:
            values[f"{name}_ema"] = _ema_of(scalar.ema, scalar.means, ema)
    return values


def _ema_of(biased: float, means: int, ema: float) -> float:
    """An exponential moving average that began at 0, without the share of that 0: Kingma and Ba,
    Adam: A Method for Stochastic Optimization (2014), section 3."""
    return biased / -math.expm1(means * math.log(ema)) if means else math.nan


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def _reserved_keys() -> frozenset[str]:
    """Return the keys of an accumulator with a confusion matrix, for all: ranks and later versions
    of a program may have one. So may a series of recordings."""
    options = MetricOptions(num_classes=1, confusion=True, ema=0.5)
    empty = MetricState.of(bytes(options.state_bytes), options.confusion_classes, scalars=0)
    return frozenset(values_of(options, StateSnapshot(empty, (), 0))) | {"reference_updates"}


_RESERVED = _reserved_keys()


def clash_of(name: str, others: Iterable[str]) -> str | None:
    """A key that a running value of this name would share with another value, or another running
    value; None where it shares none."""
    taken = _RESERVED.union(*(_keys_of_scalar(other) for other in others if other != name))
    for key in _keys_of_scalar(name):
        if key in taken or key.startswith("accuracy@"):
            return key
    return None


@functools.lru_cache(1024)
def _keys_of_scalar(name: str) -> tuple[str, ...]:
    """The keys of a running value, in the order of `_scalar_values_of`; the first is its mean."""
    return tuple(name + suffix for suffix in _SCALAR_SUFFIXES)


def series_of(options: MetricOptions, values: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The values that become time series, besides the running values."""
    return _known(
        values,
        [
            *("count", "loss", "loss_last", "loss_ema", "entropy"),
            *(f"accuracy@{k}" for k in options.topk),
            *("nonfinite", "precision_macro", "recall_macro", "f1_macro"),
        ],
    )


def series_of_scalar(values: Mapping[str, Any], name: str) -> list[tuple[str, float]]:
    return _known(values, [name, f"{name}_last", f"{name}_ema"])


def _known(values: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the values that are known. NaN is unknown, but for a last value that was NaN itself:
    such a value was counted as not finite."""
    found = [(name, float(values.get(name, math.nan))) for name in names]
    return [(name, value) for name, value in found if value == value or _was_nan(values, name)]


def _was_nan(values: Mapping[str, Any], name: str) -> bool:
    if not name.endswith("_last"):
        return False
    counted = name.removesuffix("last") + "nonfinite"
    return bool(values.get("nonfinite_losses" if name == "loss_last" else counted, 0))
