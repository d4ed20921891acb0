# SPDX-License-Identifier: Apache-2.0
"""Energy that GPUs have used during a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ENERGY_DTYPE = np.dtype([("time_ns", np.int64), ("energy_mj", np.int64)])
"""A reading of a counter: when it was, since the run began, and millijoules since some time."""


@dataclass(frozen=True)
class GpuEnergy:
    """The readings of one GPU's energy counter.

    Attributes:
        device: Number of the device in the process.
        uuid: The GPU's UUID.
        samples: In the columns of `ENERGY_DTYPE`, ascending.
    """

    device: int
    uuid: str
    samples: NDArray[np.void] = field(default_factory=lambda: np.empty(0, ENERGY_DTYPE))

    @property
    def joules(self) -> float | None:
        """What the whole GPU used between the first reading and the last, by whomever."""
        if len(self.samples) < 2:
            return None
        energy = self.samples["energy_mj"]
        return float(energy[-1] - energy[0]) / 1e3

    @property
    def seconds(self) -> float:
        """The time between these two."""
        time_ns = self.samples["time_ns"]
        return float(time_ns[-1] - time_ns[0]) / 1e9 if len(time_ns) else 0.0

    def joules_until(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The counter at some times, in joules, linear between two readings; NaN before the first
        and after the last."""
        known_ns, energy_mj = self.samples["time_ns"], self.samples["energy_mj"]
        if not len(known_ns):
            return np.full(len(times_ns), np.nan)
        joules = (energy_mj - energy_mj[0]) / 1e3
        found: NDArray[np.float64] = np.interp(
            times_ns, known_ns, joules, left=np.nan, right=np.nan
        )
        return found
