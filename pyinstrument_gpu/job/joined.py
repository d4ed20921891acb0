# SPDX-License-Identifier: Apache-2.0
"""The steps and the collective operations that ranks have in common, next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import ProcessGroup
from pyinstrument_gpu.job.findings import BETWEEN_STEPS, OUTSIDE_PHASES
from pyinstrument_gpu.job.job import Job, RankData

_LEAST_SHARE = 0.5
"""Of the steps that most ranks have, what a rank has to have to be joined."""
_SYMMETRIC = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_MOST_EVENTS = 4_000_000


@dataclass(frozen=True, eq=False)
class Joined:
    """The common steps of ranks, without the first of the run: it is longer for reasons of its
    own, and DDP only groups its gradients for good after it.

    Attributes:
        ranks: those that were joined, in the order of the second axis.
        left_out: the numbers of the others: they have few of the steps that most ranks have.
        steps: indices of the steps, in the order of the last axis.
        places: by rank and step the place of the step in `RankData.steps`.
        paths: the phases that any of them has, in the order of the first axis; last of all
            `OUTSIDE_PHASES` and `BETWEEN_STEPS`.
        self_ns: by path, rank and step the host time without nested phases (float64); 0 where a
            step does not have the phase.
    """

    ranks: tuple[RankData, ...]
    left_out: tuple[int, ...]
    steps: NDArray[np.int64]
    places: NDArray[np.intp]
    paths: tuple[str, ...]
    self_ns: NDArray[np.float64]

    @property
    def period_ns(self) -> NDArray[np.float64]:
        """The time from the end of the step before to the end of the step, by rank and step."""
        total: NDArray[np.float64] = self.self_ns.sum(axis=0)
        return total

    @property
    def uncommon(self) -> NDArray[np.bool_]:
        """True for paths that some ranks lack; if there are such, outside of phases as well: the
        same work may be in the one or in the other."""
        lacking = [any(path not in rank.paths for rank in self.ranks) for path in self.paths[:-2]]
        return np.array([*lacking, any(lacking), False], dtype=bool)

    def of_phase(self, column: str, path: str) -> NDArray[np.int64]:
        """A column of `RankData` by rank and step; -1 where a rank lacks the phase."""
        found = np.full((len(self.ranks), len(self.steps)), -1, np.int64)
        for row, rank, places in zip(found, self.ranks, self.places, strict=True):
            if path in rank.paths:
                row[:] = getattr(rank, column)[rank.paths.index(path), places]
        return found

    def stream_means_ns(self, path: str) -> NDArray[np.float64]:
        """Return by rank the mean device time of a phase, where steps tell it; else NaN."""
        device_ns = self.of_phase("device_ns", path)
        known = device_ns >= 0
        counts = np.count_nonzero(known, axis=1)
        sums_ns: NDArray[np.float64] = np.where(known, device_ns, 0).sum(axis=1, dtype=np.float64)
        return sums_ns / np.where(counts > 0, counts, np.nan)


def traded_ns(joined: Joined, own_ns: NDArray[np.float64], place: int) -> float:
    """Return how much less a rank works per step than the others in the paths that some ranks lack:
    it may be what it works more in others of these, under another name.

    Args:
        own_ns: by path, rank and step.
    """
    rows = np.flatnonzero(joined.uncommon)
    if not len(rows):
        return 0.0
    means_ns = own_ns[rows].mean(axis=2)
    others_ns = np.median(np.delete(means_ns, place, axis=1), axis=1)
    return float(np.maximum(others_ns - means_ns[:, place], 0).sum())


def joined(job: Job) -> Joined:
    """The ranks of a job, those left out that ended early, so that the others can be compared."""
    usual = _usual_steps(job)
    ranks, left_out = [], []
    for rank in job.ranks:
        has = np.count_nonzero(np.isin(usual, rank.steps, assume_unique=True))
        if has and has >= _LEAST_SHARE * len(usual):
            ranks.append(rank)
        else:
            left_out.append(rank.rank)
    common = usual
    for rank in ranks:
        common = common[np.isin(common, rank.steps, assume_unique=True)]
    paths = tuple(dict.fromkeys(path for rank in ranks for path in rank.paths))
    row = {path: place for place, path in enumerate(paths)}
    self_ns = np.zeros((len(paths) + 2, len(ranks), len(common)))
    places = np.empty((len(ranks), len(common)), np.intp)
    for number, rank in enumerate(ranks):
        place = places[number] = np.searchsorted(rank.steps, common)
        rows = [row[path] for path in rank.paths]
        self_ns[rows, number] = rank.self_ns[:, place]
        rest_ns = rank.step_ns[place] - self_ns[:, number].sum(axis=0)
        # A phase that outlasts its step takes some of the next.
        self_ns[-2, number] = np.maximum(rest_ns, 0)
        before = np.maximum(place - 1, 0)
        follows = rank.steps[before] == common - 1
        gaps_ns = rank.step_begin_ns[place] - rank.step_begin_ns[before] - rank.step_ns[before]
        self_ns[-1, number] = np.where(follows, gaps_ns, 0)
    return Joined(
        tuple(ranks),
        tuple(left_out),
        common,
        places,
        (*paths, OUTSIDE_PHASES, BETWEEN_STEPS),
        self_ns,
    )


def _usual_steps(job: Job) -> NDArray[np.int64]:
    """The steps that at least half of the ranks have, ascending, without the first of the run."""
    if not job.ranks:
        return np.empty(0, np.int64)
    found, counts = np.unique(
        np.concatenate([rank.steps for rank in job.ranks]), return_counts=True
    )
    usual: NDArray[np.int64] = found[(2 * counts >= len(job.ranks)) & (found > 0)]
    return usual


@dataclass(frozen=True, eq=False)
class MatchedGroup:
    """The operations of one process group that all of its ranks have.

    Attributes:
        group: as its first rank describes it.
        places: of its ranks, among the ranks that were matched.
        is_whole: whether runs of all ranks of the group are there, as far as is known.
        events: by rank and operation (`COLLECTIVE_DTYPE`), in the order of their numbers.
        first: the rank whose names of operations and phases are meant.
        path: the phase in which that asked for each, an index into its `paths`; -1 outside, or if
            unknown.
        steps: the step in which it did; -1 none, or unknown.
    """

    group: ProcessGroup
    places: tuple[int, ...]
    is_whole: bool
    events: NDArray[np.void]
    first: RankData
    path: NDArray[np.intp]
    steps: NDArray[np.int64]

    @property
    def are_symmetric(self) -> NDArray[np.bool_]:
        """True for operations with which no rank can be done before all have asked."""
        are_symmetric = [is_symmetric(name) for name in self.first.collectives.operations]
        found: NDArray[np.bool_] = np.array(are_symmetric, bool)[self.events["operation"][0]]
        return found


def is_symmetric(operation: str) -> bool:
    """Return whether no rank can be done with it before all have asked: not where one sends."""
    plain = operation.replace("_", "").lower()
    return any(name in plain for name in _SYMMETRIC)


def matched(ranks: Sequence[RankData]) -> list[MatchedGroup]:
    """Match the operations of ranks, without point-to-point ones. Of very many the newest."""
    by_key: dict[tuple[str, str], tuple[ProcessGroup, list[tuple[int, NDArray[np.void]]]]] = {}
    for place, rank in enumerate(ranks):
        collectives = rank.collectives
        events = collectives.events[~collectives.events["is_p2p"]]
        for number, group in enumerate(collectives.groups):
            of_group = events[events["group"] == number]
            if len(of_group):
                first = np.unique(of_group["sequence"], return_index=True)[1]
                _, members = by_key.setdefault((group.name, group.backend), (group, []))
                members.append((place, of_group[first]))
    found = (_group(ranks, *of_key) for of_key in by_key.values())
    return [group for group in found if group is not None]


def _group(
    ranks: Sequence[RankData], group: ProcessGroup, members: list[tuple[int, NDArray[np.void]]]
) -> MatchedGroup | None:
    if len(members) < 2:
        return None
    common = members[0][1]["sequence"]
    for _, events in members[1:]:
        common = common[np.isin(common, events["sequence"], assume_unique=True)]
    common = common[-max(1, _MOST_EVENTS // len(members)) :]
    if not len(common):
        return None
    table = np.stack([events[np.searchsorted(events["sequence"], common)] for _, events in members])
    places = tuple(place for place, _ in members)
    first = ranks[places[0]]
    there = {ranks[place].rank for place in places}
    step_places, steps = _steps_of(first, table[0]["created_ns"])
    phases = np.full(len(common), -1, np.intp)
    inside = step_places >= 0
    phases[inside] = phases_at(first, step_places[inside], table[0]["created_ns"][inside])
    return MatchedGroup(
        group=group,
        places=places,
        is_whole=group.ranks is not None and set(group.ranks) <= there,
        events=table,
        first=first,
        path=phases,
        steps=steps,
    )


def _steps_of(
    rank: RankData, moments_ns: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return for each moment the place of its step in `RankData.steps`, and its index; -1 none."""
    if not len(rank.steps):
        return np.full(len(moments_ns), -1, np.intp), np.full(len(moments_ns), -1)
    ends_ns = rank.step_begin_ns + rank.step_ns
    places = np.minimum(np.searchsorted(ends_ns, moments_ns), len(ends_ns) - 1)
    inside = (rank.step_begin_ns[places] <= moments_ns) & (moments_ns <= ends_ns[places])
    return np.where(inside, places, -1), np.where(inside, rank.steps[places], -1)


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
