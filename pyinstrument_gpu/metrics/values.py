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


def shares(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Ratios where they are known, NaN elsewhere. One that is known, but has nothing in the
    denominator, counts as 0, as in other packages."""
    ratios = np.zeros_like(numerators)
    np.divide(numerators, denominators, out=ratios, where=denominators != 0)
    return np.where(known, ratios, math.nan)
