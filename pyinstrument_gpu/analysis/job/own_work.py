# SPDX-License-Identifier: Apache-2.0
"""What each rank does itself, and what it waits for others.

The time of a step is the same on all ranks that wait for each other in it. Where they wait is known
from the records of their collective operations. Without these it is found in the times: what a rank
has lost before such a phase it has gained back at its end, by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.job.arrivals import arrivals
from pyinstrument_gpu.analysis.job.joined import Joined

_GAINED = 0.5
"""By the end of a phase in which ranks wait, they are at most so far apart as at its begin."""
MIN_STEPS = 20


@dataclass(frozen=True, eq=False)
class OwnWork:
    """The time of ranks that meet in each step, taken apart.

    Attributes:
        steps: places of the steps in `Joined.steps` of which this is known.
        own_ns: by path, rank and step, without waits for other ranks. Of a phase in which they wait
            and that could not be split, what the quickest rank spends.
        waiting_ns: by path, rank and step.
        is_by_arrivals: whether phases in which ranks wait were split at their last request.
        waits: for each path whether they wait in it.
    """

    steps: NDArray[np.intp]
    own_ns: NDArray[np.float64]
    waiting_ns: NDArray[np.float64]
    is_by_arrivals: bool
    waits: NDArray[np.bool_]

    @property
    def total_ns(self) -> NDArray[np.float64]:
        """By rank and step all of its own work."""
        total: NDArray[np.float64] = self.own_ns.sum(axis=0)
        return total


def own_work(joined: Joined) -> OwnWork | str:
    """What each rank does itself, or why that is not known, in a sentence."""
    if len(joined.ranks) < 2:
        return f"there is {'one' if joined.ranks else 'no'} rank with steps"
    if len(joined.steps) < MIN_STEPS:
        return (
            f"{len(joined.steps)} steps are there of all ranks, besides the first; {MIN_STEPS} are "
            "needed"
        )
    found = arrivals(joined)
    if found is not None and np.count_nonzero(found.known) >= MIN_STEPS:
        steps = np.flatnonzero(found.known)
        rest_ns = found.rest_ns[:, :, steps]
        waiting_ns = rest_ns - rest_ns.min(axis=1, keepdims=True)
        own_ns = joined.self_ns[:, :, steps] - rest_ns
        return OwnWork(steps, own_ns, waiting_ns, True, found.paths)
    waits = _meetings(joined)
    if not waits.any():
        return "no phase was found in which the ranks wait for each other"
    own_ns = joined.self_ns.copy()
    own_ns[waits] = joined.self_ns[waits].min(axis=1, keepdims=True)
    waiting_ns = joined.self_ns - own_ns
    return OwnWork(np.arange(len(joined.steps)), own_ns, waiting_ns, False, waits)


def _meetings(joined: Joined) -> NDArray[np.bool_]:
    """For each path whether ranks wait for each other in it, as their clocks tell."""
    apart = [
        (_apart_ns(joined, path, "first_begin_ns"), _apart_ns(joined, path, "last_end_ns"))
        for path in joined.paths[:-2]
    ]
    waits = np.array([end_ns < _GAINED * begin_ns for begin_ns, end_ns in apart], dtype=bool)
    for inner, path in enumerate(joined.paths[:-2]):
        around = [path.startswith(f"{other}/") for other in joined.paths[:-2]]
        if waits[inner]:
            waits &= ~np.array(around, dtype=bool)
    return np.append(waits, [False, False])


def _apart_ns(joined: Joined, path: str, moment: str) -> float:
    """How far apart the ranks are at a moment of each step, beyond what they always are: the median
    of how much that changes from step to step."""
    moments_ns = np.full((len(joined.ranks), len(joined.steps)), np.nan)
    for number, rank in enumerate(joined.ranks):
        if path in rank.paths:
            found = getattr(rank, moment)[rank.paths.index(path), joined.places[number]]
            moments_ns[number] = np.where(found >= 0, found, np.nan)
    changes_ns = np.diff(moments_ns[:, ~np.isnan(moments_ns).any(axis=0)], axis=1)
    if changes_ns.shape[1] < MIN_STEPS - 1:
        return 0.0
    return float(np.median(np.abs(changes_ns - np.median(changes_ns, axis=0))))
