# SPDX-License-Identifier: Apache-2.0
"""Ranks that may be slow together: those of a machine, those of a process group, and others that
are as far from the rest as these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.joined import Joined

_LEAST_TIMES = 3
_MOST_STEPS = 1000
_FARTHER = 3.0
"""So many times as far as the next one is each of them from the median of the others,"""
_ALIKE = 0.5
"""and at least so far as the farthest of them, as a share."""


@dataclass(frozen=True)
class Suspect:
    """A rank, or several that may be slow together.

    Attributes:
        places: of the ranks, among those that were joined.
        host: the machine of which they are all ranks; None if they are one, or not such.
        group: what the process group is called of which they are all ranks; None likewise.
    """

    places: tuple[int, ...]
    host: str | None = None
    group: str | None = None


def apart(suspect: Suspect, ranks: int) -> list[Suspect]:
    """The suspect, and each of the others alone."""
    others = sorted(set(range(ranks)) - {*suspect.places})
    return [suspect, *(Suspect((place,)) for place in others)]


def suspects(
    joined: Joined, shift_ns: NDArray[np.float64], steps_ns: NDArray[np.float64]
) -> Iterator[Suspect]:
    """Ranks that are late together: usually, or in several steps.

    Args:
        shift_ns: by rank, how late it usually is.
        steps_ns: by rank and step, what it works in the steps that stand out.
    """
    sets = _Sets(joined)
    usually = [*sets.around(shift_ns), *_by_largest_gap(shift_ns)]
    yield from usually
    found = Counter(one for step_ns in steps_ns.T[:_MOST_STEPS] for one in sets.around(step_ns))
    for one, times in found.most_common():
        if times >= _LEAST_TIMES and one not in usually:
            yield one


class _Sets:
    """The machines and process groups of a job's ranks."""

    def __init__(self, joined: Joined) -> None:
        self._ranks = len(joined.ranks)
        place_of = {rank.rank: place for place, rank in enumerate(joined.ranks)}
        hosts: dict[str, list[int]] = {}
        groups: dict[tuple[int, ...], str] = {}
        for place, rank in enumerate(joined.ranks):
            host = rank.environment.get("host")
            if host is not None:
                hosts.setdefault(host, []).append(place)
            for group in rank.collectives.groups:
                if group.ranks is not None and len(group.ranks) < self._ranks:
                    members = tuple(place_of[one] for one in group.ranks if one in place_of)
                    groups.setdefault(members, group.label)
        found = [Suspect(tuple(places), host=host) for host, places in hosts.items()]
        taken = {one.places for one in found}
        found += [
            Suspect(places, group=label) for places, label in groups.items() if places not in taken
        ]
        self._of_place: dict[int, list[Suspect]] = {}
        for one in found:
            if 1 < len(one.places) <= self._ranks / 2:
                for place in one.places:
                    self._of_place.setdefault(place, []).append(one)

    def around(self, late_ns: NDArray[np.float64]) -> Iterator[Suspect]:
        """Yield those with the latest rank whose ranks are all late, and no other is."""
        for one in self._of_place.get(int(np.argmax(late_ns)), []):
            if _are_late(late_ns, one.places):
                yield one


def _are_late(late_ns: NDArray[np.float64], places: tuple[int, ...]) -> bool:
    others_ns = np.delete(late_ns, places)
    center_ns = np.median(others_ns)
    these_ns, next_ns = late_ns[[*places]] - center_ns, float((others_ns - center_ns).max())
    least_ns, most_ns = float(these_ns.min()), float(these_ns.max())
    return least_ns > _FARTHER * next_ns and least_ns > _ALIKE * most_ns > 0


def _by_largest_gap(shift_ns: NDArray[np.float64]) -> Iterator[Suspect]:
    """The latest ranks, if they are far from the others."""
    order = np.argsort(-shift_ns)
    half = len(order) // 2
    gaps_ns = -np.diff(shift_ns[order])[1:half]
    if len(gaps_ns):
        places = tuple(sorted(order[: int(np.argmax(gaps_ns)) + 2].tolist()))
        if _are_late(shift_ns, places):
            yield Suspect(places)
