# SPDX-License-Identifier: Apache-2.0
"""Metrics and memory over the steps of a run, thinned out for pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import printable

MAX_POINTS = 600
MAX_METRICS = 24


@dataclass(frozen=True)
class Curves:
    """Some values over one axis.

    Attributes:
        title: what they are.
        x_name: "step", or "update" where the steps are not known.
        unit: of the values; empty for plain numbers.
        names: of the curves.
        x: ascending.
        y: for each curve a value at each x; None where it is unknown or not finite.
        remark: what the picture does not show.
    """

    title: str
    x_name: str
    unit: str
    names: tuple[str, ...]
    x: tuple[int, ...]
    y: tuple[tuple[float | None, ...], ...]
    remark: str = ""


def metric_curves(run: Run) -> list[Curves]:
    """Each metric that was read, at most `MAX_METRICS`, over the steps of its updates."""
    found = []
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if not len(readings):
            continue
        by_step = bool((readings["step"] >= 0).all())
        x = readings["step" if by_step else "update"].astype(np.int64)
        order = np.argsort(x, kind="stable")
        x, values = x[order], readings["value"][order]
        endless = int(np.count_nonzero(~np.isfinite(values)))
        kept = _thinned(values)
        found.append(
            Curves(
                title=name,
                x_name="step" if by_step else "update",
                unit="",
                names=(name,),
                x=tuple(x[kept].tolist()),
                y=(_finite(values[kept]),),
                remark=f"{endless:,} of {len(values):,} values are not finite" if endless else "",
            )
        )
        if len(found) == MAX_METRICS:
            break
    return found


def memory_curves(run: Run) -> list[Curves]:
    """Memory at the end of the steps that were read; nothing without any."""
    if run.memory is None or not len(run.memory.points):
        return []
    points = run.memory.points
    scale = 1 << 20
    names, columns = ["allocated"], [points["allocated_bytes"] / scale]
    if run.memory.device is None:
        names = ["resident"]
    if (points["reserved_bytes"] >= 0).any():
        names.append("reserved")
        columns.append(
            np.where(points["reserved_bytes"] >= 0, points["reserved_bytes"] / scale, math.nan)
        )
    return [
        Curves(
            title="Memory at the end of steps",
            x_name="step",
            unit="MiB",
            names=tuple(names),
            x=tuple(points["step"].tolist()),
            y=tuple(map(_finite, columns)),
        )
    ]


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


def _finite(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(float(f"{value:.7g}") if math.isfinite(value) else None for value in values)


def plain_curves(curves: Curves) -> dict[str, Any]:
    """The curves as the page's script has them."""
    return {
        "x_name": curves.x_name,
        "unit": curves.unit,
        "names": [printable(name) for name in curves.names],
        "x": curves.x,
        "y": curves.y,
    }
