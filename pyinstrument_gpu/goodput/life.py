# SPDX-License-Identifier: Apache-2.0
"""The life of a job: its attempts, and the division of its wall time.

The wall time goes from the begin of the first process to now, or to the last heartbeat of a job
that has ended. A step of the job goes on from when the first rank begins it until the last one ends
it, and is done once any rank is through: no rank can be before all have done their part of it. In a
report it has the number that it has in the whole training, whichever attempt computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.contention import CONTENTION
from pyinstrument_gpu.analysis.intervals import interval_at, joined
from pyinstrument_gpu.aspects.startup.aspect import StartupPart
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, least_of
from pyinstrument_gpu.core.condition import Condition, ProcessState
from pyinstrument_gpu.core.file.attempts import AttemptFiles
from pyinstrument_gpu.core.file.shared_page import last_steps
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.goodput.attempts import clock_notes, joined_by, newest_job
from pyinstrument_gpu.goodput.division import (
    Bucket,
    Division,
    covered_ns,
    divided,
    end_of_cover_ns,
)
from pyinstrument_gpu.goodput.run_times import RunTimes, begun_steps, counts_of_rows, run_times
from pyinstrument_gpu.job import analysis
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.gather import job_of, rank_data
from pyinstrument_gpu.job.job import RankData
from pyinstrument_gpu.job.stragglers import lateness
from pyinstrument_gpu.parts.words import counted, ranks_text, time_text

_GONE = ProcessObservation(ProcessState.GONE)
_LEAST_SHIFT_NS = 10**9
"""Clocks of two machines that differ by less are left as they are."""
_ORDER = (
    *(Condition.RUNNING, Condition.CUT_OFF, Condition.LOST),
    *(Condition.UNWRITTEN, Condition.FAILED, Condition.ENDED),
)
"""How an attempt ended whose ranks ended differently: the first that any of them did."""


@dataclass(frozen=True, eq=False)
class AttemptTimes:
    """An attempt of a job, with times in nanoseconds since the epoch.

    Attributes:
        files: of its runs.
        ranks: how many there are, and of how many.
        environment: of the lowest rank.
        begin_ns, end_ns: from its first process to its last heartbeat.
        index: of each step of the job, in this attempt.
        counts: for how many steps each row stands, from its index on: 1, but for the first rows of
            a run that lost very many.
        steps: rows of its begin and end.
        is_done: whether any rank was through.
        told: pairs of an index and its number in the whole training, as the program told it.
        claims: the time of the buckets that need no other attempt.
        startup_parts: of the lowest rank.
        ended: how.
        has_hung: whether it hung until it was ended.
        notes: what is not known of it.
        numbers: of its steps in the whole training, once the attempts before it are known.
        is_again: of each, whether an earlier attempt had done it, or it was cut off.
        numbered_by: how the number of its first step is known.
    """

    files: tuple[str, ...]
    ranks: tuple[int, int]
    environment: Mapping[str, Any]
    begin_ns: int
    end_ns: int
    index: NDArray[np.int64]
    counts: NDArray[np.int64]
    steps: NDArray[np.int64]
    is_done: NDArray[np.bool_]
    told: tuple[tuple[int, int], ...]
    claims: dict[Bucket, NDArray[np.int64]]
    startup_parts: tuple[StartupPart, ...]
    ended: Condition
    has_hung: bool
    notes: tuple[str, ...]
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    is_again: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    numbered_by: str = ""

    @property
    def may_go_on(self) -> bool:
        return self.ended in (Condition.RUNNING, Condition.LOST)

    @property
    def has_failed(self) -> bool:
        """True if it was ended by something that may come again."""
        return self.has_hung or self.ended in (Condition.CUT_OFF, Condition.FAILED)

    def count(self, which: NDArray[np.bool_]) -> int:
        """Return the number of the steps for which some rows stand."""
        return int(self.counts[which].sum())

    def begun(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the steps had begun by each time."""
        return begun_steps(self.steps[:, 0], self.steps[:, 1], self.counts, times_ns)[0]

    def cut(self, indices: NDArray[np.int64]) -> AttemptTimes:
        """Return the same with rows that begin at these steps, if the first row stands for them:
        they are taken to be equal."""
        count = int(self.counts[0]) if len(self.counts) else 0
        begins = distinct(np.append(0, indices[(indices > 0) & (indices < count)]))
        if len(begins) == 1:
            return self
        (begin_ns, end_ns), counts = self.steps[0].tolist(), np.diff(begins, append=count)
        next_ns = int(self.steps[1, 0]) if len(self.steps) > 1 else end_ns
        begins_ns = begin_ns + (begins * ((next_ns - begin_ns) / count)).astype(np.int64)
        ends_ns = begins_ns + (counts * ((end_ns - begin_ns) / count)).astype(np.int64)
        return replace(
            self,
            index=np.append(begins, self.index[1:]),
            counts=np.append(counts, self.counts[1:]),
            steps=np.concatenate([np.stack([begins_ns, ends_ns], 1), self.steps[1:]]),
            is_done=np.append(np.repeat(self.is_done[:1], len(begins)), self.is_done[1:]),
        )


@dataclass(frozen=True)
class StepCounts:
    """The steps of all attempts.

    Attributes:
        productive: how many different ones were done; `unseen` of them are in no file, but a later
            attempt tells that it goes on behind them.
        recomputed: how often one was done that had been done before.
        cut_off: how many the end of their attempt has cut off.
        unseen: see `productive`.
    """

    productive: int
    recomputed: int
    cut_off: int
    unseen: int


@dataclass(frozen=True, eq=False)
class JobLife:
    """A job.

    Attributes:
        attempts: the earliest first.
        steps: how many there were.
        division: of its wall time, in nanoseconds since the epoch.
        joined_by: how it is known that the attempts are of one job.
        notes: what is not known, or was left out.
    """

    attempts: tuple[AttemptTimes, ...]
    steps: StepCounts
    division: Division
    joined_by: str
    notes: tuple[str, ...] = ()

    @property
    def knows_stragglers(self) -> bool:
        """True if what ranks waited for each other is known in any attempt, or there are no two."""
        several = [one for one in self.attempts if one.ranks[1] > 1]
        return not several or any(Bucket.STRAGGLERS in times.claims for times in several)


def job_life(paths: Sequence[Path], look: Callable[[Run, Path], ProcessObservation]) -> JobLife:
    """The life of the newest job of these run files. Reads one attempt after the other, whose runs
    it holds in memory together.

    Args:
        look: what can be seen of the process of a run in a file. Only of the last attempt it is
            asked: those before it have ended.

    Raises:
        JobError: see `newest_job`.
    """
    job, notes = newest_job(paths)
    attempts = []
    for number, files in enumerate(job):
        is_last = number == len(job) - 1
        found = attempt_times(files, look if is_last else lambda run, path: _GONE)
        if found is not None:
            attempts.append(found)
            notes += [f"attempt {len(attempts)}: {note}" for note in found.notes]
        else:
            notes.append("left out: an attempt of which no run can be read")
    if not attempts:
        raise JobError("\n    ".join(["no run of the job can be read", *notes]))
    notes += clock_notes(job)
    numbered, steps, notes_of_numbers = numbered_attempts(attempts)
    for number, (one, later) in enumerate(pairwise(attempts), 1):
        if later.begin_ns < one.end_ns:
            notes.append(
                f"attempts {number} and {number + 1} overlap by "
                f"{time_text(one.end_ns - later.begin_ns)}, as where clocks of machines differ: "
                "the time between them is unknown and counts as none"
            )
    return JobLife(
        tuple(numbered),
        steps,
        division_of(numbered),
        joined_by(job) if len(attempts) > 1 else "",
        (*notes, *notes_of_numbers),
    )


def attempt_times(
    files: AttemptFiles, look: Callable[[Run, Path], ProcessObservation]
) -> AttemptTimes | None:
    """Return what is kept of an attempt; None if none of its runs can be read."""
    found: dict[int, RunTimes] = {}
    environments: dict[int, Mapping[str, Any]] = {}
    ranks: list[RankData] = []
    notes = []
    for rank, (path, known) in sorted(files.files.items()):
        try:
            run = Run.load(path)
            run.environment = {**run.environment, "anchor": known.environment.get("anchor", {})}
        except (OSError, RunFileError) as error:
            notes.append(f"left out: {path}: {str(error).removeprefix(f'{path}: ')}")
            continue
        environments[rank], seen = run.environment, look(run, path)
        left = None if run.complete else last_steps(path)
        found[rank] = run_times(run, seen, left)
        if run.environment.get("world_size", 1) > 1 and "rank" in run.environment:
            ranks.append(rank_data(run, str(path)))
    if not found:
        return None
    first = min(found)
    world_size = max(len(found), environments[first].get("world_size", 1))
    missing = [rank for rank in range(world_size) if rank not in found] if world_size < 1e5 else []
    if missing:
        notes.append(f"{ranks_text(missing)}: there is no run that can be read")
    notes += _with_one_clock(found, environments)
    runs = list(found.values())
    end_ns = max(run.end_ns for run in runs)
    index, counts, steps, is_done = _steps_of_job(runs)
    # Where a step was done without it, a rank without steps is no part of the loop.
    first_done_ns = int(steps[is_done][:1, 1].min(initial=end_ns))
    startup = [
        (
            one.began_ns,
            one.steps["begin_ns"][0] if len(one.steps) else min(one.end_ns, first_done_ns),
        )
        for one in runs
    ]
    claims = {
        Bucket.STARTUP: np.array(startup, np.int64),
        Bucket.CHECKPOINT: np.concatenate([run.checkpoints for run in runs]),
        Bucket.EVALUATION: np.concatenate([run.evaluations for run in runs]),
        Bucket.OUTSIDE: np.array([(run.began_ns, run.end_ns) for run in runs], np.int64),
    }
    has_hung = any(run.hung_since_ns is not None for run in runs)
    if has_hung:
        # The others may have gone on, or ended, before.
        last_ns = [run.end_ns if run.hung_since_ns is None else run.hung_since_ns for run in runs]
        since_ns = max(last_ns)
        claims[Bucket.HUNG] = np.array([[since_ns, end_ns]])
    if len(ranks) > 1:
        waits = _straggler_waits(ranks, found, index, steps)
        if isinstance(waits, str):
            notes.append(f"how long ranks waited for stragglers is unknown: {waits}")
        else:
            claims[Bucket.STRAGGLERS] = waits
    not_kept = max(run.not_kept for run in runs)
    if not_kept:
        notes.append(
            f"of {counted(not_kept, 'step')} at its beginning only the total is kept: they count "
            "as equal, and the checkpoints and evaluations among them are not separated"
        )
    ended = {run.ended for run in runs}
    if not has_hung and any(
        run.ended == Condition.CUT_OFF and not run.has_all_steps for run in runs
    ):
        notes.append(
            f"it was killed, and its file ends up to 0.1 s before that, 0.3 s under {CONTENTION}: "
            "the last steps may be missing"
        )
    return AttemptTimes(
        files=tuple(str(path) for path, _ in files.files.values()),
        ranks=(len(found), world_size),
        environment=environments[first],
        begin_ns=min(run.began_ns for run in runs),
        end_ns=end_ns,
        index=index,
        counts=counts,
        steps=steps,
        is_done=is_done,
        told=next((run.numbers for run in runs if run.numbers), ()),
        claims=claims,
        startup_parts=runs[0].startup.parts if runs[0].startup is not None else (),
        ended=next((one for one in _ORDER if one in ended), Condition.FINISHED),
        has_hung=has_hung,
        notes=tuple(notes),
    )


def _with_one_clock(
    found: dict[int, RunTimes], environments: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Put all runs on the clock of the lowest rank's machine: ranks end a step at nearly the same
    moment. Returns what to say of it."""
    first, *others = sorted(found)
    reference, notes = found[first], {}
    for rank in others:
        run, host = found[rank], environments[rank].get("host")
        own_steps, its_steps = (
            one.steps[one.is_done & (one.steps["index"] >= one.together)]
            for one in (run, reference)
        )
        _, own, its = np.intersect1d(own_steps["index"], its_steps["index"], return_indices=True)
        if host == environments[first].get("host") or not len(own):
            continue
        apart_ns = its_steps["end_ns"][its] - own_steps["end_ns"][own]
        shift_ns = int(np.median(apart_ns))
        if abs(shift_ns) >= _LEAST_SHIFT_NS:
            found[rank] = run.shifted(shift_ns)
            side = "behind" if shift_ns > 0 else "ahead of"
            notes[host] = (
                f"the clock of {host} is {abs(shift_ns) / 1e9:.1f} s {side} that of "
                f"{environments[first].get('host')}, by the ends of common steps: it was corrected"
            )
    return list(notes.values())


def _steps_of_job(
    runs: Sequence[RunTimes],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The steps that any rank began: their indices, for how many steps each stands, when it began
    and ended, and whether it was done."""
    together = max(run.together for run in runs)
    folded = [_folded(run, together) for run in runs]
    all_of = np.concatenate([steps for steps, _ in folded])
    are_done = np.concatenate([is_done for _, is_done in folded])
    index = distinct(all_of["index"])
    place = np.searchsorted(index, all_of["index"])
    begins_ns = least_of(place, all_of["begin_ns"], len(index))
    ends_ns = -least_of(place, -all_of["end_ns"], len(index))
    is_done = np.bincount(place[are_done], minlength=len(index)) > 0
    if len(index) and is_done[-1]:  # some ranks were cut off in the step that others had done
        ends_ns[-1] = all_of["end_ns"][are_done & (place == len(index) - 1)].max()
    return index, counts_of_rows(len(index), together), np.stack([begins_ns, ends_ns], 1), is_done


def _folded(run: RunTimes, together: int) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """The steps of a run, and whether each was done, with one row for those whose index is below
    `together`."""
    count = int(np.searchsorted(run.steps["index"], together))
    if count < 2:
        return run.steps, run.is_done
    steps = run.steps[count - 1 :].copy()
    steps[0] = run.steps[0]
    steps["end_ns"][0] += int(durations_ns_of(run.steps[1:count]).sum())
    return steps, np.append(run.is_done[:count].any(), run.is_done[count:])


def _straggler_waits(
    ranks: Sequence[RankData],
    runs: Mapping[int, RunTimes],
    index: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> NDArray[np.int64] | str:
    """Return for each step the time that the last rank works longer than the median one (of two,
    than the other), checkpoints and evaluations left out; or why it is not known. When in the step
    that was is not known: it is put at its begin, or behind the checkpoint or evaluation that goes
    on then."""
    try:
        found = analysis.of(job_of(ranks))
    except JobError as error:
        return str(error).splitlines()[0]
    if isinstance(found.work_of_steps, str):
        return found.work_of_steps
    compared, work_ns = found.work_of_steps
    beside = {}
    for rank, own_ns in zip(found.joined.ranks, work_ns, strict=True):
        run = runs[rank.rank]
        beside[rank.rank] = np.concatenate([run.checkpoints, run.evaluations])
        at = np.searchsorted(run.steps["index"], compared)
        # There is one before: the first step of a run is not compared.
        since_ns, until_ns = run.steps["end_ns"][at - 1], run.steps["end_ns"][at]
        own_ns -= covered_ns(beside[rank.rank], since_ns, until_ns)
    lengths_ns = lateness(work_ns, 1.0).loss_of_steps_ns.astype(np.int64)
    begins_ns, ends_ns = steps[np.searchsorted(index, compared)].T
    begins_ns = end_of_cover_ns(np.concatenate([*beside.values()]), begins_ns)
    return np.stack([begins_ns, np.minimum(begins_ns + lengths_ns, ends_ns)], 1)


def numbered_attempts(
    attempts: Sequence[AttemptTimes],
) -> tuple[list[AttemptTimes], StepCounts, list[str]]:
    """The attempts with the numbers of their steps, and what of them is not known.

    Where a program does not tell where it goes on, it is taken that it does so behind the last
    checkpoint that an earlier attempt has written. Where none was seen, it can't be told.
    """
    done = np.empty(0, np.int64), np.empty(0, np.int64)
    after_checkpoint: int | None = None
    found: list[AttemptTimes] = []
    notes = []
    recomputed = cut_off = unseen = 0
    for place, times in enumerate(attempts, 1):
        told = times.told
        if told:
            numbered_by = "told by the program"
        elif place == 1:
            told, numbered_by = ((0, 0),), "its begin"
        elif after_checkpoint is not None:
            told, numbered_by = ((0, after_checkpoint),), "inferred from the last checkpoint"
            if len(times.index):
                notes.append(
                    f"attempt {place} does not say where it resumes: step {after_checkpoint:,}, "
                    "after the last checkpoint, is assumed. gpu_steps(start=...) says it"
                )
        else:
            told, numbered_by = ((0, int(done[1].max(initial=0))),), "unknown"
            if len(times.index):
                notes.append(
                    f"attempt {place} does not say where it resumes, and no checkpoint was seen: "
                    "how many of its steps are computed again is unknown, and all count as "
                    "productive. gpu_steps(start=...) says it"
                )
        indices, first_numbers = np.array(told, np.int64).T
        if times.counts[:1].sum() > 1:
            edges = np.concatenate(done) - (first_numbers - indices)[:, None]
            times = times.cut(np.append(indices, edges))
        at = np.maximum(np.searchsorted(indices, times.index, side="right") - 1, 0)
        numbers = times.index - indices[at] + first_numbers[at]
        is_cut_off = ~times.is_done & (not times.may_go_on)
        ends = numbers + times.counts
        if times.told and len(done[1]):
            shown = int(done[1].max()), int(numbers.min(initial=first_numbers[0]))
            if shown[0] < shown[1]:
                unseen += shown[1] - shown[0]
                done = joined(*(np.append(*both) for both in zip(done, shown, strict=True)))
        is_again = interval_at(*done, numbers) >= 0
        recomputed += times.count(is_again & times.is_done)
        cut_off += times.count(is_cut_off)
        found.append(
            replace(times, numbers=numbers, is_again=is_again | is_cut_off, numbered_by=numbered_by)
        )
        of_rows = numbers[times.is_done], ends[times.is_done]
        done = joined(*(np.append(*both) for both in zip(done, of_rows, strict=True)))
        written = times.claims[Bucket.CHECKPOINT]
        written = written[written[:, 1] < times.end_ns]
        if len(written):
            begun = int(times.begun(written[:, 0].max(keepdims=True))[0])
            if begun:
                rows = np.cumsum(times.counts)
                row = int(np.searchsorted(rows, begun))
                after_checkpoint = int(ends[row] - rows[row]) + begun
    if unseen:
        notes.append(
            f"{counted(unseen, 'productive step')} are in no file: that they were done is known "
            "from where the next attempt resumes"
        )
    productive = int((done[1] - done[0]).sum())
    return found, StepCounts(productive, recomputed, cut_off, unseen), notes


def division_of(attempts: Sequence[AttemptTimes]) -> Division:
    """The division of the time from the begin of the first attempt to the end of the last."""
    claims: dict[Bucket, list[NDArray[np.int64]]] = {}
    for one in attempts:
        of_steps = {
            Bucket.PRODUCTIVE: one.steps[~one.is_again],
            Bucket.RECOMPUTED: one.steps[one.is_again],
        }
        for bucket, rows in (*one.claims.items(), *of_steps.items()):
            claims.setdefault(bucket, []).append(rows)
    return divided(
        min(one.begin_ns for one in attempts),
        max(one.end_ns for one in attempts),
        {bucket: np.concatenate(rows) for bucket, rows in claims.items()},
    )
