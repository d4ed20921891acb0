# SPDX-License-Identifier: Apache-2.0
"""How a rank is, or how it ended, from its file and from what could be seen of its process; and
which ranks ran on one machine, so that their clocks can be compared.

A recorder writes ten times a second whatever its program does. So a file that nobody writes any
more is of a process that is gone or stopped, and a fresh one whose steps don't end of a program
that hangs. What made a process go leaves no trace in its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.core.clocks import SAME_BOOT_NS, began_ns, booted_ns
from pyinstrument_gpu.core.condition import Condition, ProcessState, ProgramEnd
from pyinstrument_gpu.job.job import RankData

FRESH_NS = 2 * 10**9
"""Twenty times as long as a recorder needs to write again."""
LAG_NS = 300_000_000
"""The most that a file may be behind when its process ends: 100 ms, and as much again twice for a
machine that is busy."""
_LEAST_LONG_NS = 10**9
_LONG_WITHOUT_STEPS_NS = 10 * 10**9
_TIMES_P99 = 3


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


@dataclass(frozen=True)
class Sighting:
    """What could be seen of a rank when its file was read.

    Attributes:
        process: whether its process was there.
        silent_ns: how old its last sign of life was by the clock of its machine; None if that is
            another machine.
        is_writing: whether its file was seen to change.
    """

    process: ProcessState = ProcessState.UNKNOWN
    silent_ns: int | None = None
    is_writing: bool = False

    @property
    def is_fresh(self) -> bool:
        return self.is_writing or (self.silent_ns is not None and self.silent_ns < FRESH_NS)


def condition_of(rank: RankData, sighting: Sighting) -> Condition:
    """How the rank is. Of a rank whose file is fresh, and whose process can't be seen, it is taken
    that it lives."""
    if rank.complete:
        return ProgramEnd.of(rank.environment).condition
    if rank.end.error is not None:
        return Condition.UNWRITTEN
    if sighting.process is ProcessState.GONE:
        return Condition.CUT_OFF
    if sighting.process is ProcessState.STOPPED:
        return Condition.STOPPED
    if sighting.is_fresh:
        return Condition.HANGING if _hangs(rank) else Condition.RUNNING
    return Condition.SILENT if sighting.process is ProcessState.ALIVE else Condition.LOST


def long_ns(rank: RankData) -> int:
    """From when on it is long that nothing happens: three times what the slowest 1 % of its steps
    take, and at least a second; 10 s where no step is known."""
    if not len(rank.step_ns):
        return _LONG_WITHOUT_STEPS_NS
    return max(_LEAST_LONG_NS, int(_TIMES_P99 * np.quantile(rank.step_ns, 0.99)))


def stuck_ns(rank: RankData) -> int:
    """How long nothing had happened at its last sign of life: no step or innermost phase had begun,
    and no collective operation had been asked for."""
    end = rank.end
    moments = [0, end.path_begin_ns]
    if end.step is not None:
        moments += [end.step.begin_ns, end.step.end_ns]
    created_ns = rank.collectives.events["created_ns"]
    moments.append(int(created_ns.max(initial=0)))
    return max(0, rank.duration_ns - max(moments))


def open_stall(rank: RankData) -> Stall | None:
    """What its watchdog saw, if nothing has happened since; None otherwise."""
    stall = rank.stalls[-1] if rank.stalls else None
    return stall if stall is not None and stall.ended_ns is None else None


def _hangs(rank: RankData) -> bool:
    if open_stall(rank) is not None:
        return True
    # Of the first step nobody knows how long it should take.
    step = rank.end.step
    if step is None or not len(rank.step_ns):
        return False
    since_ns = step.begin_ns if rank.end.is_step_open else step.end_ns
    return rank.duration_ns - since_ns > max(_LONG_WITHOUT_STEPS_NS, long_ns(rank))
