# SPDX-License-Identifier: Apache-2.0
"""The rank that the others waited for at the start.

When ranks have met for the first time, the run of one that was started late is the shortest, by
each one's own clock. One that began in time and took long until then has waited least: while the
first process group was made, or between the first collective operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.job.findings import LateStart
from pyinstrument_gpu.job.joined import Joined, MatchedGroup
from pyinstrument_gpu.job.own_work import OwnWork

_LEAST_NS = 1_000_000_000
_LEAST_STEPS = 5
"""And so many steps."""
_DOMINANCE = 3.0
_LONGEST_NS = 3600 * 10**9
"""From then on, clocks that run apart by 1 in 10,000 could have made a third of the least."""
_MOST_MEETINGS = 20
_MOST_OPERATIONS = 1000


def late_start(
    joined: Joined, groups: Sequence[MatchedGroup], work: OwnWork | str
) -> LateStart | None:
    """Return the late start; None if no rank was late by far, or the begin is unknown."""
    if isinstance(work, str):
        return None
    typical_ns = float(np.median(joined.period_ns))
    least_ns = max(_LEAST_NS, _LEAST_STEPS * typical_ns)
    times = (
        (_begins_ns(joined, work), True),
        (_rendezvous_ns(joined), False),
        (_waits_ns(joined, groups), False),
    )
    for times_ns, began_late in times:
        latest = _latest(times_ns)
        if latest is not None and latest[1] > least_ns:
            place, lateness_ns = latest
            return LateStart(joined.ranks[place].rank, lateness_ns, began_late)
    return None


def _latest(times_ns: NDArray[np.float64] | None) -> tuple[int, float] | None:
    """The rank with the least time, and by how much, if it is far from all others."""
    if times_ns is None:
        return None
    place = int(np.argmin(times_ns))
    others_ns = np.delete(times_ns, place)
    nearest_ns = float(others_ns.min())
    spread_ns = float(np.median(others_ns)) - nearest_ns
    lateness_ns = nearest_ns - float(times_ns[place])
    return (place, lateness_ns) if lateness_ns > _DOMINANCE * spread_ns else None


def _begins_ns(joined: Joined, work: OwnWork) -> NDArray[np.float64] | None:
    """Return by rank the time from the begin of its run until ranks met in their first steps."""
    steps = work.steps[:_MOST_MEETINGS]
    for row in np.flatnonzero(work.waits[:-2]):
        moments_ns = joined.of_phase("last_end_ns", joined.paths[row])[:, steps]
        moments_ns = moments_ns[:, (moments_ns >= 0).all(axis=0)]
        if moments_ns.size and int(moments_ns.max()) < _LONGEST_NS:
            found: NDArray[np.float64] = np.median(moments_ns, axis=1)
            return found
    return None


def _rendezvous_ns(joined: Joined) -> NDArray[np.float64] | None:
    """By rank what it waited while the first process group was made."""
    waits_ns = [rank.environment.get(KEY, {}).get("rendezvous_ns") for rank in joined.ranks]
    return None if None in waits_ns else np.array(waits_ns, np.float64)


def _waits_ns(joined: Joined, groups: Sequence[MatchedGroup]) -> NDArray[np.float64] | None:
    """Return by rank what it waited between collective operations before the first common step."""
    asked_ns = [
        group.events["created_ns"]
        for group in groups
        if not group.group.is_on_stream and len(group.places) == len(joined.ranks)
    ]
    if not asked_ns or any(rank.collectives.missed for rank in joined.ranks):
        return None
    first = zip(joined.ranks, joined.places[:, 0], strict=True)
    begins_ns = np.array([[rank.step_begin_ns[place]] for rank, place in first])
    created_ns = np.concatenate(asked_ns, axis=1)
    before = ((created_ns >= 0) & (created_ns < begins_ns)).all(axis=0)
    created_ns = np.sort(created_ns[:, before], axis=1)[:, :_MOST_OPERATIONS]
    if created_ns.shape[1] < 2:
        return None
    gaps_ns = np.diff(created_ns, axis=1)
    waits: NDArray[np.float64] = (gaps_ns - gaps_ns.min(axis=0)).sum(axis=1).astype(np.float64)
    return waits
