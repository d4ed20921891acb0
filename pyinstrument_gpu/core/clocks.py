# SPDX-License-Identifier: Apache-2.0
"""The clocks of a machine and of its devices, beside the clock of the run.

Points tie a device's clock to the run's time axis. Between two of them a time is interpolated,
beyond them it goes on with the slope of the nearest two; docs/device-time.md says how well that
holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields

SAME_BOOT_NS = 10 * 10**9
"""Readings of one machine agree on its start within this: its wall clock may have been set."""

LATEST_START_NS = 1 << 62
"""No run begins that late (in 2116); with any time of a run added, it stays within 64 bits."""

ASSUMED_DRIFT = 200e-6
"""What a clock of which only one point is known may be off by, per time: twice what is usual."""


@dataclass(frozen=True, eq=False)
class DeviceClock(ArrayFields):
    """The points of one device, at least one, ascending by both clocks.

    Attributes:
        device: the device's ordinal.
        device_ns: the device's clock at each point.
        run_ns: the run's clock at each point, in ns since the run began.
        uncertainties_ns: by how much each `run_ns` may be off.
    """

    device: int
    device_ns: NDArray[np.int64]
    run_ns: NDArray[np.int64]
    uncertainties_ns: NDArray[np.int64]

    @classmethod
    def same_as_run(cls, device: int) -> DeviceClock:
        """The clock of a device that shares the run's own, for runs made by hand."""
        both_ns = np.array([0, 1], dtype=np.int64)
        return cls(device, both_ns, both_ns, np.zeros(2, np.int64))

    @property
    def uncertainty_ns(self) -> int:
        """The largest uncertainty of the points."""
        return int(self.uncertainties_ns.max())

    @property
    def drift_ppm(self) -> float | None:
        """The gain of the run's clock over the device's between first and last point, or None."""
        if len(self.device_ns) < 2:
            return None
        device_ns = int(self.device_ns[-1] - self.device_ns[0])
        return (int(self.run_ns[-1] - self.run_ns[0]) - device_ns) / device_ns * 1e6

    def on_run_axis(self, device_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the device's clock on the run's axis.

        Ascending times stay so, and equal ones equal: what nests on a stream nests on the axis.

        Returns:
            int64, shape as `device_ns`; -1 for what would lie before the run's begin or above 2^62.
        """
        before = self._before(device_ns)
        since_ns = device_ns - self.device_ns[before]
        # The drift alone is a float: it is small, and so exact.
        drift_ns = since_ns * self._drifts()[before]
        steady_ns = self.run_ns[before] + since_ns
        possible = (steady_ns + drift_ns >= -0.5) & (steady_ns + drift_ns < 2.0**62)
        exact_ns = steady_ns + np.rint(np.where(possible, drift_ns, 0)).astype(np.int64)
        return np.where(possible & (exact_ns >= 0), exact_ns, -1)

    def uncertainty_at_ns(self, device_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return by how much `on_run_axis` of these times may be off, if the drift was steady
        between points. Beyond the points it grows with the distance."""
        if len(self.device_ns) == 1:
            beyond_ns = np.abs(device_ns - self.device_ns[0])
            assumed_ns: NDArray[np.float64] = ASSUMED_DRIFT * beyond_ns + self.uncertainties_ns[0]
            return assumed_ns
        before = self._before(device_ns)
        first_ns = self.device_ns[before]
        share = (device_ns - first_ns) / (self.device_ns[before + 1] - first_ns)
        beyond = np.maximum(0.0, np.maximum(-share, share - 1))
        here_ns, there_ns = self.uncertainties_ns[before], self.uncertainties_ns[before + 1]
        uncertainty_ns: NDArray[np.float64] = (
            here_ns + np.clip(share, 0, 1) * (there_ns - here_ns) + beyond * (here_ns + there_ns)
        )
        return uncertainty_ns

    def _before(self, device_ns: NDArray[np.int64]) -> NDArray[np.intp]:
        """The first of the two points that speak for each time."""
        before = np.searchsorted(self.device_ns, device_ns, side="right") - 1
        return np.clip(before, 0, max(0, len(self.device_ns) - 2))

    def _drifts(self) -> NDArray[np.float64]:
        """Return from each point to the next by how much the run's clock gained on the device's."""
        device_ns, run_ns = np.diff(self.device_ns), np.diff(self.run_ns)
        drifts: NDArray[np.float64] = (run_ns - device_ns) / device_ns
        return drifts if len(drifts) else np.zeros(1)


def began_ns(anchor: Mapping[str, int], clock: str) -> int | None:
    """Return when the run began by a clock of its machine; None where the reading lacks one.

    Args:
        anchor: a reading, as in `Run.anchor`.
        clock: "monotonic_ns" or "realtime_ns".
    """
    if not {clock, "run_ns"} <= anchor.keys():
        return None
    return anchor[clock] - anchor["run_ns"]


def booted_ns(anchor: Mapping[str, int]) -> int | None:
    """Return when the machine was started, by its wall clock: where its monotonic clock was zero.
    None where the reading lacks one of the two."""
    if not {"monotonic_ns", "realtime_ns"} <= anchor.keys():
        return None
    return anchor["realtime_ns"] - anchor["monotonic_ns"]
