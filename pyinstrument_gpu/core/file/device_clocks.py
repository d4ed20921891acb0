# SPDX-License-Identifier: Apache-2.0
"""The clocks of the devices of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.blocks import true_prefix

TIME_LIMIT_NS = 1 << 61
"""No clock gets there; differences of two times stay within 64 bits."""


def known_clocks(items: NDArray[np.void]) -> tuple[DeviceClock, ...]:
    """The clocks that the items of a DEVICE_CLOCKS log give, up to the first impossible item."""
    possible = (
        (np.abs(items["device_ns"]) < TIME_LIMIT_NS)
        & (np.abs(items["run_ns"]) < TIME_LIMIT_NS)
        & (items["uncertainty_ns"] >= 0)
        & (items["uncertainty_ns"] < TIME_LIMIT_NS)
    )
    for device in distinct(items["device"]):
        at = np.flatnonzero(items["device"] == device)
        for clock in ("device_ns", "run_ns"):
            possible[at[1:]] &= np.diff(items[clock][at]) > 0
    items, clocks = items[: true_prefix(possible)], []
    for device in distinct(items["device"]):
        own = items[items["device"] == device]
        columns = own["device_ns"], own["run_ns"], own["uncertainty_ns"]
        clocks.append(DeviceClock(int(device), *map(np.ascontiguousarray, columns)))
    return tuple(clocks)
