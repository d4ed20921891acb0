# SPDX-License-Identifier: Apache-2.0
"""The accumulator of regression: errors, and how much of the targets is explained."""

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
from pyinstrument_gpu.metrics.reference import add_counts, flat, fold
from pyinstrument_gpu.metrics.state import StateSnapshot
from pyinstrument_gpu.metrics.values import (
    counts_of,
    ema_of,
    ratio,
    scalar_values_of,
    squares_of,
)


@dataclass(frozen=True)
class RegressionOptions(AccumulatorOptions):
    """Checked arguments of `RegressionAccumulator`, which describes them."""

    task: ClassVar[str] = "regression"
    own_scalars: ClassVar[tuple[str, ...]] = ("(squared error)", "(absolute error)", "(target)")

    ema: float | None = None

    def __post_init__(self) -> None:
        check_ema(self.ema)

    def check(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Raise TypeError or ValueError unless the tensors fit each other."""
        check_alike({"prediction": prediction, "target": target, "weight": weight})


@torch.no_grad()
def _add_pairs(
    state: Tensor,
    prediction: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: RegressionOptions,
) -> None:
    """The tensors are as `RegressionAccumulator.update` takes them, checked."""
    targets = flat(target)
    errors = flat(prediction) - targets
    weights = torch.ones_like(errors) if weight is None else flat(weight)
    ignored = weights == 0
    wrong = ~weights.isfinite() | (weights < 0)
    squares = errors.square()
    nonfinite = ~(ignored | wrong | squares.isfinite())
    counted = ~(ignored | wrong | nonfinite)
    weights = torch.where(counted, weights, 0)
    for slot, values in enumerate((squares, errors.abs(), targets)):
        fold(state, slot, values, weights, counted, options.ema)
    add_counts(state, counted, ignored, wrong, weights, nonfinite.sum())


_PAIRS = Addition(
    "update_regression",
    "Tensor prediction, Tensor target, Tensor? weight",
    check=RegressionOptions.check,
    reference=_add_pairs,
)


class RegressionAccumulator(Accumulator):
    """Accumulates errors of predicted numbers on their device, without waiting for it.

        metrics = pig.RegressionAccumulator()
        for x, y in gpu_steps(loader):
            prediction = model(x)
            ...
            metrics.update(prediction, y)
        print(metrics.compute()["rmse"])

    In all else it is like `MetricAccumulator`: what `latest`, `compute`, `reset` and
    `update_scalar` do, copies, threads, and recordings. The state takes 3 KB.

    The values have the keys `count` (pairs of a prediction and a target), `mse` (mean squared
    error), `rmse` (its root), `mae` (mean absolute error), `r2` (coefficient of determination: 1 -
    `mse` / variance of the targets; NaN if the targets do not differ), `max_error` (the greatest
    absolute error), `nonfinite` (pairs left out because their squared error is not finite),
    `first_nonfinite_update`, `ignored` (pairs with a weight of 0), `invalid` (pairs left out
    because of their weight), `lost_updates`, with `ema` also `mse_ema` and `mae_ema`, and the
    running values of `update_scalar`, of which there can be 29. Means and `r2` are weighted. Values
    that are not known are NaN.

    Args:
        ema: also keep exponential moving averages of the updates' means, in which an average keeps
            this share at each update, such as 0.98; None keeps none.
        name: is put before the names of the values in a recording, as in `val/mse`.

    Raises:
        TypeError, ValueError: an argument is wrong.
        MissingDependencyError: PyTorch is not installed.
    """

    _extremes = ("max_error", "first_nonfinite_update")
    _series = ("count", "mse", "rmse", "mae", "r2", "max_error", "nonfinite", "mse_ema", "mae_ema")
    _reserved = frozenset(
        {
            *_series,
            *("first_nonfinite_update", "ignored", "invalid", "lost_updates", "reference_updates"),
            *RegressionOptions.own_scalars,
        }
    )

    def __init__(self, *, ema: float | None = None, name: str = "") -> None:
        super().__init__(RegressionOptions(ema), name)

    def update(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add one batch of predictions.

        This never waits for a device. What `MetricAccumulator.update` says of kernels, CUDA graphs
        and `torch.compile` holds here as well.

        Args:
            prediction: numbers in any shape, float64, float32, float16 or bfloat16 with any
                strides. Other types, such as int64, work as well.
            target: numbers in the same shape.
            weight: the weight of each pair, in the same shape; 0 or more. A pair with a weight of
                0 is ignored, so a mask can be a weight. One whose weight is negative or not finite
                is invalid.

        Raises:
            TypeError, ValueError: the tensors do not fit each other, or are on another device than
                those of the first update.
        """
        self._add(_PAIRS, prediction, target, weight)

    def _values(self, snapshot: StateSnapshot) -> dict[str, Any]:
        options, state = self._options, snapshot.state
        squared, absolute, target = state.scalars[: self._own]
        mse = ratio(squared.sum, squared.weight)
        values = {
            "count": state.count,
            "mse": mse,
            "rmse": math.sqrt(mse),
            "mae": ratio(absolute.sum, absolute.weight),
            "r2": 1 - squared.sum / squares if (squares := squares_of(target)) > 0 else math.nan,
            "max_error": absolute.max if absolute.count else math.nan,
            **counts_of(snapshot),
        }
        if options.ema is not None:
            for name, scalar in (("mse", squared), ("mae", absolute)):
                values[f"{name}_ema"] = ema_of(scalar.ema, scalar.means, options.ema)
        names, scalars = snapshot.names[self._own :], state.scalars[self._own :]
        return {**values, **scalar_values_of(names, scalars, options.ema)}
