# SPDX-License-Identifier: Apache-2.0
"""Waits of ranks for each other: the ranks that have not asked for an operation that others have.

An operation of a process group ends on no rank before all ranks have asked for it. So who has not
asked for one is waited for by those who have, and only lengths of time are compared, each by one
rank's own clock.

A file says which operations a rank has asked for, but not at once, and of some only when they have
ended. So what a living rank has not asked for is known only once its watchdog has looked.

The watchdog also sees in which function of torch.distributed the program is. So who receives from a
rank waits for it, and where operations say nothing, all who are in such a function wait for those
who are in none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import ProcessGroup
from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.core.condition import ProgramEnd
from pyinstrument_gpu.job.condition import (
    CLOCK_ERROR_NS,
    FRESH_NS,
    gave_up_in_step,
    idle_ns,
    long_ns,
    lost_peer,
    machines_of,
    monotonic_ns,
    open_stall,
    stuck_ns,
    waited_until_ns,
)
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.parts.words import counted

_EQUALLY_SIZED = ("all_reduce", "broadcast", "_allgather_base", "_reduce_scatter_base")
"""Operations to which all ranks give tensors of one size."""


@dataclass(frozen=True)
class GroupPosition:
    """The progress of a rank in a process group.

    Attributes:
        group: which one.
        is_exact: whether it had asked for no later operation.
        sequence: number of the last operation that it had asked for; -1 if there was none.
        operation: such as "all_reduce"; None unknown.
        created_ns: when it had asked for it, since its run began, or by when; -1 unknown.
        completed: number of the last one that was seen to end; None if that is unknown.
    """

    group: ProcessGroup
    is_exact: bool
    sequence: int = -1
    operation: str | None = None
    created_ns: int = -1
    completed: int | None = None


@dataclass(frozen=True)
class Wait:
    """Ranks that are behind, and those that wait for them.

    Attributes:
        group: description of the process group; None: they are told apart in another way.
        sequence: number of the first operation that those behind have not asked for; of the step
            that the others are in, without a group.
        operation: its name; None unknown. Without a group, the function of torch.distributed that
            the others are in; None: they are told apart by steps and phases.
        behind, waiting: the ranks.
        waited_ns: how long the one that waits longest has, by its own clock.
        is_long: whether that is far longer than its steps take.
        is_for_peer: whether the one behind is the rank with which the other exchanges data.
    """

    group: str | None
    sequence: int
    operation: str | None
    behind: tuple[int, ...]
    waiting: tuple[int, ...]
    waited_ns: int
    is_long: bool
    is_for_peer: bool = False


@dataclass(frozen=True)
class Mismatch:
    """An operation of a group for which ranks have asked in different ways.

    Attributes:
        group: description of the process group.
        sequence: its number.
        operations: by its name on a rank, and its size where that differs, the ranks.
        ahead: the ranks that have come further in the steps than all that have asked for something
            else; none if that is unknown.
    """

    group: str
    sequence: int
    operations: tuple[tuple[str, tuple[int, ...]], ...]
    ahead: tuple[int, ...] = ()


def last_collectives(rank: RankData) -> tuple[GroupPosition, ...]:
    """Return how far it was in each of its groups, by the flight recorder and by its watchdog."""
    of_rank = rank.collectives
    events = of_rank.events[~of_rank.events["is_p2p"]]
    stall = open_stall(rank)
    names = [group.name for group in of_rank.groups]
    progress = {} if stall is None else {one.group: one for one in stall.groups}
    found = []
    for number, group in enumerate(of_rank.groups):
        if group.ranks is not None and rank.rank not in group.ranks:
            continue
        of_group = events[events["group"] == number]
        # The watchdog does not tell the backends of one group apart.
        seen = progress.get(group.name) if names.count(group.name) == 1 else None
        last = GroupPosition(group, is_exact=rank.complete or seen is not None)
        if len(of_group):
            event = of_group[np.argmax(of_group["sequence"])]
            ended = of_group[(of_group["ended_ns"] >= 0) | (of_group["duration_ns"] >= 0)]
            last = replace(
                last,
                sequence=int(event["sequence"]),
                operation=of_rank.operations[event["operation"]],
                created_ns=int(event["created_ns"]),
                completed=int(ended["sequence"].max()) if len(ended) else None,
            )
        elif seen is None and not _is_all_known(rank):
            continue
        if stall is not None and seen is not None:
            if seen.enqueued is not None and seen.enqueued > last.sequence:
                last = replace(
                    last,
                    sequence=seen.enqueued,
                    operation=seen.operation,
                    created_ns=stall.since_ns,
                )
            if seen.completed is not None:
                last = replace(last, completed=max(seen.completed, last.completed or -1))
        found.append(last)
    return tuple(found)


def waits(job: Job, ended: Collection[int]) -> tuple[Wait, ...]:
    """Return who waits for whom, by process group. Where these don't say it, by steps and phases.

    Args:
        ended: the ranks that have ended, or stopped, other than by finishing.
    """
    by_group: dict[ProcessGroup, dict[int, GroupPosition]] = {}
    ranks = {rank.rank: rank for rank in job.ranks}
    for rank in job.ranks:
        for last in last_collectives(rank):
            by_group.setdefault(last.group, {})[rank.rank] = last
    for group, lasts in by_group.items():
        for number in set(group.ranks or ()) & ranks.keys() - lasts.keys():
            # A group of which it has no operation may be none that its file knows of.
            rank = ranks[number]
            if _is_all_known(rank):
                is_exact = rank.complete or open_stall(rank) is not None
                lasts[number] = GroupPosition(group, is_exact)
    found = [_wait_in_group(group, lasts, ranks, ended) for group, lasts in by_group.items()]
    found += [_late_in_group(group, lasts, ranks) for group, lasts in by_group.items()]
    known = [wait for wait in found if wait is not None]
    known += _waits_for_peers(ranks)
    if not any(wait.is_long for wait in known):
        by_calls = _wait_by_calls(job.ranks)
        known += [] if by_calls is None else [by_calls]
    is_all_exact = bool(by_group) and all(
        last.is_exact for lasts in by_group.values() for last in lasts.values()
    )
    if not is_all_exact and not any(wait.is_long for wait in known):
        by_steps = _wait_by_steps(job.ranks)
        known += [] if by_steps is None else [by_steps]
    return tuple(known)


def mismatch(job: Job) -> Mismatch | None:
    """The first operation of a group for which its ranks have asked in different ways."""
    by_group: dict[ProcessGroup, dict[int, _Asked]] = {}
    for rank in job.ranks:
        of_rank = rank.collectives
        lasts = {last.group: last for last in last_collectives(rank)}
        events = of_rank.events[~of_rank.events["is_p2p"]]
        for number, group in enumerate(of_rank.groups):
            asked = _asked_for(events[events["group"] == number], of_rank.operations)
            # The watchdog knows of those that have not come into the file.
            last = lasts.get(group)
            if last is not None and last.operation is not None and last.sequence not in asked[0]:
                asked = _Asked(
                    np.append(asked.sequence, last.sequence),
                    np.append(asked.name, last.operation),
                    np.append(asked.size, -1),
                )
            by_group.setdefault(group, {})[rank.rank] = asked
    for group, of_ranks in by_group.items():
        first, *others = of_ranks.values()
        differing = [one for other in others for one in _differing(first, other)]
        if differing:
            return _mismatch_at(min(differing), group, of_ranks, job.ranks)
    return None


class _Asked(NamedTuple):
    """Numbers, names and sizes of the operations of a group that a rank has asked for; -1 where the
    size is unknown, or may differ between ranks."""

    sequence: NDArray[np.int64]
    name: NDArray[np.str_]
    size: NDArray[np.int64]


def _asked_for(events: NDArray[np.void], operations: Sequence[str]) -> _Asked:
    names = np.array(operations, np.str_)[events["operation"]]
    sizes = np.where(np.isin(names, _EQUALLY_SIZED), events["bytes"], -1)
    return _Asked(events["sequence"], names, sizes)


def _differing(one: _Asked, other: _Asked) -> list[int]:
    """The numbers under which these can't be the same operation."""
    numbers, at, at_other = np.intersect1d(one.sequence, other.sequence, return_indices=True)
    sizes, others = one.size[at], other.size[at_other]
    differs = (one.name[at] != other.name[at_other]) | (
        (sizes >= 0) & (others >= 0) & (sizes != others)
    )
    found: list[int] = numbers[differs].tolist()
    return found[:1]


def _mismatch_at(
    sequence: int,
    group: ProcessGroup,
    of_ranks: Mapping[int, _Asked],
    ranks: Sequence[RankData],
) -> Mismatch:
    found = {
        rank: (str(asked.name[at[0]]), int(asked.size[at[0]]))
        for rank, asked in of_ranks.items()
        if len(at := np.flatnonzero(asked.sequence == sequence))
    }
    names = [name for name, _ in found.values()]
    asked_by: dict[str, list[int]] = {}
    for rank, (name, size) in found.items():
        is_sized = names.count(name) == len(names) and size >= 0
        text = f"{name} of {counted(size, 'byte')}" if is_sized else name
        asked_by.setdefault(text, []).append(rank)
    by_rank = {rank.rank: rank for rank in ranks}
    ahead: tuple[int, ...] = ()
    for some in asked_by.values():
        others = [rank for rank in found if rank not in some]
        if all(_is_ahead(by_rank[one], by_rank[other]) for one in some for other in others):
            ahead = tuple(some)
    asked = tuple((text, tuple(some)) for text, some in asked_by.items())
    return Mismatch(group.label, sequence, asked, ahead)


def _is_ahead(rank: RankData, other: RankData) -> bool:
    step, its = rank.end.step, other.end.step
    if step is None or its is None or step.index != its.index:
        return step is not None and (its is None or step.index > its.index)
    return _is_earlier(other, rank)


def _is_all_known(rank: RankData) -> bool:
    """Return whether it asked for no operation but those that are there."""
    return rank.collectives.was_read and not rank.collectives.missed


def _wait_in_group(
    group: ProcessGroup,
    lasts: Mapping[int, GroupPosition],
    ranks: Mapping[int, RankData],
    ended: Collection[int],
) -> Wait | None:
    possible = {rank: last for rank, last in lasts.items() if last.is_exact or rank in ended}
    if not possible:
        return None
    least = min(last.sequence for last in possible.values())
    behind = tuple(rank for rank, last in possible.items() if last.sequence == least)
    waited_ns: dict[int, int] = {}
    operation = None
    for number, last in lasts.items():
        is_over = last.completed is not None and last.completed > least
        rank = ranks[number]
        has_finished = rank.complete and not ProgramEnd.of(rank.environment).has_failed
        if last.sequence <= least or is_over or has_finished:
            continue
        asked = _asked(rank, group, least + 1)
        created_ns = last.created_ns if asked is None else asked[0]
        operation = operation or (last.operation if asked is None else asked[1])
        step = rank.end.step
        # It has gone on since: it did not wait for it, or the other's file is older.
        if created_ns < 0 or (step is not None and step.begin_ns > created_ns):
            continue
        waited_ns[number] = max(0, waited_until_ns(rank) - created_ns)
    if not waited_ns:
        return None
    is_long = any(time_ns > long_ns(ranks[number]) for number, time_ns in waited_ns.items())
    longest_ns = max(waited_ns.values())
    return Wait(group.label, least + 1, operation, behind, tuple(waited_ns), longest_ns, is_long)


def _late_in_group(
    group: ProcessGroup, lasts: Mapping[int, GroupPosition], ranks: Mapping[int, RankData]
) -> Wait | None:
    """Return the wait of those that gave up in an operation for those that asked for it only after
    that, by the clock of their machine."""
    machines = machines_of(ranks[number] for number in lasts)
    given_up = [
        (until_ns, number)
        for number in lasts
        if lost_peer(ranks[number])
        and number in machines
        and (until_ns := monotonic_ns(ranks[number], waited_until_ns(ranks[number]))) is not None
    ]
    if not given_up:
        return None
    until_ns, first = min(given_up)
    last = lasts[first]
    behind, waited_ns = [], {}
    for number in lasts:
        rank = ranks[number]
        asked = _asked(rank, group, last.sequence)
        if asked is None or machines.get(number) != machines[first]:
            continue
        asked_ns = monotonic_ns(rank, asked[0])
        if asked_ns is not None and asked_ns > until_ns + CLOCK_ERROR_NS:
            behind.append(number)
        elif lost_peer(rank):
            waited_ns[number] = max(0, waited_until_ns(rank) - asked[0])
    if not behind or first not in waited_ns:
        return None
    is_long = any(time_ns > long_ns(ranks[number]) for number, time_ns in waited_ns.items())
    return Wait(
        group.label,
        last.sequence,
        last.operation,
        tuple(behind),
        tuple(waited_ns),
        max(waited_ns.values()),
        is_long,
    )


def _asked(rank: RankData, group: ProcessGroup, sequence: int) -> tuple[int, str] | None:
    """Return when it asked for this operation, and for which one."""
    of_rank = rank.collectives
    if group not in of_rank.groups:
        return None
    events = of_rank.events[~of_rank.events["is_p2p"] & (of_rank.events["sequence"] == sequence)]
    found = events[events["group"] == of_rank.groups.index(group)]
    if not len(found):
        return None
    return int(found[0]["created_ns"]), of_rank.operations[found[0]["operation"]]


def _waits_for_peers(ranks: Mapping[int, RankData]) -> list[Wait]:
    """Ranks that receive from, or send to, one other."""
    found = []
    for rank in ranks.values():
        stall = open_stall(rank)
        call = None if stall is None else stall.call
        if call is None or call.peer is None or call.peer not in {*ranks} - {rank.rank}:
            continue
        behind, waiting = (call.peer,), (rank.rank,)
        found.append(Wait(None, -1, call.function, behind, waiting, stuck_ns(rank), True, True))
    return found


def _wait_by_calls(ranks: Sequence[RankData]) -> Wait | None:
    """Return the wait of those that are in a function of torch.distributed, or have asked for an
    operation that has not ended, for those that are in none. Of all it has to be known."""
    functions = {}
    behind = []
    for rank in ranks:
        stall = open_stall(rank)
        if rank.complete and not rank.end.is_step_open and rank.collectives.groups:
            continue  # it has been where the others meet, and may have been wherever they are
        if stall is None and idle_ns(rank) > FRESH_NS:
            return None
        function = None if stall is None else function_of(stall)
        if stall is not None and function is None and any(map(_may_wait, stall.groups)):
            return None
        if function is None:
            behind.append(rank.rank)
        else:
            functions[rank.rank] = function
    if not functions or not behind:
        return None
    waited_ns = max(stuck_ns(rank) for rank in ranks if rank.rank in functions)
    names = list(functions.values())
    name = max(names, key=names.count)
    return Wait(None, -1, name, tuple(behind), tuple(functions), waited_ns, True)


def wait_for_missing(job: Job, are_alive: bool) -> Wait | None:
    """Return the wait of all ranks that are there for those that are missing; None unless all have
    waited at one time.

    Args:
        are_alive: whether all are there now, and hang.
    """
    since_ns, until_ns, stalls = [], [], []
    for rank in job.ranks:
        stall = open_stall(rank)
        function = None if stall is None else function_of(stall)
        at_ns = monotonic_ns(rank, waited_until_ns(rank))
        if (function is None and not lost_peer(rank)) or at_ns is None:
            return None
        since_ns.append(at_ns - stuck_ns(rank))
        until_ns.append(at_ns)
        stalls += [] if function is None else [function]
    machines = machines_of(job.ranks)
    are_beside = len(machines) == len(job.ranks) and len({*machines.values()}) == 1
    were_together = are_beside and max(since_ns) < min(until_ns)
    if not job.missing or not (are_alive or were_together):
        return None
    waiting = tuple(rank.rank for rank in job.ranks)
    waited_ns = max(map(stuck_ns, job.ranks))
    positions = [{(one.group, one.sequence) for one in last_collectives(r)} for r in job.ranks]
    common = positions[0].intersection(*positions[1:])
    operation = max(stalls, key=stalls.count, default=None)
    group, sequence = min(common, key=lambda one: one[0].name) if common else (None, -1)
    is_call = any((stall := open_stall(rank)) is not None and stall.call for rank in job.ranks)
    if group is None or sequence < 0 or is_call:
        return Wait(None, -1, operation, tuple(job.missing), waiting, waited_ns, True)
    return Wait(group.label, sequence, operation, tuple(job.missing), waiting, waited_ns, True)


def _may_wait(progress: GroupProgress) -> bool:
    """Return whether it is not known if the last operation of a group has ended."""
    return progress.enqueued is not None and progress.completed is None


def function_of(stall: Stall) -> str | None:
    """Return what the rank waits in: a function of torch.distributed, or an operation."""
    if stall.call is not None:
        return stall.call.function
    pending = [
        group.operation or "an operation"
        for group in stall.groups
        if group.completed is not None and (group.enqueued or 0) > group.completed
    ]
    return pending[0] if pending else None


def _wait_by_steps(ranks: Sequence[RankData]) -> Wait | None:
    """Ranks that are in an earlier step or phase than others, in which nothing happens."""
    at = {rank.rank: rank.end.step.index for rank in ranks if rank.end.step is not None}
    if len(at) < len(ranks) or len(at) < 2:
        return None
    most = max(at.values())
    behind = [rank for rank in ranks if at[rank.rank] < most]
    ahead = [rank for rank in ranks if at[rank.rank] == most]
    if not behind:
        behind = [rank for rank in ranks if _is_earlier_than_others(rank, ranks)]
        ahead = [rank for rank in ranks if rank not in behind]
    waiting = [rank for rank in ahead if rank.end.is_step_open or gave_up_in_step(rank)]
    if not behind or not waiting:
        return None
    waited_ns = {rank.rank: stuck_ns(rank) for rank in waiting}
    is_long = all(waited_ns[rank.rank] > long_ns(rank) for rank in waiting)
    least = min(at[rank.rank] for rank in behind)
    last = tuple(rank.rank for rank in behind if at[rank.rank] == least)
    return Wait(None, most, None, last, tuple(waited_ns), max(waited_ns.values()), is_long)


def _is_earlier_than_others(rank: RankData, ranks: Sequence[RankData]) -> bool:
    """Return whether all others are in a phase that comes later in the step than its own."""
    return all(other is rank or _is_earlier(rank, other) for other in ranks)


def _is_earlier(rank: RankData, other: RankData) -> bool:
    own, its = (one.end.path and one.end.path.partition("/")[0] for one in (rank, other))
    if own is None or its is None or own == its or not {own, its} <= set(other.paths):
        return False
    begins_ns = other.first_begin_ns[[other.paths.index(own), other.paths.index(its)]]
    known = begins_ns[:, (begins_ns >= 0).all(axis=0)]
    return bool(known.shape[1]) and bool((known[0] < known[1]).all())
