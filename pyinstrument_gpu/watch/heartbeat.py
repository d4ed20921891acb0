# SPDX-License-Identifier: Apache-2.0
"""The condition of a recording in words: whether it goes on, where it is, or where it stopped.

The recorder has a thread of its own, which writes ten times a second whatever the program does. So
a fresh file in which nothing happens is of a program that hangs, and an old file of a process that
is gone or stopped, or whose recorder can't write. Which of these it is says /proc, if the program
runs on this machine. Otherwise nothing is claimed but for how long the file has not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.condition import Condition, ProcessState, ProgramEnd
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.job.condition import (
    FRESH_NS,
    LEAST_HANGING_NS,
    ProcessObservation,
    hanging_ns,
    open_stall,
)
from pyinstrument_gpu.job.gather import innermost_phase
from pyinstrument_gpu.job.overdue import overdue_words
from pyinstrument_gpu.parts.words import time_text


@dataclass(frozen=True)
class Heartbeat:
    """The condition of a recording.

    Attributes:
        condition: in one word.
        words: in a sentence.
        age_ns: how old the last heartbeat is; None if that is not known.
        is_age_at_least: whether it may be older, because its machine's clock can't be compared with
            ours, and this is how long it has been seen not to change.
    """

    condition: Condition
    words: str
    age_ns: int | None
    is_age_at_least: bool


def heartbeat(
    run: Run,
    state: State,
    observation: ProcessObservation,
    *,
    unchanged_ns: int,
    has_changed: bool,
    lost: str | None = None,
) -> Heartbeat:
    """Return the condition of a recording.

    Args:
        observation: of its process.
        unchanged_ns: how long it has been seen not to change.
        has_changed: whether it has been seen to change before that.
        lost: what has become of its file, as in `RunFollower`.
    """
    process = observation.process
    is_at_least = observation.silent_ns is None
    known_ns = unchanged_ns if observation.silent_ns is None else observation.silent_ns
    is_fresh = known_ns < FRESH_NS and (has_changed or not is_at_least)
    condition = _condition(run, state, known_ns, is_fresh, process)
    ago = ("at least " if is_at_least else "") + time_text(known_ns)
    place = place_of(run)
    pid = run.environment.get("pid")
    its_process = "its process" if pid is None else f"its process {pid}"
    if state.final:
        when = _at(state) if is_at_least else f" {ago} ago"
        words = f"{condition.value}{when}"
        exception = ProgramEnd.of(run.environment).exception
        words += "" if exception is None else f": {exception}"
    elif condition is Condition.UNWRITTEN:
        words = f"the recording failed {ago} ago: {state.error}; the program may go on"
    elif condition is Condition.RUNNING:
        overdue = _overdue(run, known_ns)
        words = f"running {place}" + ("" if overdue is None else f": {overdue}")
    elif condition is Condition.HANGING:
        words = f"nothing has happened for {time_text(_idle_ns(run, known_ns))}: {place}"
    elif condition is Condition.CUT_OFF:
        words = f"stopped {ago} ago {place}: {its_process} is gone"
    elif condition in (Condition.SILENT, Condition.STOPPED):
        why = (
            "is stopped by a signal"
            if process is ProcessState.STOPPED
            else "is alive, but its recorder does not write"
        )
        words = f"silent for {ago} {place}: {its_process} {why}"
    elif known_ns < FRESH_NS:
        words = f"last heartbeat{_at(state)}, {place}; on another machine, so its age is unknown"
    else:
        words = (
            f"no heartbeat for {ago}, last {place}; whether its process lives can't be seen "
            "from here"
        )
    if lost is not None:
        words += f" ({lost})"
    is_known = not is_at_least or is_fresh or known_ns >= FRESH_NS
    return Heartbeat(condition, words, known_ns if is_known else None, is_at_least)


def _condition(
    run: Run, state: State, known_ns: int, is_fresh: bool, process: ProcessState
) -> Condition:
    if state.final:
        return ProgramEnd.of(run.environment).condition
    if is_fresh:
        return Condition.HANGING if _hangs(run, known_ns) else Condition.RUNNING
    if process is ProcessState.GONE:
        return Condition.CUT_OFF
    if state.error is not None:
        return Condition.UNWRITTEN
    if process is ProcessState.UNKNOWN:
        return Condition.LOST
    if process is ProcessState.STOPPED:
        return Condition.STOPPED
    return Condition.SILENT


def _hangs(run: Run, age_ns: int) -> bool:
    if open_stall(run) is not None or run.environment.get("watchdog_ns", 0) > 0:
        return open_stall(run) is not None
    idle_ns, steps = _idle_ns(run, age_ns), run.steps.closed
    return idle_ns > LEAST_HANGING_NS and idle_ns > hanging_ns(
        steps["index"], durations_ns_of(steps)
    )


def _overdue(run: Run, age_ns: int) -> str | None:
    closed = run.steps.closed
    return overdue_words(
        run.steps[-1] if len(run.steps) else None,
        durations_ns_of(closed),
        run.duration_ns + age_ns,
    )


def _idle_ns(run: Run, age_ns: int) -> int:
    """Return how long the program has done nothing; what its watchdog has seen is the longest."""
    stall, phase = open_stall(run), innermost_phase(run)
    moments = [run.active_ns if stall is None else stall.since_ns]
    moments += [one.begin_ns for one in (run.open_step, phase) if one is not None]
    moments += run.steps.closed["end_ns"][-1:].tolist()
    return max(0, run.duration_ns + age_ns - max(moments))


def place_of(run: Run) -> str:
    """Return where the program was last seen: "in backward/allreduce, step 1812"."""
    step, innermost = run.open_step, innermost_phase(run)
    closed = run.steps.closed["index"]
    if step is not None:
        where = f"step {step.index}"
        return f"in {where}" if innermost is None else f"in {innermost.path}, {where}"
    after = f"after step {closed[-1]}" if len(closed) else "before the first step"
    return after if innermost is None else f"in {innermost.path}, {after}"


def _at(state: State) -> str:
    realtime_ns = state.anchor.get("realtime_ns")
    if realtime_ns is None or not 0 < realtime_ns < 1 << 62:
        return ""
    moment = datetime.fromtimestamp(realtime_ns // 10**9, timezone.utc)
    return f" at {moment:%Y-%m-%d %H:%M:%S} UTC by its own clock"
