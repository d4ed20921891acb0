# SPDX-License-Identifier: Apache-2.0
"""The change of the peak of memory between two sides of runs.

The peaks of runs of one program differ a little. So a difference is one only where each run of one
side had more than every run of the other, and certain where that is rarely so by chance (the rank
test of Mann and Whitney).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.core.run import Run

_LEAST_CHANGE = 0.01
"""Of the peak: what is worth a word."""
_BY_CHANCE = 0.05


@dataclass(frozen=True)
class MemoryChange:
    """The most memory that was in use.

    Attributes:
        is_of_process: whether it is the resident memory of the process, and not that of a GPU.
        before_bytes, after_bytes: the peak of each run.
    """

    is_of_process: bool
    before_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]

    @property
    def differs(self) -> bool:
        """True if each run of one side had more than all runs of the other."""
        before, after = self.before_bytes, self.after_bytes
        apart = max(min(after) - max(before), min(before) - max(after))
        return apart > _LEAST_CHANGE * statistics.median(before)

    @property
    def is_significant(self) -> bool:
        """True if it differs in so many runs that this is no chance."""
        count = len(self.before_bytes)
        orders = math.comb(count + len(self.after_bytes), count)
        return self.differs and _BY_CHANCE * orders >= 2


def memory_change(before: Sequence[Run], after: Sequence[Run]) -> MemoryChange | None:
    """Return the change; None where peaks are not known of all runs, or are of different things."""
    sides: list[list[Any]] = [[run.memory for run in runs] for runs in (before, after)]
    every = [one for side in sides for one in side]
    if any(one is None or one.peak_bytes is None for one in every):
        return None
    if len({one.device is None for one in every}) != 1:
        return None
    peaks = [tuple(one.peak_bytes for one in side) for side in sides]
    return MemoryChange(every[0].device is None, peaks[0], peaks[1])
