# SPDX-License-Identifier: Apache-2.0
"""Metrics over the steps of a run, thinned out for pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Curves, curve_data

MAX_POINTS = 600
MAX_METRICS = 24


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
        found.append(Curves(name, curve_data(axis, "", x, {name: values[kept]}), remark))
    return found


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
