# SPDX-License-Identifier: Apache-2.0
"""The collective operations of all ranks, matched by process group and number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import ProcessGroup
from pyinstrument_gpu.job.arrivals import phases_at
from pyinstrument_gpu.job.data import RankData

_SYMMETRIC = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_MOST_EVENTS = 4_000_000


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
        """Of each operation whether no rank can be done before all have asked."""
        are_symmetric = [is_symmetric(name) for name in self.first.collectives.operations]
        found: NDArray[np.bool_] = np.array(are_symmetric, bool)[self.events["operation"][0]]
        return found


def is_symmetric(operation: str) -> bool:
    """Whether no rank can be done with it before all have asked: not so where one rank sends."""
    plain = operation.replace("_", "").lower()
    return any(name in plain for name in _SYMMETRIC)


def matched(ranks: Sequence[RankData]) -> list[MatchedGroup]:
    """Point-to-point operations are left out. Of very many the newest are matched."""
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
    """For each moment the place of its step in `RankData.steps`, and its index; -1 none."""
    if not len(rank.steps):
        return np.full(len(moments_ns), -1, np.intp), np.full(len(moments_ns), -1)
    ends_ns = rank.step_begin_ns + rank.step_ns
    places = np.minimum(np.searchsorted(ends_ns, moments_ns), len(ends_ns) - 1)
    inside = (rank.step_begin_ns[places] <= moments_ns) & (moments_ns <= ends_ns[places])
    return np.where(inside, places, -1), np.where(inside, rank.steps[places], -1)
