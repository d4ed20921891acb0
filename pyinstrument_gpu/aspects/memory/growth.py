# SPDX-License-Identifier: Apache-2.0
"""Growth of memory from step to step, and the phase that leaves it behind.

It grows where the slope of memory over steps is above zero with certainty, and memory keeps rising
at that rate: from each fifth of the steps that were read to the next, the median rises by at least
half of what the slope says. So what a program allocates while it warms up and keeps is no growth,
nor is a cache that fills more and more slowly, nor a garbage collector's saw, nor the few jumps of
a fluctuating demand. That takes twenty steps which were read.

In a run of seconds there are fewer. Then only a growth is one that is large, by a fifth and 100 MiB
after the first tenth of the run, and as steady as few readings can show: from each to the next
memory rises at half to twice the rate of all.

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
_FEWEST_OF_FEW = 4
_BEGIN_SHARE = 0.1
"""Of the run, in which a program makes what it keeps."""
_LARGE_BYTES = 100 << 20
_LARGE_SHARE = 0.2
_STEADY = 2.0
_PARTS = 5
_OUTSIDE = ""
"""Stands for a step's own code, outside all phases."""


@dataclass(frozen=True)
class MemoryGrowth:
    """The growth of memory from step to step.

    Attributes:
        step_bytes: bytes per step.
        low_bytes, high_bytes: a 99 % interval of that.
        is_of_few: the interval is instead that of the rates from each of a few readings to the
            next.
        path: the phase that leaves it behind, if that can be told.
        is_outside_phases: whether steps leave it behind outside all phases.
    """

    step_bytes: float
    low_bytes: float
    high_bytes: float
    path: str | None
    is_outside_phases: bool
    is_of_few: bool = False


def memory_growth(memory: Memory) -> MemoryGrowth | None:
    """Return how memory grows; None if it does not, or if that is unknown."""
    points = memory.points
    if len(points) < FEWEST_POINTS:
        return _large_growth(memory)
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
    return _growth(memory, slope, is_of_few=False)


def _growth(memory: Memory, slope: Slope, *, is_of_few: bool) -> MemoryGrowth:
    path = _culprit(memory, slope)
    is_outside = path == _OUTSIDE
    return MemoryGrowth(slope.slope, slope.low, slope.high, path or None, is_outside, is_of_few)


def _large_growth(memory: Memory) -> MemoryGrowth | None:
    """Return a growth that few readings show."""
    steps = memory.points["step"].astype(np.float64)
    later = steps >= _BEGIN_SHARE * steps.max(initial=0.0)
    steps, allocated = steps[later], memory.points["allocated_bytes"][later].astype(np.float64)
    if len(steps) < _FEWEST_OF_FEW:
        return None
    grown_bytes = float(allocated[-1] - allocated[0])
    if grown_bytes < max(_LARGE_BYTES, _LARGE_SHARE * float(allocated[0])):
        return None
    rates = np.diff(allocated) / np.diff(steps)
    slope = Slope(grown_bytes / (steps[-1] - steps[0]), float(rates.min()), float(rates.max()))
    if slope.low < slope.slope / _STEADY or slope.high > slope.slope * _STEADY:
        return None
    return _growth(memory, slope, is_of_few=True)


def _culprit(memory: Memory, slope: Slope) -> str | None:
    left = {path: phase.own_left_bytes for path, phase in memory.phases.items()}
    left[_OUTSIDE] = memory.outside_left_bytes
    found = [path for path, each in left.items() if each is not None and _explains(each, slope)]
    return found[0] if len(found) == 1 else None


def _explains(left: MedianBytes, slope: Slope) -> bool:
    return left.low > 0 and left.low <= slope.high and slope.low <= left.high
