# SPDX-License-Identifier: Apache-2.0
"""What each rank does itself, and what it waits for others.

The time of a step is the same on all ranks that wait for each other in it. Where they wait is known
from the records of their collective operations. Without these it is found in the times: what a rank
has lost before such a phase it has gained back at its end, by its own clock. Where the operations
run on a device, their durations tell how long a rank's kernels waited for those of the others.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.arrivals import arrivals
from pyinstrument_gpu.job.device_waits import (
    DeviceWaits,
    device_waits,
    usual_stream_ns,
)
from pyinstrument_gpu.job.joined import Joined
from pyinstrument_gpu.job.matched import MatchedGroup

_GAINED = 0.5
"""By the end of a phase in which ranks wait, they are at most so far apart as at its begin."""
MIN_STEPS = 20


class HowKnown(enum.Enum):
    """How it is known what ranks wait for each other."""

    ARRIVALS = enum.auto()
    """By when each asked for the collective operations for which its host waits."""
    DURATIONS = enum.auto()
    """By the durations of collective operations on streams."""
    MEETINGS = enum.auto()
    """Phases in which they wait were found in the times; what they work in these is not known."""


@dataclass(frozen=True, eq=False)
class OwnWork:
    """The time of ranks that meet in each step, taken apart.

    Attributes:
        how: from what it is known.
        steps: places of the steps in `Joined.steps` of which it is.
        total_ns: by rank and step all own work, without waits for other ranks.
        own_ns: by path, rank and step. By MEETINGS, of a phase in which ranks wait, what the
            quickest rank spends; by DURATIONS, the host's time, with its waits.
        waits: for each path whether ranks wait in it, as far as that is known.
        waiting_ns: by path, rank and step; None by DURATIONS.
        rest_ns: by path, rank and step, what comes after the last request; None but by ARRIVALS.
        usual_ns: by path and rank the means of the stream time without waits for other ranks; None
            but by DURATIONS, and where the device was not timed.
    """

    how: HowKnown
    steps: NDArray[np.intp]
    total_ns: NDArray[np.float64]
    own_ns: NDArray[np.float64]
    waits: NDArray[np.bool_]
    waiting_ns: NDArray[np.float64] | None = None
    rest_ns: NDArray[np.float64] | None = None
    usual_ns: NDArray[np.float64] | None = None

    def is_known(self, row: int) -> bool:
        """Whether the own work of a phase is known."""
        return self.how == HowKnown.ARRIVALS or (
            self.how == HowKnown.MEETINGS and not self.waits[row]
        )


def own_work(joined: Joined, groups: Sequence[MatchedGroup]) -> OwnWork | str:
    """What each rank does itself, or why that is not known, in a sentence."""
    if len(joined.ranks) < 2:
        if joined.left_out:
            return "no two ranks have the steps that are to be compared"
        return f"there is the run of {'one rank alone' if joined.ranks else 'no rank'}"
    if len(joined.steps) < MIN_STEPS:
        return (
            f"{len(joined.steps)} steps are there of all ranks, besides the first; {MIN_STEPS} are "
            "needed"
        )
    if any(group.group.is_on_stream for group in groups):
        waits = device_waits(joined, groups)
        return _by_meetings(joined) if waits is None else _by_durations(joined, waits)
    rest_ns = arrivals(joined)
    if rest_ns is not None:
        steps = np.flatnonzero(~np.isnan(rest_ns).any(axis=(0, 1)))
        if len(steps) >= MIN_STEPS:
            return _by_arrivals(joined, steps, rest_ns[:, :, steps])
    return _by_meetings(joined)


def _by_arrivals(joined: Joined, steps: NDArray[np.intp], rest_ns: NDArray[np.float64]) -> OwnWork:
    own_ns = joined.self_ns[:, :, steps] - rest_ns
    return OwnWork(
        how=HowKnown.ARRIVALS,
        steps=steps,
        total_ns=own_ns.sum(axis=0),
        own_ns=own_ns,
        # What moving the data takes is the same for all: at most what it took the last.
        waiting_ns=rest_ns - rest_ns.min(axis=1, keepdims=True),
        rest_ns=rest_ns,
        waits=np.logical_or.reduce(rest_ns > 0, (1, 2)),
    )


def _by_durations(joined: Joined, found: DeviceWaits) -> OwnWork:
    period_ns = joined.period_ns[:, found.steps]
    return OwnWork(
        how=HowKnown.DURATIONS,
        steps=found.steps,
        total_ns=np.median(period_ns, axis=0) - found.waits_ns,
        own_ns=joined.self_ns[:, :, found.steps],
        usual_ns=usual_stream_ns(joined, found),
        waits=found.paths,
    )


def _by_meetings(joined: Joined) -> OwnWork | str:
    waits = _meetings(joined)
    if not waits.any():
        return "no phase was found in which the ranks wait for each other"
    own_ns = joined.self_ns.copy()
    own_ns[waits] = joined.self_ns[waits].min(axis=1, keepdims=True)
    return OwnWork(
        how=HowKnown.MEETINGS,
        steps=np.arange(len(joined.steps)),
        total_ns=own_ns.sum(axis=0),
        own_ns=own_ns,
        waiting_ns=joined.self_ns - own_ns,
        waits=waits,
    )


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
    moments_ns = joined.of_phase(moment, path)
    changes_ns = np.diff(moments_ns[:, (moments_ns >= 0).all(axis=0)], axis=1)
    if changes_ns.shape[1] < MIN_STEPS - 1:
        return 0.0
    return float(np.median(np.abs(changes_ns - np.median(changes_ns, axis=0))))
