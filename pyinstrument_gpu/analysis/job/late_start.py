# SPDX-License-Identifier: Apache-2.0
"""Which rank the others waited for at the start.

When ranks have met for the first time, the run of one that was started late is the shortest, by
each one's own clock. One that began in time and took long until then has waited least: while the
first process group was made, or between the first collective operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.job.arrivals import waited_by_hosts
from pyinstrument_gpu.analysis.job.findings import LateStart
from pyinstrument_gpu.analysis.job.joined import Joined
from pyinstrument_gpu.analysis.job.own_work import OwnWork
from pyinstrument_gpu.model.program_facts import ProgramFacts

_LEAST_NS = 1_000_000_000
_LEAST_STEPS = 5
"""And so many steps."""
_DOMINANCE = 3.0
_LONGEST_NS = 3600 * 10**9
"""From then on, clocks that run apart by 1 in 10,000 could have made a third of the least."""
_MOST_MEETINGS = 20
_MOST_OPERATIONS = 1000


def late_start(joined: Joined, work: OwnWork | str) -> LateStart | None:
    """None if no rank was late by far, or if it is not known how the ranks began."""
    if len(joined.ranks) < 2 or isinstance(work, str):
        return None
    typical_ns = float(np.median(joined.period_ns))
    least_ns = max(_LEAST_NS, _LEAST_STEPS * typical_ns)
    began = _latest(_begins_ns(joined, work))
    if began is not None and began[1] > least_ns:
        return LateStart(joined.ranks[began[0]].rank, began[1], True)
    for waits_ns in (_rendezvous_ns(joined), _waits_ns(joined)):
        arrived = _latest(waits_ns)
        if arrived is not None and arrived[1] > least_ns:
            return LateStart(joined.ranks[arrived[0]].rank, arrived[1], False)
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
    """By rank the time from the begin of its run until ranks met in their first steps."""
    steps = work.steps[:_MOST_MEETINGS]
    rows = [joined.paths[row] for row in np.flatnonzero(work.waits[:-2])]
    for path in rows:
        moments_ns = []
        for number, rank in enumerate(joined.ranks):
            if path not in rank.paths:
                break
            places = joined.places[number, steps]
            moments_ns.append(rank.last_end_ns[rank.paths.index(path), places])
        if len(moments_ns) == len(joined.ranks):
            table_ns = np.array(moments_ns)
            has_all = (table_ns >= 0).all(axis=0)
            if has_all.any() and int(table_ns[:, has_all].max()) < _LONGEST_NS:
                found: NDArray[np.float64] = np.median(table_ns[:, has_all], axis=1)
                return found
    return None


def _rendezvous_ns(joined: Joined) -> NDArray[np.float64] | None:
    """By rank what it waited while the first process group was made."""
    waits_ns = [ProgramFacts.of(rank.environment).rendezvous_ns for rank in joined.ranks]
    return None if None in waits_ns else np.array(waits_ns, np.float64)


def _waits_ns(joined: Joined) -> NDArray[np.float64] | None:
    """By rank what it waited between collective operations before the first common step."""
    created_ns = []
    for number, rank in enumerate(joined.ranks):
        events = waited_by_hosts(rank)
        before = events["created_ns"] < rank.step_begin_ns[joined.places[number, 0]]
        events = events[before][:_MOST_OPERATIONS]
        if rank.collectives.missed or len(events) < 2:
            return None
        created_ns.append(events)
    keys = [
        {(int(event["group"]), int(event["sequence"])) for event in events} for events in created_ns
    ]
    common = set.intersection(*keys)
    if len(common) < 2:
        return None
    times_ns = np.array(
        [
            [
                int(event["created_ns"])
                for event in events
                if (int(event["group"]), int(event["sequence"])) in common
            ]
            for events in created_ns
        ]
    )
    gaps_ns = np.diff(times_ns, axis=1)
    waits: NDArray[np.float64] = (gaps_ns - gaps_ns.min(axis=0)).sum(axis=1).astype(np.float64)
    return waits
