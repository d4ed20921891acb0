# SPDX-License-Identifier: Apache-2.0
"""Which ranks ran on one machine, so that their clocks can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyinstrument_gpu.core.anchor import SAME_BOOT_NS, began_ns, booted_ns
from pyinstrument_gpu.job.data import RankData


def machines_of(ranks: Iterable[RankData], most_apart_ns: int = SAME_BOOT_NS) -> dict[int, int]:
    """By rank a number of its machine; without those of which it is not known.

    Ranks ran on one machine since it was started if its name is the same, and so is the moment at
    which the monotonic clock began, within `most_apart_ns`: a wall clock may have been set since.
    """
    booted: dict[str, list[tuple[int, int]]] = {}
    found = {}
    count = 0
    for rank in ranks:
        host, its_ns = rank.environment.get("host"), booted_ns(_anchor(rank))
        if host is None or its_ns is None:
            continue
        machines = booted.setdefault(host, [])
        number = next((n for at_ns, n in machines if abs(at_ns - its_ns) < most_apart_ns), None)
        if number is None:
            number = count
            machines.append((its_ns, number))
            count += 1
        found[rank.rank] = number
    return found


def monotonic_end_ns(rank: RankData) -> int | None:
    """Its last sign of life, by the monotonic clock of its machine; None unknown."""
    run_began_ns = began_ns(_anchor(rank), "monotonic_ns")
    return None if run_began_ns is None else run_began_ns + rank.duration_ns


def _anchor(rank: RankData) -> Mapping[str, int]:
    anchor: Mapping[str, int] = rank.end.anchor or rank.environment.get("anchor", {})
    return anchor
