# SPDX-License-Identifier: Apache-2.0
"""The end of a job, or why it does not go on: which rank stopped first, or holds up the others.

What may be concluded, and from what:

* A rank that has finished asks for nothing more, so who waits for it waits for ever, whatever the
  others did in the meantime. And if all ranks wait, they wait for one that is not there.
* Ranks that ask for different operations under one number are no longer at the same place of the
  program: who is ahead may have left one out. By then numbers don't say who waits for whom.
* A rank for which others have waited for long is the one to look at, unless it waits itself. If its
  own file shows less time in which nothing happened than the others waited, it had stopped by then,
  unless its watchdog saw it hang, or it was still there when they gave up.
* An exception that says that another rank did not answer is never the first. A rank that was still
  there when others gave up has not ended before them, so they waited for it, or for another such.
* Of two ranks that stopped, one was first if its file can't be of a time as late as the other's.
  Only clocks of one machine are compared, and a file may be `LAG_NS` behind its process.

Otherwise nobody is named. Of ranks that stopped too close to each other, one may be the likeliest:
an exception left the last step of all others, or it alone was behind, for far longer than a step
takes, and its file ends first.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.core.condition import Condition, ProcessState
from pyinstrument_gpu.job.condition import (
    CLOCK_ERROR_NS,
    LAG_NS,
    ProcessObservation,
    condition_of,
    lost_peer,
    machines_of,
    monotonic_end_ns,
    monotonic_ns,
    open_stall,
    stuck_ns,
    waited_until_ns,
    was_cut_short,
)
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.waits import (
    Mismatch,
    Wait,
    function_of,
    last_collectives,
    mismatch,
    wait_for_missing,
    waits,
)

_FAR_LONGER = 5
"""So many steps' time others wait for a rank that most likely stopped first."""


class Outcome(str, enum.Enum):
    """The outcome of a job, as far as it is known."""

    FINISHED = "finished"
    RUNNING = "running"
    """No rank has stopped or hangs."""
    STOPPED_FIRST = "stopped first"
    """One rank stopped, and what the others did came of that, or after it."""
    HELD_UP = "held up"
    """The others wait for one rank, which lived on; or all others have finished."""
    FINISHED_EARLY = "finished early"
    """Others have asked for an operation that ranks which finished never asked for."""
    ABSENT = "absent"
    """All ranks wait for one of which there is no run."""
    DEADLOCK = "deadlock"
    """Ranks wait for each other."""
    MISMATCH = "mismatch"
    """Ranks have asked for different operations."""
    UNKNOWN = "unknown"


class Doubt(str, enum.Enum):
    """Why nobody is named."""

    MACHINES = "machines"
    """They ran on different machines, whose clocks can't be compared."""
    TOO_CLOSE = "too close"
    """They stopped within the time by which a file may be behind."""
    SEVERAL_BEHIND = "several behind"
    """Several ranks are waited for."""
    NOBODY_BEHIND = "nobody behind"
    """Ranks hang, and none is known to be waited for."""
    LOST_PEERS = "lost peers"
    """All that stopped did because another rank did not answer."""
    OUTLIVED = "outlived"
    """Several were still there when others gave up."""
    UNWRITTEN = "unwritten"
    """The file of a rank could not be written to its end."""


@dataclass(frozen=True)
class Conclusion:
    """The end of a job, or why it does not go on.

    Attributes:
        outcome: in a word.
        rank: who is named; None if nobody is.
        conditions: how each rank is.
        waits: who waits for whom.
        mismatch: of operations.
        suspects: the ranks between which it can't be told, that wait for each other, that are ahead
            of those that asked for another operation, or that finished early or are absent, if
            these are several.
        doubt: why not; None if somebody is named, or nobody need be.
        likely_rank: which of the suspects most likely stopped first; None if none is likelier.
        lost_peers: those whose exception says that another rank did not answer.
        next_rank, earlier_ns: of the ranks on the machine of `rank`, which stopped next, and how
            much later its last heartbeat is; None if that is not known.
        gave_up: the ranks that gave up waiting for another, or ended in another way, when `rank`
            or the suspects were still there, by the clock of one machine.
        outlived_ns: how long `rank`, or the first of these suspects, was there after the first of
            them; None if that is not known.
    """

    outcome: Outcome
    rank: int | None
    conditions: Mapping[int, Condition]
    waits: tuple[Wait, ...] = ()
    mismatch: Mismatch | None = None
    suspects: tuple[int, ...] = ()
    doubt: Doubt | None = None
    lost_peers: tuple[int, ...] = ()
    next_rank: int | None = None
    earlier_ns: int | None = None
    likely_rank: int | None = None
    gave_up: tuple[int, ...] = ()
    outlived_ns: int | None = None


def ending(job: Job, observations: Mapping[int, ProcessObservation] | None = None) -> Conclusion:
    """Return how the job ended, or why it does not go on.

    Args:
        job: of one rank or more.
        observations: by rank what could be seen of it; nothing by default.
    """
    seen = {} if observations is None else observations
    conditions = {
        rank.rank: condition_of(rank, seen.get(rank.rank, ProcessObservation()))
        for rank in job.ranks
    }
    ranks = {rank.rank: rank for rank in job.ranks}
    ended = [rank for rank in job.ranks if _has_ended(rank, conditions[rank.rank], seen)]
    hanging = [number for number, one in conditions.items() if one is Condition.HANGING]
    found = waits(job, {rank.rank for rank in ended})
    long_waits = [wait for wait in found if wait.is_long]
    differs = mismatch(job) if ended or hanging else None
    lost_peers = tuple(rank.rank for rank in ended if lost_peer(rank))

    def concluded(
        outcome: Outcome,
        rank: int | None = None,
        suspects: Sequence[int] = (),
        doubt: Doubt | None = None,
    ) -> Conclusion:
        next_rank, earlier_ns = _next_on_machine(rank, ended, ranks)
        outlived_ns: dict[int, int] = {}
        if outcome is Outcome.HELD_UP and rank is not None:
            outlived_ns = _outlived_ns(ranks[rank], ended, conditions)
        elif doubt is Doubt.OUTLIVED:
            lost = [ranks[number] for number in lost_peers]
            found_ns = [_outlived_ns(ranks[suspect], lost, conditions) for suspect in suspects]
            outlived_ns = min(found_ns, key=lambda one: max(one.values()))
        is_close = doubt is Doubt.TOO_CLOSE
        return Conclusion(
            outcome,
            rank,
            conditions,
            found,
            differs,
            tuple(suspects),
            doubt,
            lost_peers,
            next_rank,
            earlier_ns,
            _likeliest(suspects, found, ranks) if is_close else None,
            tuple(outlived_ns),
            max(outlived_ns.values(), default=None),
        )

    if long_waits and differs is None:
        waiting = {rank for wait in long_waits for rank in wait.waiting}
        behind = {rank for wait in long_waits for rank in wait.behind}
        roots = sorted(behind - waiting)
        early = [rank for rank in roots if conditions[rank] is Condition.FINISHED]
        if early:
            return concluded(*_named(Outcome.FINISHED_EARLY, early))
        if not roots:
            return concluded(Outcome.DEADLOCK, suspects=sorted(behind))
        if len(roots) > 1:
            gone = [rank for rank in roots if conditions[rank].has_ended]
            if len(gone) != 1:
                return concluded(Outcome.UNKNOWN, suspects=roots, doubt=Doubt.SEVERAL_BEHIND)
            roots = gone
        root = ranks[roots[0]]
        has_gone = conditions[root.rank] is Condition.STOPPED or (
            conditions[root.rank].has_ended and _was_gone(root, long_waits, job, ended, conditions)
        )
        return concluded(Outcome.STOPPED_FIRST if has_gone else Outcome.HELD_UP, root.rank)
    if differs is not None:
        return concluded(Outcome.MISMATCH, suspects=differs.ahead)
    for_missing = wait_for_missing(job, set(hanging) >= ranks.keys())
    if for_missing is not None:
        found += (for_missing,)
        return concluded(*_named(Outcome.ABSENT, for_missing.behind))
    # These have hung until they were killed.
    hung = [rank.rank for rank in ended if rank.rank not in lost_peers and open_stall(rank)]
    if ended and (hanging or len(hung) < len(ended)):
        return concluded(*_first(ended, conditions, found, job))
    hanging += hung
    if hanging:
        have_finished = all(
            one in (Condition.FINISHED, Condition.ENDED)
            for number, one in conditions.items()
            if number not in hanging
        )
        if len(hanging) == 1 and have_finished and _hangs_alone(ranks[hanging[0]], job):
            return concluded(Outcome.HELD_UP, hanging[0])
        return concluded(Outcome.UNKNOWN, suspects=hanging, doubt=Doubt.NOBODY_BEHIND)
    if Condition.RUNNING in conditions.values():
        return concluded(Outcome.RUNNING)
    return concluded(Outcome.FINISHED)


def _has_ended(
    rank: RankData, condition: Condition, seen: Mapping[int, ProcessObservation]
) -> bool:
    """Return whether it has stopped other than by finishing, as far as can be seen."""
    lives = rank.rank in seen and seen[rank.rank].process is ProcessState.ALIVE
    return condition.has_ended and not (condition is Condition.UNWRITTEN and lives)


def _named(
    outcome: Outcome, ranks: Sequence[int]
) -> tuple[Outcome, int | None, tuple[int, ...], Doubt | None]:
    """Return the outcome with one rank that is named, or several."""
    return (outcome, ranks[0], (), None) if len(ranks) == 1 else (outcome, None, (*ranks,), None)


def _hangs_alone(rank: RankData, job: Job) -> bool:
    """Return whether a rank beside those that finished does not wait for one of them."""
    stall = open_stall(rank)
    return not job.missing and (stall is None or function_of(stall) is None)


def _was_gone(
    rank: RankData,
    long_waits: Sequence[Wait],
    job: Job,
    ended: Sequence[RankData],
    conditions: Mapping[int, Condition],
) -> bool:
    """Return whether a rank that others waited for had ended while they waited, not only after they
    gave up."""
    found = [wait for wait in long_waits if rank.rank in wait.behind]
    waiting = {number for wait in found for number in wait.waiting}
    if _outlived_ns(rank, [one for one in ended if one.rank in waiting], conditions):
        return False
    machines, gone_ns = machines_of(job.ranks), _latest_end_ns(rank, conditions) or 0
    beside = [
        one
        for one in job.ranks
        if one.rank in waiting and machines.get(one.rank, -1) == machines.get(rank.rank)
    ]
    if open_stall(rank) is not None and all(
        (_earliest_end_ns(one) or 0) < gone_ns for one in beside
    ):
        return False  # it hung, and nobody is known to have been there longer
    lived_ns = stuck_ns(rank)
    created_ns = rank.collectives.events["created_ns"]
    if len(created_ns) and not beside:
        # It may have done something all the time, and been ended when they gave up.
        lived_ns = max(lived_ns, rank.duration_ns - int(created_ns.max()))
    return lived_ns + LAG_NS < max(wait.waited_ns for wait in found)


def _outlived_ns(
    rank: RankData, others: Sequence[RankData], conditions: Mapping[int, Condition]
) -> dict[int, int]:
    """Return which of the others gave up or ended for certain when the rank was still there, and
    for how long it was at least."""
    seen_ns, machines = _earliest_end_ns(rank), machines_of([rank, *others])
    found = {}
    for other in others:
        gone_ns = _latest_end_ns(other, conditions)
        if lost_peer(other):
            gone_ns = monotonic_ns(other, waited_until_ns(other))
        is_beside = machines.get(other.rank, -1) == machines.get(rank.rank)
        if other is rank or not is_beside or gone_ns is None or seen_ns is None:
            continue
        if seen_ns > gone_ns + CLOCK_ERROR_NS:
            found[other.rank] = seen_ns - gone_ns
    return found


def _waited_for(
    outlived: Sequence[RankData], found: Sequence[Wait], job: Job, ended: Sequence[RankData]
) -> tuple[Outcome, int | None, tuple[int, ...], Doubt | None]:
    """Return for which of the ranks that were still there others gave up waiting."""
    lost = {rank.rank for rank in ended if lost_peer(rank)}
    waiting = {number for wait in found for number in wait.waiting}
    behind = {number for wait in found if lost & {*wait.waiting} for number in wait.behind}
    named = (behind - waiting) & {rank.rank for rank in outlived}
    suspects = tuple(rank.rank for rank in outlived if rank.rank not in waiting)
    if len(named) == 1:
        return Outcome.HELD_UP, named.pop(), (), None
    if job.world_size == 2 and len(suspects) == 1 and not _have_all_asked(job.ranks):
        return Outcome.HELD_UP, suspects[0], (), None
    return Outcome.UNKNOWN, None, suspects or tuple(sorted(lost)), Doubt.OUTLIVED


def _finished_early(
    found: Sequence[Wait], conditions: Mapping[int, Condition], job: Job, lost: Sequence[RankData]
) -> list[int]:
    """Return which of the ranks that others waited for when they ended had finished."""
    given_up = {rank.rank for rank in lost}
    early = set()
    for wait in found:
        if not given_up & {*wait.waiting}:
            continue
        early |= {rank for rank in wait.behind if conditions[rank] is Condition.FINISHED}
        # A program may go on when its recording has ended.
        are_all = len({*wait.waiting, *wait.behind}) == job.world_size
        if are_all and all(conditions[rank] is Condition.ENDED for rank in wait.behind):
            early |= {*wait.behind}
    return sorted(early)


def _have_all_asked(ranks: Sequence[RankData]) -> bool:
    """Return whether the ranks have asked for the same last operation of some group."""
    positions = [{one.group: one.sequence for one in last_collectives(rank)} for rank in ranks]
    return any(
        sequence >= 0 and all(one.get(group) == sequence for one in positions)
        for group, sequence in positions[0].items()
    )


def _first(
    ended: Sequence[RankData], conditions: Mapping[int, Condition], found: Sequence[Wait], job: Job
) -> tuple[Outcome, int | None, tuple[int, ...], Doubt | None]:
    """Return which of the ranks that ended was the first, or for which others gave up."""
    lost = [rank for rank in ended if lost_peer(rank)]
    candidates = [rank for rank in ended if rank not in lost]
    first_lost = {one: rank for rank, one in machines_of(_by_end(lost)[::-1]).items()}
    firsts = [rank for rank in lost if rank.rank in first_lost.values()]
    outlived = [rank for rank in candidates if _outlived_ns(rank, firsts, conditions)]
    early = _finished_early(found, conditions, job, lost)
    if early and len(outlived) == len(candidates):
        return _named(Outcome.FINISHED_EARLY, early)
    if not candidates:
        if job.world_size > 1:
            return Outcome.UNKNOWN, None, tuple(rank.rank for rank in lost), Doubt.LOST_PEERS
        candidates = list(ended)
    candidates = [rank for rank in candidates if rank not in outlived]
    if not candidates:
        return _waited_for(outlived, found, job, ended)
    unwritten = [rank for rank in candidates if conditions[rank.rank] is Condition.UNWRITTEN]
    machines = machines_of(ended)
    beside = {machines.get(rank.rank, -1) for rank in lost}
    if outlived and any(machines.get(rank.rank) not in beside for rank in candidates):
        suspects = tuple(rank.rank for rank in ended if rank in candidates or rank in outlived)
        return Outcome.UNKNOWN, None, suspects, Doubt.MACHINES
    earliest: dict[int, tuple[int, RankData]] = {}
    for rank in candidates:
        end_ns, machine = _latest_end_ns(rank, conditions), machines.get(rank.rank)
        if machine is None or end_ns is None:
            continue
        if machine not in earliest or end_ns < earliest[machine][0]:
            earliest[machine] = end_ns, rank

    def may_be_first(rank: RankData) -> bool:
        first_ns, first = earliest.get(machines.get(rank.rank, -1), (None, rank))
        least_ns = _earliest_end_ns(rank)
        if first is rank or first_ns is None or least_ns is None:
            return True
        return first_ns + CLOCK_ERROR_NS >= least_ns

    possible = tuple(rank.rank for rank in candidates if may_be_first(rank))
    if len(possible) == 1 and candidates != unwritten:
        return Outcome.STOPPED_FIRST, possible[0], (), None
    if set(possible) & {rank.rank for rank in unwritten}:
        return Outcome.UNKNOWN, None, possible, Doubt.UNWRITTEN
    on_machines = {machines.get(rank) for rank in possible}
    is_one = len(on_machines) == 1 and None not in on_machines
    return Outcome.UNKNOWN, None, possible, Doubt.TOO_CLOSE if is_one else Doubt.MACHINES


def _by_end(ranks: Sequence[RankData]) -> list[RankData]:
    return sorted(ranks, key=lambda rank: monotonic_ns(rank, waited_until_ns(rank)) or 0)


def _likeliest(
    suspects: Sequence[int], found: Sequence[Wait], ranks: Mapping[int, RankData]
) -> int | None:
    """Return which of some ranks of one machine most likely stopped first: the only one whose last
    step no exception left, or the only one that was behind."""
    vanished = [rank for rank in suspects if not was_cut_short(ranks[rank])]
    if len(vanished) == 1:
        return vanished[0]
    waiting = {rank for wait in found for rank in wait.waiting}
    behind = {rank for wait in found for rank in wait.behind} - waiting
    if len(behind) != 1 or not behind <= set(suspects):
        return None
    [rank] = behind
    ends_ns = {suspect: monotonic_end_ns(ranks[suspect]) or 0 for suspect in suspects}
    step_ns = np.concatenate([ranks[one].step_ns for one in sorted(waiting)])
    waited_ns = max(wait.waited_ns for wait in found if rank in wait.behind)
    is_likely = (
        min(ends_ns.values()) == ends_ns[rank]
        and len(step_ns) > 0
        and waited_ns > _FAR_LONGER * float(np.median(step_ns))
        and waited_ns > LAG_NS // 3  # which a file is behind as a rule
    )
    return rank if is_likely else None


def _latest_end_ns(rank: RankData, conditions: Mapping[int, Condition]) -> int | None:
    """Return by when it had stopped for certain, by the clock of its machine; None unknown."""
    end_ns = monotonic_end_ns(rank)
    # If its file could not be written, it may have lived on for any length of time.
    if end_ns is None or conditions[rank.rank] is Condition.UNWRITTEN:
        return None
    return end_ns if rank.complete else end_ns + LAG_NS


def _earliest_end_ns(rank: RankData) -> int | None:
    """Return until when it had not stopped for certain."""
    end_ns = monotonic_end_ns(rank)
    if end_ns is None:
        return None
    if not rank.complete:
        return end_ns + max(0, rank.end.left_step_ns - rank.duration_ns)
    # Its recording may have ended long after what went wrong.
    steps = rank.end.last_steps
    return end_ns - rank.duration_ns + (steps[-1].end_ns if steps else 0)


def _next_on_machine(
    number: int | None, ended: Sequence[RankData], ranks: Mapping[int, RankData]
) -> tuple[int | None, int | None]:
    if number is None or number not in ranks:
        return None, None
    machines = machines_of([ranks[number], *ended])
    first_ns = monotonic_end_ns(ranks[number])
    later = []
    for rank in ended:
        end_ns = monotonic_end_ns(rank)
        is_beside = rank.rank != number and machines.get(rank.rank, -1) == machines.get(number)
        if is_beside and first_ns is not None and end_ns is not None:
            later.append((end_ns - first_ns, rank.rank))
    if not later or min(later)[0] < 0:
        return None, None
    earlier_ns, next_rank = min(later)
    return next_rank, earlier_ns
