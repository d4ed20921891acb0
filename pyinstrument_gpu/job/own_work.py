# SPDX-License-Identifier: Apache-2.0
"""The own work of each rank, and its waits for others.

The time of a step is the same on all ranks that wait for each other in it. Where they wait is known
from the records of their collective operations. Without these it is found in the times: what a rank
has lost before such a phase it has gained back at its end, by its own clock. Where the operations
run on a device, their durations tell how long a rank's kernels waited for those of the others.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.contention import LARGE_SHARE
from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.job.job import RankData
from pyinstrument_gpu.job.joined import Joined, MatchedGroup, phases_at
from pyinstrument_gpu.job.suspects import Suspect

_MOST_UNKNOWN = 0.5
_GAINED = 0.5
"""By the end of a phase in which ranks wait, they are at most so far apart as at its begin."""
_SEEN = 0.9
"""Of the operations that are asked for, those whose waits were seen at least, if any were."""
MIN_STEPS = 20


def arrivals(joined: Joined) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """Return by path, rank and step, what a phase waited for collective and point-to-point
    operations, their transfer included, NaN in steps that lack records; and for each path whether
    there may be more waits than are known: before its last request, if nobody looked for them.

    Only operations count for which the host itself waits, as with gloo. Those of NCCL are put on a
    stream, and the host goes on. Where the waits were seen, it is their sum. Otherwise they are
    waits in C++ for operations that were asked for as the phase went on, as those of
    DistributedDataParallel: it is what the phase took after the last request. None if there are no
    records, or too few, or the operations are not waited for by hosts.
    """
    if not all(rank.collectives.was_read for rank in joined.ranks):
        return None
    records = [_Records.of(joined, number) for number in range(len(joined.ranks))]
    # What is seen on some ranks only is not seen: they are measured alike.
    is_seen: NDArray[np.bool_] = np.logical_and.reduce([one.is_seen for one in records])
    rest_ns = np.zeros(joined.self_ns.shape)
    for number, one in enumerate(records):
        rest_ns[:, number] = one.rest_ns(joined, number, is_seen)
    asked = np.stack([one.has_asked & ~is_seen[:, None] for one in records], axis=1)
    if not asked.any() and not rest_ns.any():
        return None
    known: NDArray[np.bool_] = np.logical_and.reduce([one.known(is_seen) for one in records])
    # Where one rank asks and another does not, records are missing, or it is an operation of
    # some ranks alone. Of a phase in which all ask together at times, it is the former.
    together: NDArray[np.bool_] = np.logical_and.reduce(asked, 1)
    by_some: NDArray[np.bool_] = np.logical_or.reduce(asked, 1)
    is_joint: NDArray[np.bool_] = np.logical_or.reduce(together, 1, keepdims=True)
    # Outside of phases it is not known where a wait ends. If some ranks ask there and others in a
    # phase, what these work is no measure for those.
    if asked.any() and (not is_joint.any() or (by_some[-2].any() and not is_joint[-2, 0])):
        return None
    known &= ~np.logical_or.reduce(by_some & ~together & is_joint, 0)
    if np.count_nonzero(known) < _MOST_UNKNOWN * len(known):
        return None
    rest_ns[:, :, ~known] = np.nan
    hidden: NDArray[np.bool_] = np.logical_or.reduce([one.hides for one in records])
    return rest_ns, hidden


@dataclass(frozen=True, eq=False)
class _Records:
    """The records of one rank's operations and waits.

    Attributes:
        rank: the rank.
        rows: of its paths, of the time outside of phases, and between steps.
        before_ns: by step, when the step before ended.
        asked: by path, how many operations it asked for for which its host waits, of all steps.
        has_asked: by path and step, whether it asked.
        after_ns: by path and step, what came after the last request; 0 where it did not ask.
        waited: by path, how many waits for collective operations were seen, of all steps.
    """

    rank: RankData
    rows: NDArray[np.intp]
    before_ns: NDArray[np.int64]
    asked: NDArray[np.intp]
    has_asked: NDArray[np.bool_]
    after_ns: NDArray[np.int64]
    waited: NDArray[np.int64]

    @classmethod
    def of(cls, joined: Joined, number: int) -> _Records:
        """Return the records of the rank at that place."""
        rank, places = joined.ranks[number], joined.places[number]
        shape = joined.self_ns[:, number].shape
        begins_ns = rank.step_begin_ns[places]
        created_ns = _waited_by_hosts(rank)["created_ns"]
        cells, inside = _cells(joined, number, created_ns)
        last_ns = np.full(shape, np.int64(-1))
        np.maximum.at(last_ns.reshape(-1), cells, created_ns[inside])
        rows = np.array([*map(joined.paths.index, rank.paths), shape[0] - 2, shape[0] - 1])
        until_ns = np.zeros(shape, np.int64)
        until_ns[rows[:-2]] = rank.last_end_ns[:, places]
        until_ns[-1] = begins_ns
        until_ns[-2] = _next_begins_ns(rank, places, last_ns[-2], begins_ns + rank.step_ns[places])
        waited = np.zeros(shape[0], np.int64)
        if rank.waits is not None:
            waited[rows] = rank.waits.collectives
        return cls(
            rank=rank,
            rows=rows,
            before_ns=begins_ns - joined.self_ns[-1, number].astype(np.int64),
            asked=np.bincount(cells // shape[1], minlength=shape[0]),
            has_asked=last_ns >= 0,
            after_ns=np.where(last_ns >= 0, until_ns - last_ns, 0),
            waited=waited,
        )

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """True for paths of which the waits for what is asked for in them were seen, there or, of
        all that is asked for, somewhere."""
        if self.rank.waits is None:
            return np.zeros(len(self.asked), dtype=bool)
        # Those of one phase may be waited for in another.
        fewer = self.asked - self.waited
        is_all = -fewer[fewer < 0].sum() >= _SEEN * fewer[fewer > 0].sum()
        found: NDArray[np.bool_] = is_all | (fewer <= (1 - _SEEN) * self.asked)
        return found

    @property
    def hides(self) -> NDArray[np.bool_]:
        """True for paths that may have waits before their last request that nobody looked for."""
        is_often: NDArray[np.bool_] = self.asked > self.has_asked.sum(axis=1)
        return is_often & (self.rank.waits is None)

    def known(self, is_seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each step whether all that matters of it is there."""
        collectives = self.rank.collectives
        since_ns = -1 if self.rank.waits is None else self.rank.waits.since_ns
        found: NDArray[np.bool_] = self.before_ns >= since_ns
        created_ns = _waited_by_hosts(self.rank)["created_ns"]
        if collectives.missed and len(created_ns) and not is_seen.all():
            found &= self.before_ns >= created_ns.min()
        return found

    def rest_ns(
        self, joined: Joined, number: int, is_seen: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        rest_ns = np.where(is_seen[:, None], 0, self.after_ns)
        if self.rank.waits is not None:
            waited_ns = self.rank.waits.total_ns[:, joined.places[number]]
            rest_ns[self.rows] = np.maximum(rest_ns[self.rows], waited_ns)
        found: NDArray[np.float64] = np.clip(rest_ns, 0, joined.self_ns[:, number])
        return found


def _waited_by_hosts(rank: RankData) -> NDArray[np.void]:
    """The operations of a rank that have a request and for which its host waits."""
    events = rank.collectives.events
    on_host = [not group.is_on_stream for group in rank.collectives.groups]
    chosen = (events["created_ns"] >= 0) & ~events["is_p2p"]
    waited: NDArray[np.void] = events[chosen & np.array([*on_host, False])[events["group"]]]
    return waited


def _cells(
    joined: Joined, number: int, moments_ns: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where moments of the rank at a place are, by path and step as one index, and which of
    them are in a step that is compared, or before one."""
    rank, places = joined.ranks[number], joined.places[number]
    begins_ns = rank.step_begin_ns[places]
    ends_ns = begins_ns + rank.step_ns[places]
    before_ns = begins_ns - joined.self_ns[-1, number].astype(np.int64)
    column = np.searchsorted(ends_ns, moments_ns)
    inside = np.flatnonzero(column < len(places))
    inside = inside[moments_ns[inside] >= before_ns[column[inside]]]
    column, moments_ns = column[inside], moments_ns[inside]
    rows_of = np.array([*map(joined.paths.index, rank.paths), len(joined.paths) - 2], np.intp)
    rows = rows_of[phases_at(rank, places[column], moments_ns)]
    rows = np.where(moments_ns < begins_ns[column], len(joined.paths) - 1, rows)
    return rows * len(places) + column, inside


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
    """The waits of the devices of ranks for each other, by the durations of operations.

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
    """Return the waits; None if durations are not known of operations of all ranks together."""
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


def usual_device_ns(joined: Joined, found: DeviceWaits) -> NDArray[np.float64] | None:
    """Return by path and rank the mean device time in the timed steps, without waits for other
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
    """The source of what is known of ranks' waits for each other."""

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
        hidden: for each path whether there may be waits in it that are not known; None if nowhere.
        usual_ns: by path and rank the means of the device time without waits for other ranks; None
            but by DURATIONS, and where the device was not timed.
        processor_ns: by rank and step, what waiting for a processor was taken off own work; None if
            it is not known, and by DURATIONS, as devices go on meanwhile.
        processor_share: of its time, what a step of the median rank waits for a processor, or of
            the lower one of two; None likewise.
        thread_share: where that is not known, for which share of its run the thread of a rank that
            waited longest for a processor did; None if that isn't known either.
    """

    how: HowKnown
    steps: NDArray[np.intp]
    total_ns: NDArray[np.float64]
    own_ns: NDArray[np.float64]
    waits: NDArray[np.bool_]
    waiting_ns: NDArray[np.float64] | None = None
    rest_ns: NDArray[np.float64] | None = None
    hidden: NDArray[np.bool_] | None = None
    usual_ns: NDArray[np.float64] | None = None
    processor_ns: NDArray[np.float64] | None = None
    processor_share: float | None = None
    thread_share: float | None = None

    @property
    def is_busy(self) -> bool:
        """True if ranks wait so much for processors that times say more of the machine."""
        return max(self.processor_share or 0.0, self.thread_share or 0.0) >= LARGE_SHARE

    def of(self, units: Sequence[Suspect]) -> OwnWork:
        """The work of ranks that belong together as that of one: the mean."""

        def means(values: NDArray[np.float64] | None, axis: int) -> NDArray[np.float64]:
            assert values is not None
            taken = [values.take(unit.places, axis).mean(axis) for unit in units]
            return np.stack(taken, axis)

        usual_ns = None if self.usual_ns is None else means(self.usual_ns, 1)
        return replace(
            self, total_ns=means(self.total_ns, 0), own_ns=means(self.own_ns, 1), usual_ns=usual_ns
        )

    def is_known(self, row: int) -> bool:
        """Return whether the own work of a phase is known."""
        return self.how == HowKnown.ARRIVALS or (
            self.how == HowKnown.MEETINGS and not self.waits[row]
        )


def own_work(joined: Joined, groups: Sequence[MatchedGroup]) -> OwnWork | str:
    """Return what each rank does itself, or why that is not known, in a sentence. What it waits for
    a processor is neither its work nor a wait for others. Where in a step that was is not known: it
    is taken off all that it works in proportion."""
    found = _as_timed(joined, groups)
    if isinstance(found, str) or found.how == HowKnown.DURATIONS:
        return found
    waits_ns = _processor_waits_ns(joined)
    if waits_ns is None:  # as in short steps, of which few are read
        known = (rank.thread_wait_share for rank in joined.ranks)
        return replace(found, thread_share=max((one for one in known if one), default=None))
    shares = np.sort(waits_ns.sum(axis=1) / np.maximum(joined.period_ns.sum(axis=1), 1))
    waits_ns = np.minimum(waits_ns[:, found.steps], found.total_ns)
    return replace(
        found,
        total_ns=found.total_ns - waits_ns,
        own_ns=found.own_ns * (1 - waits_ns / np.maximum(found.total_ns, 1)),
        processor_ns=waits_ns,
        processor_share=float(shares[(len(shares) - 1) // 2]),
    )


def _processor_waits_ns(joined: Joined) -> NDArray[np.float64] | None:
    """Return by rank and step how long its thread waited for a processor; in steps that were not
    read, as large a share of the time as in those that were. None if these are few on some rank."""
    waits_ns = np.full(joined.self_ns.shape[1:], np.nan)
    for number, rank in enumerate(joined.ranks):
        if rank.processor_wait_ns is not None:
            waits_ns[number] = rank.processor_wait_ns[joined.places[number]]
    is_known = ~np.isnan(waits_ns)
    if is_known.sum(axis=1).min() < MIN_STEPS:
        return None
    period_ns = joined.period_ns
    known_ns = np.where(is_known, period_ns, 0).sum(axis=1)
    shares = np.nansum(waits_ns, axis=1) / np.maximum(known_ns, 1)
    return np.where(is_known, waits_ns, shares[:, None] * period_ns)


def _as_timed(joined: Joined, groups: Sequence[MatchedGroup]) -> OwnWork | str:
    if len(joined.ranks) < 2:
        if joined.left_out:
            return "no two ranks have the steps that are to be compared"
        return f"there is the run of {'one rank alone' if joined.ranks else 'no rank'}"
    if len(joined.steps) < MIN_STEPS:
        return (
            f"{len(joined.steps)} steps have records of all ranks, besides the first; {MIN_STEPS} "
            "are needed"
        )
    if any(group.group.is_on_stream for group in groups):
        waits = device_waits(joined, groups)
        return _by_meetings(joined) if waits is None else _by_durations(joined, waits)
    found = arrivals(joined)
    if found is not None:
        rest_ns, hidden = found
        steps = np.flatnonzero(~np.isnan(rest_ns).any(axis=(0, 1)))
        if len(steps) >= MIN_STEPS:
            return _by_arrivals(joined, steps, rest_ns[:, :, steps], hidden)
    return _by_meetings(joined)


def _by_arrivals(
    joined: Joined,
    steps: NDArray[np.intp],
    rest_ns: NDArray[np.float64],
    hidden: NDArray[np.bool_],
) -> OwnWork:
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
        hidden=hidden,
    )


def _by_durations(joined: Joined, found: DeviceWaits) -> OwnWork:
    period_ns = joined.period_ns[:, found.steps]
    return OwnWork(
        how=HowKnown.DURATIONS,
        steps=found.steps,
        total_ns=np.median(period_ns, axis=0) - found.waits_ns,
        own_ns=joined.self_ns[:, :, found.steps],
        usual_ns=usual_device_ns(joined, found),
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
        hidden=waits,
    )


def _meetings(joined: Joined) -> NDArray[np.bool_]:
    """Return for each path whether ranks wait for each other in it, as their clocks tell."""
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
    """Return how far apart the ranks are at a moment of each step, beyond what they always are: the
    median of how much that changes from step to step."""
    moments_ns = joined.of_phase(moment, path)
    changes_ns = np.diff(moments_ns[:, (moments_ns >= 0).all(axis=0)], axis=1)
    if changes_ns.shape[1] < MIN_STEPS - 1:
        return 0.0
    return float(np.median(np.abs(changes_ns - np.median(changes_ns, axis=0))))
