# SPDX-License-Identifier: Apache-2.0
"""The steps of a run that a profiler has slowed, which other numbers leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.aspect import Aspect


class ProfiledSteps(NamedTuple):
    """Which steps were profiled, as pairs of the first and the last index."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, aspects: Iterable[Aspect], run: Mapping[str, Any]) -> ProfiledSteps:
        """Those of a run with these arguments."""
        return cls(tuple(steps for aspect in aspects for steps in aspect.profiled_steps(run)))

    def among(self, steps: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """For each of these indices of steps whether that step was profiled."""
        profiled = np.zeros(len(steps), dtype=bool)
        for first, last in self.ranges:
            profiled |= (steps >= first) & (steps <= last)
        return profiled

    def joined_by(self, steps: NDArray[np.int64]) -> ProfiledSteps:
        """The same together with these steps, which ascend by index."""
        lacking = steps[~self.among(steps)]
        begins = np.flatnonzero(np.diff(lacking, prepend=-2) != 1)
        rows = [(int(row[0]), int(row[-1])) for row in np.split(lacking, begins[1:]) if len(row)]
        return ProfiledSteps((*self.ranges, *rows))
