# SPDX-License-Identifier: Apache-2.0
"""A GPU's use in a run: its readings, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.gpu_readings import device_and_quantity
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name


@dataclass(frozen=True, eq=False)
class GpuReadings:
    """The readings of one GPU. Each stands for the time since the one before, the first for none.

    Attributes:
        device: number of the device in the process.
        time_ns: when they were, since the run began, ascending.
        in_steps_ns: of the time that each stands for, the part in which steps ran.
        values: each quantity of `core/gpu_readings.py` that was ever known; NaN unknown.
    """

    device: int
    time_ns: NDArray[np.int64]
    in_steps_ns: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]

    def of(self, quantity: str) -> NDArray[np.float64]:
        """The values of a quantity; NaN unknown."""
        return self.values.get(quantity, np.full(len(self.time_ns), np.nan))

    def mean(self, quantity: str, where: NDArray[np.bool_] | None = None) -> float | None:
        """The mean while steps ran, of some readings or all; None if none is known."""
        values = self.of(quantity)
        weights = np.where(np.isnan(values), 0, self.in_steps_ns)
        if where is not None:
            weights = np.where(where, weights, 0)
        total = weights.sum()
        return float(np.nansum(values * weights) / total) if total else None

    def greatest(self, quantity: str) -> float | None:
        """The greatest value of all; None if none is known."""
        values = self.of(quantity)
        return None if np.isnan(values).all() else float(np.nanmax(values))


def gpu_readings(run: Run) -> tuple[GpuReadings, ...]:
    """Return the readings of each GPU that was read."""
    found: dict[int, dict[str, NDArray[np.void]]] = {}
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        known = device_and_quantity(name)
        if known is not None:
            found.setdefault(known[0], {})[known[1]] = readings
    return tuple(_side_by_side(run, device, found[device]) for device in sorted(found))


def _side_by_side(run: Run, device: int, found: Mapping[str, NDArray[np.void]]) -> GpuReadings:
    """Put the readings of a GPU side by side: all of one reading have the same time."""
    time_ns = np.unique(np.concatenate([readings["host_ns"] for readings in found.values()]))
    values = {quantity: np.full(len(time_ns), np.nan) for quantity in found}
    for quantity, readings in found.items():
        values[quantity][np.searchsorted(time_ns, readings["host_ns"])] = readings["value"]
    steps = run.steps.closed
    edges_ns = np.column_stack([steps["begin_ns"], steps["end_ns"]]).ravel()
    # How long steps have run at each of these edges.
    ran_ns = np.cumsum(np.diff(edges_ns, prepend=edges_ns[:1]) * (np.arange(len(edges_ns)) % 2))
    in_steps_ns = np.zeros(len(time_ns))
    if len(edges_ns):
        in_steps_ns[1:] = np.diff(np.interp(time_ns, edges_ns, ran_ns))
    return GpuReadings(device, time_ns, in_steps_ns, values)
