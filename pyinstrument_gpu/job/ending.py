# SPDX-License-Identifier: Apache-2.0
"""The end of a job, or why it does not go on: which rank stopped first, or holds up the others.

What may be concluded, and from what:

* Ranks that ask for different operations under one number are no longer at the same place of the
  program: who is ahead may have left one out. By then numbers don't say who waits for whom.
* A rank for which others have waited for long is the one to look at, unless it waits itself. If its
  own file shows less time in which nothing happened than the others waited, it had stopped by then.
* An exception that says that another rank did not answer is never the first.
* Of two ranks that stopped, one was first if its file can't be of a time as late as the other's.
  Only clocks of one machine are compared, and a file may be `LAG_NS` behind its process.

Otherwise nobody is named. Of ranks that stopped too close to each other, one may be the likeliest:
it alone was behind, for far longer than a step takes, and its file ends first.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.core.condition import Condition, ProcessState, ProgramEnd
from pyinstrument_gpu.job.condition import (
    LAG_NS,
    ProcessObservation,
    condition_of,
    machines_of,
    monotonic_end_ns,
    stuck_ns,
)
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.waits import Mismatch, Wait, mismatch, waits

_CLOCK_ERROR_NS = 10_000_000
"""By how much the times of two runs may be wrong next to each other, on one machine."""
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
    """The others wait for one rank, which lived on."""
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
        suspects: the ranks between which it can't be told, that wait for each other, or that are
            ahead of those that asked for another operation.
        doubt: why not; None if somebody is named, or nobody need be.
        likely_rank: which of the suspects most likely stopped first; None if none is likelier.
        lost_peers: those whose exception says that another rank did not answer.
        next_rank, earlier_ns: of the ranks on the machine of `rank`, which stopped next, and how
            much later its last heartbeat is; None if that is not known.
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
    lost_peers = tuple(rank.rank for rank in ended if ProgramEnd.of(rank.environment).lost_peer)

    def concluded(
        outcome: Outcome,
        rank: int | None = None,
        suspects: Sequence[int] = (),
        doubt: Doubt | None = None,
    ) -> Conclusion:
        next_rank, earlier_ns = _next_on_machine(rank, ended, ranks)
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
        )

    if long_waits and differs is None:
        waiting = {rank for wait in long_waits for rank in wait.waiting}
        behind = {rank for wait in long_waits for rank in wait.behind}
        roots = sorted(behind - waiting)
        if not roots:
            return concluded(Outcome.DEADLOCK, suspects=sorted(behind))
        if len(roots) > 1:
            gone = [rank for rank in roots if conditions[rank].has_ended]
            if len(gone) != 1:
                return concluded(Outcome.UNKNOWN, suspects=roots, doubt=Doubt.SEVERAL_BEHIND)
            roots = gone
        waited_ns = max(wait.waited_ns for wait in long_waits if roots[0] in wait.behind)
        has_gone = conditions[roots[0]] is Condition.STOPPED or (
            conditions[roots[0]].has_ended and stuck_ns(ranks[roots[0]]) + LAG_NS < waited_ns
        )
        return concluded(Outcome.STOPPED_FIRST if has_gone else Outcome.HELD_UP, roots[0])
    if differs is not None:
        return concluded(Outcome.MISMATCH, suspects=differs.ahead)
    if ended:
        return concluded(*_first(ended, conditions, lost_peers, bool(job.missing)))
    if hanging:
        if job.world_size == 1:
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


def _first(
    ended: Sequence[RankData],
    conditions: Mapping[int, Condition],
    lost_peers: Sequence[int],
    is_one_missing: bool,
) -> tuple[Outcome, int | None, tuple[int, ...], Doubt | None]:
    """Return which of the ranks that ended was the first."""
    candidates = [rank for rank in ended if rank.rank not in lost_peers]
    if not candidates:
        if is_one_missing or len(conditions) > 1:
            return Outcome.UNKNOWN, None, tuple(lost_peers), Doubt.LOST_PEERS
        candidates = list(ended)
    unwritten = [rank for rank in candidates if conditions[rank.rank] is Condition.UNWRITTEN]
    machines = machines_of(candidates)
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
        return first_ns + _CLOCK_ERROR_NS >= least_ns

    possible = tuple(rank.rank for rank in candidates if may_be_first(rank))
    if len(possible) == 1 and candidates != unwritten:
        return Outcome.STOPPED_FIRST, possible[0], (), None
    if set(possible) & {rank.rank for rank in unwritten}:
        return Outcome.UNKNOWN, None, possible, Doubt.UNWRITTEN
    on_machines = {machines.get(rank) for rank in possible}
    is_one = len(on_machines) == 1 and None not in on_machines
    return Outcome.UNKNOWN, None, possible, Doubt.TOO_CLOSE if is_one else Doubt.MACHINES


def _likeliest(
    suspects: Sequence[int], found: Sequence[Wait], ranks: Mapping[int, RankData]
) -> int | None:
    """Return which of some ranks of one machine most likely stopped first."""
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
    if end_ns is None or not rank.complete:
        return end_ns
    # Its recording may have ended long after what went wrong.
    steps = rank.end.last_steps
    return end_ns - rank.duration_ns + (steps[-1].end_ns if steps else 0)


def _next_on_machine(
    number: int | None, ended: Sequence[RankData], ranks: Mapping[int, RankData]
) -> tuple[int | None, int | None]:
    if number is None:
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
