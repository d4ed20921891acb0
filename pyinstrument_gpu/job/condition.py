# SPDX-License-Identifier: Apache-2.0
"""The condition of a rank, or how it ended, from its file and from what could be seen of its
process; and which ranks ran on one machine, so that their clocks can be compared.

A recorder writes ten times a second whatever its program does. So a file that nobody writes any
more is of a process that is gone or stopped, and a fresh one in which nothing happens of a program
that hangs. What made a process go leaves no trace in its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.core.clocks import SAME_BOOT_NS, began_ns, booted_ns
from pyinstrument_gpu.core.condition import Condition, ProcessState, ProgramEnd
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.job.job import RankData

FRESH_NS = 2 * 10**9
"""Twenty times as long as a recorder needs to write again."""
LAG_NS = 300_000_000
"""The most that a file may be behind when its process ends: 100 ms, and as much again twice for a
machine that is busy."""
FIRST_STEPS = 10
"""In these programs are compiled, memory is allocated and caches are filled: they say little of how
long later ones take."""
CLOCK_ERROR_NS = 10_000_000
"""By how much the times of two runs may be wrong next to each other, on one machine."""
_LEAST_LONG_NS = 10**9
LEAST_HANGING_NS = 10 * 10**9
_LEAST_HANGING_AT_START_NS = 90 * 10**9
_TIMES_P99 = 3


def machines_of(ranks: Iterable[RankData], most_apart_ns: int = SAME_BOOT_NS) -> dict[int, int]:
    """Return by rank a number of its machine; without those of which it is not known.

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


def monotonic_ns(rank: RankData, moment_ns: int) -> int | None:
    """Return a moment of its run by the monotonic clock of its machine; None unknown."""
    run_began_ns = began_ns(_anchor(rank), "monotonic_ns")
    return None if run_began_ns is None else run_began_ns + moment_ns


def monotonic_end_ns(rank: RankData) -> int | None:
    """Return its last heartbeat, by the monotonic clock of its machine; None unknown."""
    return monotonic_ns(rank, rank.duration_ns)


def _anchor(rank: RankData) -> Mapping[str, int]:
    anchor: Mapping[str, int] = rank.end.anchor or rank.environment.get("anchor", {})
    return anchor


@dataclass(frozen=True)
class ProcessObservation:
    """An observation of a rank when its file was read.

    Attributes:
        process: whether its process was there.
        silent_ns: how old its last heartbeat was by the clock of its machine; None if that is
            another machine.
        is_writing: whether its file was seen to change.
    """

    process: ProcessState = ProcessState.UNKNOWN
    silent_ns: int | None = None
    is_writing: bool = False

    @property
    def is_fresh(self) -> bool:
        return self.is_writing or (self.silent_ns is not None and self.silent_ns < FRESH_NS)


def condition_of(rank: RankData, observation: ProcessObservation) -> Condition:
    """Return the condition of the rank. One whose file is fresh, and whose process can't be seen,
    is assumed to live."""
    if rank.complete:
        return ProgramEnd.of(rank.environment).condition
    if rank.end.error is not None:
        return Condition.UNWRITTEN
    if observation.process is ProcessState.GONE:
        return Condition.CUT_OFF
    if observation.process is ProcessState.STOPPED:
        return Condition.STOPPED
    if observation.is_fresh:
        return Condition.HANGING if _hangs(rank) else Condition.RUNNING
    return Condition.SILENT if observation.process is ProcessState.ALIVE else Condition.LOST


def long_ns(rank: RankData) -> int:
    """Return from when on it is long to wait for others: three times what the slowest 1 % of its
    steps take, and at least a second; 10 s where no step is known."""
    steps, step_ns = rank.steps, rank.step_ns
    last = rank.end.step
    if last is not None and not last.complete:
        # It may have waited in the step that an exception has cut short.
        step_ns, steps = step_ns[steps != last.index], steps[steps != last.index]
    if not len(step_ns):
        return LEAST_HANGING_NS
    return max(_LEAST_LONG_NS, _usual_long_ns(steps, step_ns))


def hanging_ns(steps: NDArray[np.int64], step_ns: NDArray[np.int64]) -> int:
    """Return for how long a program has to do nothing to be called hanging where its watchdog has
    said nothing.

    Args:
        steps: indices of steps that ended.
        step_ns: how long they took.
    """
    if not len(steps) or steps[-1] + 1 < FIRST_STEPS:
        return max(_LEAST_HANGING_AT_START_NS, _usual_long_ns(steps, step_ns))
    return max(LEAST_HANGING_NS, _usual_long_ns(steps, step_ns))


def _usual_long_ns(steps: NDArray[np.int64], step_ns: NDArray[np.int64]) -> int:
    later_ns = step_ns[steps >= FIRST_STEPS]
    if len(later_ns):
        return int(_TIMES_P99 * np.quantile(later_ns, 0.99))
    return int(_TIMES_P99 * np.median(step_ns)) if len(step_ns) else 0


def idle_ns(rank: RankData) -> int:
    """Return how long its program had done nothing at its last heartbeat, CPU time included."""
    return min(stuck_ns(rank), max(0, rank.duration_ns - rank.end.active_ns))


def waited_until_ns(rank: RankData) -> int:
    """Return until when it may have waited for others: until its last heartbeat, or until it gave
    up and an exception left its step."""
    step = rank.end.step
    return step.end_ns if step is not None and gave_up_in_step(rank) else rank.duration_ns


def gave_up_in_step(rank: RankData) -> bool:
    """Return whether its last step was left by an exception that says that another rank did not
    answer."""
    return lost_peer(rank) and was_cut_short(rank)


def lost_peer(rank: RankData) -> bool:
    """Return whether its program ended because another rank did not answer."""
    return ProgramEnd.of(rank.environment).lost_peer


def was_cut_short(rank: RankData) -> bool:
    """Return whether its last step was left by an exception or a break."""
    step = rank.end.step
    is_cut_short = step is not None and step.end_ns >= 0 and not step.complete
    return is_cut_short or rank.end.left_step_ns >= 0


def stuck_ns(rank: RankData) -> int:
    """Return how long nothing had happened that is in its file at its last heartbeat, or when it
    gave up: no step or innermost phase had begun, no collective operation had been asked for, and
    its watchdog had seen nothing else."""
    end, stall, until_ns = rank.end, open_stall(rank), waited_until_ns(rank)
    moments = [0, end.path_begin_ns, 0 if stall is None else stall.since_ns]
    if end.step is not None:
        moments += [end.step.begin_ns, 0 if gave_up_in_step(rank) else end.step.end_ns]
    created_ns = rank.collectives.events["created_ns"]
    moments.append(int(created_ns.max(initial=0)))
    return max(0, until_ns - max(moments))


def open_stall(of: RankData | Run) -> Stall | None:
    """Return what its watchdog saw, if nothing has happened since, or only that it gave up; None
    otherwise."""
    stall = of.stalls[-1] if of.stalls else None
    if stall is None or stall.ended_ns is None:
        return stall
    if isinstance(of, Run) or not lost_peer(of):
        return None
    return stall if stall.ended_ns >= waited_until_ns(of) else None


def _hangs(rank: RankData) -> bool:
    if open_stall(rank) is not None:
        return True
    # A watchdog also looks at stacks, and says so by itself.
    is_watched = rank.environment.get("watchdog_ns", 0) > 0
    return not is_watched and idle_ns(rank) > hanging_ns(rank.steps, rank.step_ns)
