# SPDX-License-Identifier: Apache-2.0
"""The times that are kept of a run, by the wall clock of its machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.rules.occasions import (
    CHECKPOINT_PHASES,
    EVALUATION_PHASES,
    MAX_SHARE,
)
from pyinstrument_gpu.aspects.checkpoints_and_logging import CHECKPOINT_KIND
from pyinstrument_gpu.aspects.startup.aspect import StartupTimes, startup_times
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, least_of
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.condition import Condition, ProcessState, ProgramEnd
from pyinstrument_gpu.core.file.items import STEP_ITEM
from pyinstrument_gpu.core.file.shared_page import MOST_STEPS
from pyinstrument_gpu.core.file.steps import step_columns
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.job.condition import LAG_NS, ProcessObservation, hanging_ns

_MOST_LOST = 100_000
"""Of the steps that are no longer in the history, so many have a row of their own."""
_LAST_NUMBER = 1 << 62


@dataclass(frozen=True, eq=False)
class RunTimes:
    """The times of a run, in nanoseconds since the epoch.

    Attributes:
        began_ns: when its process began; its recording, where that is not known.
        end_ns: its end, or its last heartbeat or step, or now if it goes on.
        steps: those that it has (`STEP_DTYPE`), the last perhaps cut off. The times of those that
            are no longer in the history are spread evenly.
        together: for how many steps the first row stands, of a run that lost very many; 0 where
            each row is one step. It is as long as these steps, without what was between them.
        is_done: by step, whether it was not cut off.
        numbers: pairs of a step's index and of its number in the whole training, as the program
            has told it, ascending.
        checkpoints, evaluations: rows of begin and end.
        hung_since_ns: since when nothing had happened any more; None if that is not so.
        startup: its parts; None where they are not known.
        ended: how; RUNNING if it goes on, and LOST if that can't be seen.
        not_kept: how many of the steps are no longer in the history.
        has_all_steps: whether those are there that ended behind the last heartbeat.
    """

    began_ns: int
    end_ns: int
    steps: NDArray[np.void]
    together: int
    is_done: NDArray[np.bool_]
    numbers: tuple[tuple[int, int], ...]
    checkpoints: NDArray[np.int64]
    evaluations: NDArray[np.int64]
    hung_since_ns: int | None
    startup: StartupTimes | None
    ended: Condition
    not_kept: int
    has_all_steps: bool

    def shifted(self, by_ns: int) -> RunTimes:
        """Return the same by a clock that is so much ahead."""
        steps = self.steps.copy()
        steps["begin_ns"] += by_ns
        steps["end_ns"] += by_ns
        hung_ns = self.hung_since_ns
        return replace(
            self,
            began_ns=self.began_ns + by_ns,
            end_ns=self.end_ns + by_ns,
            steps=steps,
            checkpoints=self.checkpoints + by_ns,
            evaluations=self.evaluations + by_ns,
            hung_since_ns=None if hung_ns is None else hung_ns + by_ns,
        )


def run_times(run: Run, seen: ProcessObservation, last_steps: bytes | None = None) -> RunTimes:
    """Return what is kept of a run that says when it began.

    Args:
        last_steps: as `shared_page.last_steps` has them.
        seen: what could be seen of its process.
    """
    end_ns, of_program = run.duration_ns, ProgramEnd.of(run.environment)
    lives = seen.process in (ProcessState.ALIVE, ProcessState.STOPPED)
    ended = Condition.CUT_OFF
    if run.complete:
        ended = of_program.condition
    elif run.error is not None:
        ended = Condition.UNWRITTEN
    elif lives or (seen.process == ProcessState.UNKNOWN and seen.is_fresh):
        ended = Condition.RUNNING
        end_ns += seen.silent_ns or 0
    elif seen.process == ProcessState.UNKNOWN:
        ended = Condition.LOST
    steps, not_kept, together = _all_steps(run)
    has_all_steps = run.complete
    if last_steps is not None:
        steps, has_all_steps = _with_last_steps(steps, last_steps)
        end_ns = max(end_ns, int(steps["end_ns"].max(initial=0)))
    is_done = np.ones(len(steps), bool)
    if len(steps) and not steps["complete"][-1]:
        # One that `break` has left is done; one that an exception has left is not.
        is_done[-1] = steps["end_ns"][-1] >= 0 and not of_program.has_failed
    steps["end_ns"] = np.where(steps["end_ns"] < 0, end_ns, steps["end_ns"])
    since_ns = None if run.complete and not of_program.has_failed else _hung_since_ns(run, steps)
    monotonic_ns = began_ns(run.environment.get("anchor", run.anchor), "monotonic_ns")
    process_ns, before_ns = run.environment.get("process_ns"), 0
    if process_ns is not None and monotonic_ns is not None:
        before_ns = max(0, monotonic_ns - process_ns)
    found = RunTimes(
        began_ns=-before_ns,
        end_ns=end_ns,
        steps=steps,
        together=together,
        is_done=is_done,
        numbers=_numbers(run, steps, together),
        checkpoints=_checkpoints(run, steps),
        evaluations=_evaluations(run, steps, together),
        hung_since_ns=since_ns,
        startup=startup_times(run),
        ended=ended,
        not_kept=not_kept,
        has_all_steps=has_all_steps,
    )
    return found.shifted(run.began_realtime_ns or 0)


def _all_steps(run: Run) -> tuple[NDArray[np.void], int, int]:
    """The steps, with those that are no longer in the history before them, the number of these, and
    for how many of them the first row stands. Of these it is known how long they took together, and
    perhaps when the first one began."""
    kept = run.steps.array
    lost = int(kept["index"][0]) if len(kept) else 0
    if not lost:
        return kept.copy(), 0, 0
    closed, end_ns = run.steps.closed, int(kept["begin_ns"][0])
    total_ns = run.step_totals.duration.total_ns + run.profiled_totals.duration.total_ns
    lost_ns = max(0, total_ns - int(durations_ns_of(closed).sum()))
    zero_ns = began_ns(run.environment.get("anchor", run.anchor), "monotonic_ns")
    begin_ns = end_ns - lost_ns
    if run.startup is not None and run.startup.first_step_ns is not None and zero_ns is not None:
        begin_ns = min(begin_ns, run.startup.first_step_ns - zero_ns)
    begin_ns = max(0, begin_ns)
    # How many were lost is a number in the file, and may be any.
    together = max(0, lost - _MOST_LOST)
    next_ns = begin_ns + (end_ns - begin_ns) * together // lost
    before = np.zeros(lost - together, STEP_DTYPE)
    before["index"] = np.arange(together, lost)
    before["begin_ns"] = np.linspace(next_ns, end_ns, len(before), endpoint=False)
    before["end_ns"] = np.minimum(before["begin_ns"] + lost_ns // lost, end_ns)
    first = np.zeros(min(1, together), STEP_DTYPE)
    first["begin_ns"] = begin_ns
    first["end_ns"] = min(begin_ns + lost_ns * together // lost, next_ns)
    before = np.concatenate([first, before])
    before["complete"], before["thread"] = True, kept["thread"][0]
    return np.concatenate([before, kept]), lost, together


def _with_last_steps(steps: NDArray[np.void], last_steps: bytes) -> tuple[NDArray[np.void], bool]:
    """The steps with those of the page that ended later, and whether these are all. None are added
    if the oldest in the page did: others may lie between."""
    newest = np.frombuffer(last_steps, STEP_ITEM)
    closed = steps[steps["end_ns"] >= 0]
    newest = newest[newest["end_ns"] > closed["end_ns"].max(initial=-1)]
    if not 0 < len(newest) < MOST_STEPS:
        return steps, not len(newest)
    index = int(closed["index"].max(initial=-1)) + 1 + np.arange(len(newest))
    return np.concatenate([closed, step_columns(newest, index)]), True


def _hung_since_ns(run: Run, steps: NDArray[np.void]) -> int | None:
    """Return since when it hung, by its watchdog, or else by the program's last activity."""
    closed = run.steps.closed
    done_ns = int(steps["end_ns"][steps["complete"]].max(initial=-1))
    for stall in run.stalls:
        if stall.since_ns >= done_ns:
            # The watchdog looks ten times a second. What happened last is known better, if it is a
            # step or a phase.
            moments = [steps["begin_ns"], run.spans["host_end_ns"]]
            moments.append(np.array([one.begin_ns for one in run.open_phases], np.int64))
            last_ns = max(int(times.max(initial=done_ns)) for times in moments)
            return last_ns if 0 <= stall.since_ns - last_ns < LAG_NS else stall.since_ns
    if run.complete or run.environment.get("watchdog_ns", 0) > 0:
        return None
    since_ns = max(run.active_ns, done_ns)
    limit_ns = hanging_ns(closed["index"], durations_ns_of(closed))
    return since_ns if run.duration_ns - since_ns > limit_ns else None


def _numbers(run: Run, steps: NDArray[np.void], together: int) -> tuple[tuple[int, int], ...]:
    found, begins_ns = [], steps["begin_ns"]
    for place, noted in enumerate(run.environment.get("step_numbers", ())):
        # It was told before the step. The first time it was before any.
        at = int(np.searchsorted(begins_ns, noted["at_ns"])) if place else 0
        if at < len(steps):
            index = int(steps["index"][at])
            if together and at == 1:
                first_ns, next_ns = map(int, begins_ns[:2])
                # Rounded up, as by the search.
                index = -((first_ns - noted["at_ns"]) * together // (next_ns - first_ns))
            found.append((index, min(noted["number"], _LAST_NUMBER)))
    return tuple(found)


def _named(run: Run, names: tuple[str, ...], steps: NDArray[np.void]) -> NDArray[np.int64]:
    """The times of phases with these names on threads that have steps, as rows of begin and end;
    those that had not ended until the file does."""
    threads, spans = distinct(steps["thread"]), run.spans

    def is_named(name: str) -> bool:
        return name.rstrip("0123456789 ").lower() in names

    are_named = [is_named(run.names[name]) for name in run.path_names]
    spans = spans[np.array([*are_named, False])[spans["path"]]]
    spans = spans[np.isin(spans["thread"], threads)]
    are_open = [
        (one.begin_ns, run.duration_ns)
        for one in run.open_phases
        if one.thread in threads and is_named(one.path.rpartition("/")[2])
    ]
    closed = np.stack([spans["host_begin_ns"], spans["host_end_ns"]], 1)
    return np.concatenate([closed, np.array(are_open, np.int64).reshape(-1, 2)])


def _checkpoints(run: Run, steps: NDArray[np.void]) -> NDArray[np.int64]:
    """Phases of that name, and calls that write one, as far as the loop waits for them."""
    calls, _ = run.noted_causes.of_kind(CHECKPOINT_KIND)
    calls = calls[np.isin(calls["thread"], distinct(steps["thread"]))]
    of_calls = np.stack([calls["begin_ns"], calls["end_ns"]], 1)
    return np.concatenate([_named(run, CHECKPOINT_PHASES, steps), of_calls])


def counts_of_rows(rows: int, together: int) -> NDArray[np.int64]:
    """Return for how many steps each row stands."""
    counts = np.ones(rows, np.int64)
    counts[:1] = max(1, together)
    return counts


def begun_steps(
    begins_ns: NDArray[np.int64],
    ends_ns: NDArray[np.int64],
    counts: NDArray[np.int64],
    times_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how many steps had begun by each time, and whether the last of them went on. Where a
    row stands for several, they are evenly spread."""
    row = np.searchsorted(begins_ns, times_ns, side="right") - 1
    is_after = row >= 0
    if not is_after.any():
        return np.zeros(len(times_ns), np.int64), is_after
    row = np.maximum(row, 0)
    count, since_ns = counts[row], times_ns - begins_ns[row]
    each_ns = np.maximum(np.append(begins_ns[1:], ends_ns[-1:])[row] - begins_ns[row], 1) / count
    passed = np.where(count > 1, np.minimum(since_ns // each_ns, count - 1), 0).astype(np.int64)
    length_ns = (ends_ns - begins_ns)[row] / count
    begun = np.append(0, np.cumsum(counts))[row] + passed + 1
    return np.where(is_after, begun, 0), is_after & (since_ns - passed * each_ns < length_ns)


def _evaluations(run: Run, steps: NDArray[np.void], together: int) -> NDArray[np.int64]:
    """Return evaluations between two steps, and in a step, from the begin of the first such phase
    to the end of the last. Where most steps have one it is a part of the step."""
    rows = _named(run, EVALUATION_PHASES, steps)
    counts = counts_of_rows(len(steps), together)
    begun, in_step = begun_steps(steps["begin_ns"], steps["end_ns"], counts, rows[:, 0])
    if len(distinct(begun[in_step])) > MAX_SHARE * counts.sum():
        rows, begun, in_step = rows[~in_step], begun[~in_step], in_step[~in_step]
    keys = 2 * begun + in_step
    places = distinct(keys)
    place = np.searchsorted(places, keys)
    begins_ns = least_of(place, rows[:, 0], len(places))
    ends_ns = -least_of(place, -rows[:, 1], len(places))
    return np.stack([begins_ns, ends_ns], 1)
