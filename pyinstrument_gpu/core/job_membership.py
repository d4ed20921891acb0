# SPDX-License-Identifier: Apache-2.0
"""Checks of which runs belong together: whether one is given twice, and which are not one job's.

Only what is certain counts. A run file need not say which job it is from, so runs that pass all
checks here may still be from several jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Protocol

from pyinstrument_gpu.core.clocks import began_ns

_LONGEST_WAIT_NS = 30 * 60 * 10**9
"""The longer of the times that the process groups of torch wait by default (NCCL's: 10 minutes,
Gloo's: 30). Ranks of a job that begin later than that after one another have lost each other."""


class Recorded(Protocol):
    """A record of which job a run is from: a `Run`, or what was kept of it as a `RankData`."""

    @property
    def environment(self) -> Mapping[str, Any]: ...

    @property
    def began_realtime_ns(self) -> int | None: ...

    @property
    def duration_ns(self) -> int: ...


def is_of_a_job(run: Recorded) -> bool:
    """Return whether the run is of a rank of a job of several."""
    return "rank" in run.environment and run.environment.get("world_size", 1) > 1


def program_of(run: Recorded) -> str | None:
    """Return the name of the program's file, without its folder; None if it is not known."""
    arguments = run.environment.get("arguments")
    return os.path.basename(arguments[0]) if arguments else None


def same_run_twice(runs: Sequence[Recorded], names: Sequence[str]) -> str | None:
    """Return in words which of the runs, called by these names, are one and the same; None if none
    are known to be."""
    run_ids = [run.environment.get("run_id") for run in runs]
    same = _first_two_alike(names, run_ids)
    return None if same is None else f"{same[0]} and {same[1]} are the same run: give it once"


def not_one_job(runs: Sequence[Recorded], names: Sequence[str]) -> str | None:
    """Return in words which of the runs can't be ranks of the same job; None if none are known.

    Ranks of a job agree on how many they are, on the name of their program, and on the launcher's
    id, which all or none of them have. They are different ranks, and on one machine none ends long
    before another begins, nor at all where torchrun has restarted them in between. Runs that are no
    ranks of a job of several are not looked at.
    """
    named = [
        (name, run)
        for name, run in zip(names, runs, strict=True)
        if run.environment.get("world_size", 1) > 1
    ]
    names, runs = [name for name, _ in named], [run for _, run in named]

    def facts(key: str, unknown: str | None = None) -> list[Any]:
        return [run.environment.get(key, unknown) for run in runs]

    for values, what in (
        (facts("world_size"), "numbers of ranks"),
        (facts("job", "none"), "run ids"),
        (facts("slurm_job", "none"), "Slurm jobs"),
        ([program_of(run) for run in runs], "programs"),
    ):
        unlike = _first_two_unlike(names, values)
        if unlike is not None:
            name, other, value, other_value = unlike
            return _apart(name, other, f"the {what} differ ({value} and {other_value})")
    alike = _first_two_alike(names, facts("rank"))
    if alike is not None:
        return _apart(*alike, "both have the same rank")
    by_host: dict[str, list[tuple[str, Recorded]]] = {}
    for name, run in named:
        if run.environment.get("host") is not None:
            by_host.setdefault(run.environment["host"], []).append((name, run))
    for here in by_host.values():
        ended, began = _first_to_end(here), _last_to_begin(here)
        if _had_ended(ended[1], began[1]):
            return _apart(ended[0], began[0], "the first had ended long before the other began")
        by_restarts: dict[int, list[tuple[str, Recorded]]] = {}
        for name, run in here:
            restarts = run.environment.get("restarts")
            if restarts is not None:
                by_restarts.setdefault(restarts, []).append((name, run))
        for before, after in permutations(by_restarts.values(), 2):
            # Two agents of one machine may count apart from each other, while their ranks overlap.
            ended, began = _first_to_end(before), _last_to_begin(after)
            if _had_ended(ended[1], began[1], before_ns=0):
                return _apart(ended[0], began[0], "torchrun restarted the ranks in between")
    return None


def different_ranks(runs: Sequence[Recorded], names: Sequence[str]) -> str | None:
    """Return in words which of the runs are different ranks of jobs of several; None if none are
    known to be."""
    ranks = [
        run.environment.get("rank") if run.environment.get("world_size", 1) > 1 else None
        for run in runs
    ]
    found = _first_two_unlike(names, ranks)
    return None if found is None else "{0} is of rank {2}, and {1} of rank {3}".format(*found)


def _first_to_end(named: Sequence[tuple[str, Recorded]]) -> tuple[str, Recorded]:
    return min(named, key=lambda one: (one[1].began_realtime_ns or 0) + one[1].duration_ns)


def _last_to_begin(named: Sequence[tuple[str, Recorded]]) -> tuple[str, Recorded]:
    return max(named, key=lambda one: one[1].began_realtime_ns or 0)


def _apart(name: str, other: str, reason: str) -> str:
    return f"{name} and {other} are not two ranks of one job: {reason}"


def _first_two_unlike(
    names: Sequence[str], values: Sequence[Any]
) -> tuple[str, str, Any, Any] | None:
    """The first that is known and the first that differs from it: their names, then their
    values."""
    known = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    for name, value in known[1:]:
        if value != known[0][1]:
            return known[0][0], name, known[0][1], value
    return None


def _first_two_alike(names: Sequence[str], values: Sequence[Any]) -> tuple[str, str] | None:
    """The names of the first two that have the same value, None aside."""
    seen: dict[Any, str] = {}
    for name, value in zip(names, values, strict=True):
        if value is not None and value in seen:
            return seen[value], name
        seen[value] = name
    return None


def _had_ended(run: Recorded, other: Recorded, before_ns: int = _LONGEST_WAIT_NS) -> bool:
    """Return whether by both clocks of a machine a run had ended that long before the other began.
    The wall clock may have been set in between, and the monotonic one restarts when the machine
    does."""
    return all(
        begin_ns is not None
        and other_ns is not None
        and begin_ns + run.duration_ns + before_ns < other_ns
        for begin_ns, other_ns in zip(_begins_ns(run), _begins_ns(other), strict=True)
    )


def _begins_ns(run: Recorded) -> tuple[int | None, int | None]:
    return run.began_realtime_ns, began_ns(run.environment.get("anchor", {}), "monotonic_ns")
