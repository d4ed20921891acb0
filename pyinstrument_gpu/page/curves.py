# SPDX-License-Identifier: Apache-2.0
"""Metrics and memory over the steps of a run, thinned out for pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import printable

MAX_POINTS = 600
MAX_METRICS = 24
_MIB = 1 << 20


class Curves(NamedTuple):
    """Some values over one axis.

    Attributes:
        title: what they are.
        data: what the script draws: the names of the axis and of the curves, their unit, the places
            on the axis, ascending, and for each curve a value at each of them; None where it is
            unknown or not finite.
        remark: what the picture does not show.
    """

    title: str
    data: Mapping[str, Any]
    remark: str = ""


def metric_curves(run: Run) -> list[Curves]:
    """Each metric that was read, at most `MAX_METRICS`, over the steps of its updates, or the
    updates where the steps are not known."""
    found: list[Curves] = []
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if not len(readings) or len(found) == MAX_METRICS:
            continue
        axis = "step" if (readings["step"] >= 0).all() else "update"
        readings = readings[np.argsort(readings[axis].astype(np.int64), kind="stable")]
        values = readings["value"]
        endless = int(np.count_nonzero(~np.isfinite(values)))
        kept = _thinned(values)
        x = readings[axis].astype(np.int64)[kept]
        remark = f"{endless:,} of {len(values):,} values are not finite" if endless else ""
        found.append(Curves(name, _data(axis, "", x, {name: values[kept]}), remark))
    return found


def memory_curves(run: Run) -> list[Curves]:
    """Memory at the end of the steps that were read; nothing without any."""
    if run.memory is None or not len(run.memory.points):
        return []
    points = run.memory.points
    reserved = points["reserved_bytes"]
    name = "resident" if run.memory.device is None else "allocated"
    values = {name: points["allocated_bytes"] / _MIB}
    if (reserved >= 0).any():
        values["reserved"] = np.where(reserved >= 0, reserved / _MIB, math.nan)
    return [Curves("Memory at the end of steps", _data("step", "MiB", points["step"], values))]


def _data(
    axis: str, unit: str, x: NDArray[np.int64], curves: Mapping[str, NDArray[np.float64]]
) -> dict[str, Any]:
    return {
        "x_name": axis,
        "unit": unit,
        "names": [*map(printable, curves)],
        "x": x.tolist(),
        "y": [[*map(_finite, of)] for of in curves.values()],
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _thinned(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of at most `MAX_POINTS` values: of each stretch the first, the least, the greatest
    and one that is not finite, if there is any."""
    count = len(values)
    if count <= MAX_POINTS:
        return np.arange(count)
    chosen = {0, count - 1}
    for places in np.array_split(np.arange(count), MAX_POINTS // 4):
        finite = places[np.isfinite(values[places])]
        endless = places[~np.isfinite(values[places])]
        chosen.add(int(places[0]))
        chosen |= {int(endless[0])} if len(endless) else set()
        if len(finite):
            chosen |= {
                int(finite[values[finite].argmin()]),
                int(finite[values[finite].argmax()]),
            }
    return np.array(sorted(chosen))
