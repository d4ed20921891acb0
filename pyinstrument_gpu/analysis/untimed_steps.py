# SPDX-License-Identifier: Apache-2.0
"""Steps that were not timed on the device, so that they can't be played again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.change import Change
from pyinstrument_gpu.analysis.intervals import covered_before
from pyinstrument_gpu.analysis.replayed_steps import ReplayedSteps
from pyinstrument_gpu.analysis.taken_out import TakenOut

_FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class UntimedSteps:
    """The steps that are not played again: those that were not timed on the device.

    Attributes:
        taken_ns: what is taken out of the steps that are played again.
        usual_ns: what is taken out of the others, of each no more than of any of the former.
        sure_ns: what is taken out of the others beyond that, and saved in any case.
        excess_ns: what is taken out of the others beyond both.
        error: the standard error of the share that is saved of what is taken out.
    """

    taken_ns: int
    usual_ns: int
    sure_ns: int
    excess_ns: int
    error: float

    def added(self, sum_ns: float, errors: float, excess_share: float) -> float:
        """What is saved in all steps, if so much is saved in those that are played again: of the
        usual the same share, give or take so many errors, and of the excess this one."""
        ratio = sum_ns / max(1, self.taken_ns)
        if errors and self.usual_ns:
            ratio += errors * self.error
        usual_ns = self.usual_ns * min(max(ratio, 0.0), 1.0)
        return sum_ns + usual_ns + self.sure_ns + self.excess_ns * excess_share


def untimed_steps(
    replayed: ReplayedSteps, taken: TakenOut, gains_ns: NDArray[np.int64]
) -> UntimedSteps:
    """What is taken out of them, and how well the steps that are played again, which gain so much,
    show it."""
    steps = replayed.steps
    edges_ns = np.append(steps["begin_ns"], [int(steps["end_ns"][-1]), _FOREVER_NS])
    taken_ns = np.diff(covered_before(taken.begins_ns, taken.ends_ns, edges_ns))
    # What comes after the last step is played in none.
    is_known = np.append(replayed.are_replayed, False)
    known_ns, other_ns = taken_ns[is_known], taken_ns[~is_known]
    usual_ns = np.minimum(other_ns, known_ns.max())
    # A wait for data beyond any that was played again leaves the device idle as soon as it has
    # done what it was behind by; a wait for the device may be anything.
    behind_ns = int((replayed.points.device_ns - replayed.points.host_ns).max())
    sure_ns = np.maximum(other_ns - usual_ns - behind_ns, 0)
    sure = int(sure_ns.sum()) if taken.change == Change.DATA_WAIT else 0
    sum_ns = int(known_ns.sum())
    error = math.inf
    if sum_ns and len(known_ns) > 1:
        off_ns = gains_ns - gains_ns.sum() / sum_ns * known_ns
        variance = float((off_ns.astype(np.float64) ** 2).sum()) * len(off_ns)
        error = math.sqrt(variance / (len(off_ns) - 1)) / sum_ns
    excess = int((other_ns - usual_ns).sum())
    return UntimedSteps(sum_ns, int(usual_ns.sum()), sure, excess - sure, error)
