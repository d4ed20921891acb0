# SPDX-License-Identifier: Apache-2.0
"""When each rank asked for the collective operations of a step, by its own clock.

Only operations for which the host itself waits: of gloo and the like. Those of NCCL are put on a
stream, and the host goes on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.data import RankData
from pyinstrument_gpu.job.joined import Joined

_MOST_UNKNOWN = 0.5


def arrivals(joined: Joined) -> NDArray[np.float64] | None:
    """By path, rank and step, what a phase took after it last asked for a collective operation:
    waiting and transfer; 0 where it did not ask, NaN in steps of which records are missing.

    None if there are no records, or too few, or the operations are not waited for by hosts.
    """
    if not all(rank.collectives.was_read for rank in joined.ranks):
        return None
    rest_ns = np.zeros(joined.self_ns.shape)
    asked = np.zeros(joined.self_ns.shape, dtype=bool)
    known = np.ones(len(joined.steps), dtype=bool)
    for number, rank in enumerate(joined.ranks):
        known &= _rests_of(rank, joined, number, rest_ns, asked)
    if not asked.any():
        return None
    # Where one rank asks and another does not, records are missing, or it is an operation of
    # some ranks alone. Of a phase in which all ask together at times, it is the former.
    together: NDArray[np.bool_] = np.logical_and.reduce(asked, 1)
    by_some: NDArray[np.bool_] = np.logical_or.reduce(asked, 1)
    is_joint: NDArray[np.bool_] = np.logical_or.reduce(together, 1, keepdims=True)
    # Outside of phases it is not known where a wait ends. If some ranks ask there and others in a
    # phase, what these work is no measure for those.
    if not is_joint.any() or (by_some[-2].any() and not is_joint[-2, 0]):
        return None
    apart = by_some & ~together & is_joint
    known &= ~np.logical_or.reduce(apart, 0)
    if np.count_nonzero(known) < _MOST_UNKNOWN * len(known):
        return None
    rest_ns[:, :, ~known] = np.nan
    return rest_ns


def _waited_by_hosts(rank: RankData) -> NDArray[np.void]:
    """The operations of a rank that have a request and for which its host waits."""
    events = rank.collectives.events
    on_host = [not group.is_on_stream for group in rank.collectives.groups]
    chosen = (events["created_ns"] >= 0) & ~events["is_p2p"]
    waited: NDArray[np.void] = events[chosen & np.array([*on_host, False])[events["group"]]]
    return waited


def phases_at(
    rank: RankData, places: NDArray[np.intp], moments_ns: NDArray[np.int64]
) -> NDArray[np.intp]:
    """The phase of a rank that is open at moments in steps, as an index into `RankData.paths`; -1
    where none is. Of nested ones it is the innermost, as far as first calls and last ends tell.

    Args:
        places: of the step of each, in `RankData.steps`.
    """
    found = np.full(len(moments_ns), -1, np.intp)
    since_ns = np.full(len(moments_ns), -1, np.int64)
    for path in range(len(rank.paths)):
        begins_ns, ends_ns = rank.first_begin_ns[path, places], rank.last_end_ns[path, places]
        inside = (begins_ns >= 0) & (begins_ns <= moments_ns) & (moments_ns <= ends_ns)
        inside &= begins_ns > since_ns
        found[inside], since_ns[inside] = path, begins_ns[inside]
    return found


def _rests_of(
    rank: RankData,
    joined: Joined,
    number: int,
    rest_ns: NDArray[np.float64],
    asked: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Fills in what is known of one rank, and says of which steps that is all there is."""
    events = _waited_by_hosts(rank)
    places = joined.places[number]
    begins_ns = rank.step_begin_ns[places]
    ends_ns = begins_ns + rank.step_ns[places]
    before_ns = begins_ns - joined.self_ns[-1, number].astype(np.int64)
    known = np.ones(len(places), dtype=bool)
    if rank.collectives.missed and len(events):
        known = before_ns >= events["created_ns"].min()
    created_ns = events["created_ns"]
    column = np.searchsorted(ends_ns, created_ns)
    inside = column < len(places)
    column, created_ns = column[inside], created_ns[inside]
    inside = created_ns >= before_ns[column]
    column, created_ns = column[inside], created_ns[inside]
    row_of = {path: row for row, path in enumerate(joined.paths)}
    rows_of = np.array([*(row_of[path] for path in rank.paths), -1], np.intp)
    rows = rows_of[phases_at(rank, places[column], created_ns)]
    rows = np.where(rows < 0, len(joined.paths) - 2, rows)
    rows = np.where(created_ns < begins_ns[column], len(joined.paths) - 1, rows)
    last_ns = np.full(rest_ns[:, number].shape, np.int64(-1))
    np.maximum.at(last_ns, (rows, column), created_ns)
    until_ns = np.zeros(last_ns.shape, np.int64)
    until_ns[rows_of[:-1]] = rank.last_end_ns[:, places]
    until_ns[-1] = begins_ns
    until_ns[-2] = _next_begins_ns(rank, places, last_ns[-2], ends_ns)
    has = last_ns >= 0
    asked[:, number] = has
    most_ns = joined.self_ns[:, number]
    rest_ns[:, number] = np.where(has, np.clip(until_ns - last_ns, 0, most_ns), 0)
    return known


def _next_begins_ns(
    rank: RankData,
    places: NDArray[np.intp],
    moments_ns: NDArray[np.int64],
    ends_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The first begin of a phase after a moment of each step, or the end of the step."""
    found: NDArray[np.int64] = ends_ns.copy()
    for begins_ns in rank.first_begin_ns:
        of_steps = begins_ns[places]
        np.minimum(found, of_steps, out=found, where=of_steps > moments_ns)
    return found
