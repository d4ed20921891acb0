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

from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.job.job import RankData
from pyinstrument_gpu.job.joined import Joined, MatchedGroup, phases_at

_MOST_UNKNOWN = 0.5
_GAINED = 0.5
"""By the end of a phase in which ranks wait, they are at most so far apart as at its begin."""
MIN_STEPS = 20


def arrivals(joined: Joined) -> NDArray[np.float64] | None:
    """By path, rank and step, what a phase took after it last asked for a collective operation:
    waiting and transfer; 0 where it did not ask, NaN in steps of which records are missing.

    Only operations count for which the host itself waits, as with gloo. Those of NCCL are put on a
    stream, and the host goes on. None if there are no records, or too few, or the operations are
    not waited for by hosts.
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


@dataclass(frozen=True, eq=False)
class DeviceWaits:
    """How long the devices of ranks wait for each other, by the durations of operations.

    The kernels of an operation are done at the same moment on all ranks, and each has lasted since
    its own rank was ready for it. So by how much the shortest duration is exceeded is what a rank
    waited. Several operations of a step overlap with computing and with each other: the waits in
    them can't be added up, and the longest of them is what the step has waited at least.

    Attributes:
        steps: places of the steps in `Joined.steps` that have such an operation.
        waits_ns: by rank and step the longest wait.
        paths: for each path whether operations are asked for in it.
    """

    steps: NDArray[np.intp]
    waits_ns: NDArray[np.float64]
    paths: NDArray[np.bool_]


def device_waits(joined: Joined, groups: Sequence[MatchedGroup]) -> DeviceWaits | None:
    """None if durations are not known of operations of all ranks together."""
    waits_ns = np.full((len(joined.ranks), len(joined.steps)), -1.0)
    paths = np.zeros(len(joined.paths), dtype=bool)
    for group in groups:
        if not group.group.is_on_stream or len(group.places) != len(joined.ranks):
            continue
        durations_ns = group.events["duration_ns"]
        column = np.minimum(np.searchsorted(joined.steps, group.steps), len(joined.steps) - 1)
        chosen = group.are_symmetric & (joined.steps[column] == group.steps)
        chosen &= np.logical_and.reduce(durations_ns >= 0, 0)
        chosen_ns, column = durations_ns[:, chosen], column[chosen]
        for of_rank_ns, longer_ns in zip(waits_ns, chosen_ns - chosen_ns.min(axis=0), strict=True):
            np.maximum.at(of_rank_ns, column, longer_ns)
        asked_in = {group.first.paths[path] for path in distinct(group.path[chosen]) if path >= 0}
        paths |= np.array([path in asked_in for path in joined.paths], dtype=bool)
    steps = np.flatnonzero(waits_ns[0] >= 0)
    if not len(steps):
        return None
    return DeviceWaits(steps, waits_ns[:, steps], paths)


def usual_stream_ns(joined: Joined, found: DeviceWaits) -> NDArray[np.float64] | None:
    """By path and rank the mean stream time in the steps that were timed, without waits for other
    ranks; 0 for phases around others, whose time is in these. None if not all ranks were timed."""
    usual_ns = np.zeros((len(joined.paths), len(joined.ranks)))
    for row, path in enumerate(joined.paths[:-2]):
        if any(other.startswith(f"{path}/") for other in joined.paths[:-2]):
            continue
        means_ns = joined.stream_means_ns(path)
        has_path = [path in rank.paths for rank in joined.ranks]
        if np.isnan(means_ns[has_path]).any():
            return None
        usual_ns[row] = np.nan_to_num(means_ns)
    waiting = np.flatnonzero(found.paths[:-2])
    if len(waiting):
        longest = waiting[np.argmax(usual_ns[waiting].sum(axis=1))]
        usual_ns[longest] = np.maximum(usual_ns[longest] - found.waits_ns.mean(axis=1), 0)
    return usual_ns if usual_ns.any() else None


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
