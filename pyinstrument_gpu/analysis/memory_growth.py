# SPDX-License-Identifier: Apache-2.0
"""Whether the memory that a program uses grows from step to step, and which phase leaves it behind.

It grows where the slope of memory over steps is above zero with certainty, over the whole run and
over its later half: what a program allocates while it warms up, and keeps, is no growth. That takes
twenty steps which were read.

The memory that is in use does not say who allocated it. So a phase is named only if what it alone
leaves behind per step is as much as all grows by, and that of no other phase is. Where one phase
allocates what another frees, such as forward and backward, this can't be told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.theil_sen import Slope, theil_sen
from pyinstrument_gpu.model.memory import MedianBytes, Memory

FEWEST_POINTS = 20
OUTSIDE = ""
"""Stands for a step's own code, outside all phases."""


@dataclass(frozen=True)
class MemoryGrowth:
    """Bytes per step, and the phase that leaves them behind: a path, `OUTSIDE`, or None if that is
    not known."""

    per_step: Slope
    path: str | None


def memory_growth(memory: Memory) -> MemoryGrowth | None:
    """How memory grows; None if it does not, or if that can't be told."""
    points = memory.points
    if len(points) < FEWEST_POINTS:
        return None
    whole, later = _slope(points), _slope(points[len(points) // 2 :])
    if whole is None or later is None or whole.low <= 0 or later.low <= 0:
        return None
    return MemoryGrowth(whole, _culprit(memory, whole))


def _slope(points: NDArray[np.void]) -> Slope | None:
    steps, allocated = points["step"], points["allocated_bytes"]
    return theil_sen(steps.astype(np.float64), allocated.astype(np.float64))


def _culprit(memory: Memory, slope: Slope) -> str | None:
    left = {path: phase.own_left_bytes for path, phase in memory.phases.items()}
    left[OUTSIDE] = memory.outside_left_bytes
    found = [path for path, each in left.items() if each is not None and _explains(each, slope)]
    return found[0] if len(found) == 1 else None


def _explains(left: MedianBytes, slope: Slope) -> bool:
    return left.low > 0 and left.low <= slope.high and slope.low <= left.high
