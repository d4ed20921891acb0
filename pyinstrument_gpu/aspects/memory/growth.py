# SPDX-License-Identifier: Apache-2.0
"""Growth of memory from step to step, and the phase that leaves it behind.

It grows where the slope of memory over steps is above zero with certainty, and memory keeps rising
at that rate: from each fifth of the steps that were read to the next, the median rises by at least
half of what the slope says. So what a program allocates while it warms up and keeps is no growth,
nor is a cache that fills more and more slowly, nor a garbage collector's saw, nor the few jumps of
a fluctuating demand. That takes twenty steps which were read.

The memory that is in use does not say who allocated it. So a phase is named only if what it alone
leaves behind per step is as much as all grows by, and that of no other phase is. Where one phase
allocates what another frees, such as forward and backward, this is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pyinstrument_gpu.analysis.inference import Slope, theil_sen
from pyinstrument_gpu.aspects.memory.data import MedianBytes, Memory

FEWEST_POINTS = 20
_PARTS = 5
_OUTSIDE = ""
"""Stands for a step's own code, outside all phases."""


@dataclass(frozen=True)
class MemoryGrowth:
    """The growth of memory from step to step.

    Attributes:
        step_bytes: bytes per step.
        low_bytes, high_bytes: a 99 % interval of that.
        path: the phase that leaves it behind, if that can be told.
        is_outside_phases: whether steps leave it behind outside all phases.
    """

    step_bytes: float
    low_bytes: float
    high_bytes: float
    path: str | None
    is_outside_phases: bool


def memory_growth(memory: Memory) -> MemoryGrowth | None:
    """Return how memory grows; None if it does not, or if that is unknown."""
    points = memory.points
    if len(points) < FEWEST_POINTS:
        return None
    steps = points["step"].astype(np.float64)
    allocated = points["allocated_bytes"].astype(np.float64)
    slope = theil_sen(steps, allocated)
    if slope is None or slope.low <= 0:
        return None
    medians = [
        (np.median(steps[part]), np.median(allocated[part]))
        for part in np.array_split(np.arange(len(points)), _PARTS)
    ]
    for (step, before), (later_step, after) in pairwise(medians):
        if after - before < slope.slope * (later_step - step) / 2:
            return None
    path = _culprit(memory, slope)
    return MemoryGrowth(slope.slope, slope.low, slope.high, path or None, path == _OUTSIDE)


def _culprit(memory: Memory, slope: Slope) -> str | None:
    left = {path: phase.own_left_bytes for path, phase in memory.phases.items()}
    left[_OUTSIDE] = memory.outside_left_bytes
    found = [path for path, each in left.items() if each is not None and _explains(each, slope)]
    return found[0] if len(found) == 1 else None


def _explains(left: MedianBytes, slope: Slope) -> bool:
    return left.low > 0 and left.low <= slope.high and slope.low <= left.high
