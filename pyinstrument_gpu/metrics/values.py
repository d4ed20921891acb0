# SPDX-License-Identifier: Apache-2.0
"""From a state to the numbers that users read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.state import State


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


def values_of(
    state: State, topk: Sequence[int], scalar_names: Sequence[str], lost_updates: int
) -> dict[str, Any]:
    """The values of a state, as `MetricAccumulator.compute` describes them."""
    loss = _ratio(state.loss_sum, state.loss_weight)
    values: dict[str, Any] = {
        "count": state.count,
        "loss": loss,
        "loss_min": state.loss_min if state.finite_losses else math.nan,
        "loss_max": state.loss_max if state.finite_losses else math.nan,
        "loss_last": state.loss_last if state.losses else math.nan,
        "perplexity": _exp(loss),
        **{
            f"accuracy@{k}": _ratio(correct, state.weight)
            for k, correct in zip(topk, state.correct, strict=False)
        },
        "nonfinite": state.nonfinite_rows + state.nonfinite_losses,
        "nonfinite_rows": state.nonfinite_rows,
        "nonfinite_losses": state.nonfinite_losses,
        "first_nonfinite_update": state.first_nonfinite_update or None,
        "ignored": state.ignored,
        "invalid": state.invalid,
        "lost_updates": lost_updates,
    }
    if state.confusion is not None:
        values.update(_confusion_values(state.confusion))
    for name, scalar in zip(scalar_names, state.scalars, strict=True):
        values[name] = _ratio(scalar.sum, scalar.count)
        values[f"{name}_sum"] = scalar.sum
        values[f"{name}_min"] = scalar.min if scalar.count else math.nan
        values[f"{name}_max"] = scalar.max if scalar.count else math.nan
        values[f"{name}_last"] = scalar.last if scalar.count or scalar.nonfinite else math.nan
        values[f"{name}_nonfinite"] = scalar.nonfinite
    return values


def series_of(
    values: Mapping[str, Any], topk: Sequence[int], scalar_names: Sequence[str]
) -> list[tuple[str, float]]:
    """What of a reading becomes a time series: what changes and cannot be computed from the rest.

    What is not known (NaN) is left out.
    """
    names = ["count", "loss", "loss_last", *(f"accuracy@{k}" for k in topk), "nonfinite"]
    if "f1_macro" in values:
        names += ["precision_macro", "recall_macro", "f1_macro"]
    for name in scalar_names:
        names += [name, f"{name}_last"]
    return [(name, float(values[name])) for name in names if not math.isnan(values[name])]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _confusion_values(matrix: NDArray[np.float64]) -> dict[str, Any]:
    correct = np.diagonal(matrix)
    targets = matrix.sum(axis=1)
    predictions = matrix.sum(axis=0)
    occurs = (targets != 0) | (predictions != 0)

    def per_class(denominators: NDArray[np.float64], numerators: NDArray[np.float64]) -> Any:
        # A class that occurs but has nothing in the denominator counts as 0, as elsewhere.
        known = denominators != 0
        ratios = np.divide(numerators, denominators, out=np.zeros(len(matrix)), where=known)
        return np.where(occurs, ratios, math.nan)

    by_class = {
        "precision": per_class(predictions, correct),
        "recall": per_class(targets, correct),
        "f1": per_class(predictions + targets, 2 * correct),
    }
    # With one label per row, precision, recall and F1 over all rows are one number.
    micro = _ratio(float(correct.sum()), float(targets.sum()))
    values: dict[str, Any] = {}
    for name, ratios in by_class.items():
        values[f"{name}_micro"] = micro
        values[f"{name}_macro"] = float(ratios[occurs].mean()) if occurs.any() else math.nan
        values[f"{name}_per_class"] = ratios.tolist()
    values["confusion_matrix"] = matrix.tolist()
    return values
