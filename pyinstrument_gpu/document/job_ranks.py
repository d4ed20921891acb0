# SPDX-License-Identifier: Apache-2.0
"""The sections that set the ranks of a job side by side: each rank, its steps, what is missing."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.analysis import JobAnalysis
from pyinstrument_gpu.job.data import JobData, RankData
from pyinstrument_gpu.job.findings import (
    BETWEEN_STEPS,
    OUTSIDE_PHASES,
    STEP,
    Pattern,
)
from pyinstrument_gpu.job.joined import Joined
from pyinstrument_gpu.parts.words import counted, ranks_text

FEW_RANKS = 16
"""Up to so many, all ranks of a job are shown; of more, those that matter."""

NAMING = (Pattern.ALWAYS, Pattern.SOME_STEPS)
"""The patterns of which one rank is the cause."""


@dataclass(frozen=True)
class RankPhase:
    """What one rank spends in a phase.

    Attributes:
        path: the phase.
        self_ns: host time per step without nested phases.
        stream_ns: stream time per step; unknown where the device was not timed in it.
    """

    path: str
    self_ns: float
    stream_ns: float | None


@dataclass(frozen=True)
class RankOfJob:
    """One rank.

    Attributes:
        rank: its number.
        file: its run file.
        host: the name of its machine.
        steps_ended: how many of its steps ended.
        step_ns: mean duration of the steps that were compared. Ranks wait for each other, so this
            does not tell which of them is slow.
        duration_ns: from the begin of its recording to its end, or its last sign of life.
        is_complete: whether the recording was stopped. If not, the process died, or still runs.
        remarks: why it matters, in a few words each.
        phases: what it spends in each phase, and outside of phases and between steps, in the steps
            that were compared.
    """

    rank: int
    file: str | None
    host: str | None
    steps_ended: int
    step_ns: float | None
    duration_ns: int
    is_complete: bool
    remarks: tuple[str, ...]
    phases: tuple[RankPhase, ...]


@dataclass(frozen=True)
class MissingRank:
    """A rank of which there is no run.

    Attributes:
        rank: its number.
        reason: why there is none, as far as that is known.
    """

    rank: int
    reason: str


@dataclass(frozen=True)
class JobSteps:
    """The steps that were compared: those that all ranks have, but the first of the run. A rank
    that has none at all is left out.

    Attributes:
        count: how many there are.
        mean_ns, p50_ns, p95_ns: of their durations, of each step that of the rank on which it took
            longest.
        fewest_ended, most_ended: how many steps ended on the rank with the fewest and the most.
    """

    count: int
    mean_ns: float
    p50_ns: float
    p95_ns: float
    fewest_ended: int
    most_ended: int


def job_steps(job: JobData, joined: Joined) -> JobSteps | None:
    """None where ranks have no step in common."""
    if not len(joined.steps):
        return None
    longest_ns = functools.reduce(np.maximum, _step_ns(joined).values())
    p50_ns, p95_ns = np.quantile(longest_ns, [0.5, 0.95]).tolist()
    ended = [rank.steps_ended for rank in job.ranks]
    return JobSteps(
        len(joined.steps), float(longest_ns.mean()), p50_ns, p95_ns, min(ended), max(ended)
    )


def ranks_of_job(job: JobData, found: JobAnalysis) -> tuple[RankOfJob, ...]:
    """The ranks by number; of more than `FEW_RANKS`, those that matter come first."""
    joined = found.joined
    means_ns: dict[int, float] = {}
    of_phases: dict[int, tuple[RankPhase, ...]] = {}
    if len(joined.steps):
        means_ns = {rank: float(ns.mean()) for rank, ns in _step_ns(joined).items()}
        of_phases = {
            rank.rank: tuple(_phases(joined, number)) for number, rank in enumerate(joined.ranks)
        }
    remarks = _remarks(job, found, means_ns)
    ranks = [
        RankOfJob(
            rank=rank.rank,
            file=rank.file,
            host=rank.environment.get("host"),
            steps_ended=rank.steps_ended,
            step_ns=means_ns.get(rank.rank),
            duration_ns=rank.duration_ns,
            is_complete=rank.complete,
            remarks=tuple(remarks[rank.rank]),
            phases=of_phases.get(rank.rank, ()),
        )
        for rank in job.ranks
    ]
    if len(ranks) > FEW_RANKS:
        ranks.sort(key=lambda one: not one.remarks)
    return tuple(ranks)


def missing_ranks(job: JobData) -> tuple[MissingRank, ...]:
    return tuple(MissingRank(rank, reason) for rank, reason in sorted(job.missing.items()))


def job_notes(job: JobData) -> tuple[str, ...]:
    """What is to be said of the job, and then of its ranks: a sentence of several once."""
    by_note: dict[str, list[int]] = {}
    for rank in job.ranks:
        for note in (*rank.notes, *_losses(rank)):
            by_note.setdefault(note, []).append(rank.rank)
    return (*job.notes, *(f"{ranks_text(ranks)}: {note}" for note, ranks in by_note.items()))


def where_text(path: str) -> str:
    """Where time is spent, in words: "in data", "outside phases", "between steps"."""
    return path[1:] if path in (OUTSIDE_PHASES, BETWEEN_STEPS) else f"in {path}"


def phase_text(path: str) -> str:
    """What a phase is called in tables; what is no phase stands in parentheses."""
    if path == STEP:
        return "step"
    return f"({path[1:]})" if path in (OUTSIDE_PHASES, BETWEEN_STEPS) else path


def _step_ns(joined: Joined) -> dict[int, NDArray[np.int64]]:
    """By rank the durations of the steps that were compared."""
    return {
        rank.rank: rank.step_ns[joined.places[number]] for number, rank in enumerate(joined.ranks)
    }


def _phases(joined: Joined, number: int) -> Iterator[RankPhase]:
    """Those of the rank at that place."""
    rank, places = joined.ranks[number], joined.places[number]
    rows = {path: row for row, path in enumerate(rank.paths)}
    means_ns = joined.self_ns[:, number].mean(axis=1)
    for path, mean_ns in zip(joined.paths, means_ns.tolist(), strict=True):
        if path not in rows:
            if path in (OUTSIDE_PHASES, BETWEEN_STEPS):
                yield RankPhase(path, mean_ns, None)
            continue
        stream_ns = rank.stream_ns[rows[path], places]
        timed = stream_ns[stream_ns >= 0]
        yield RankPhase(path, mean_ns, float(timed.mean()) if len(timed) else None)


def _remarks(
    job: JobData, found: JobAnalysis, means_ns: Mapping[int, float]
) -> dict[int, list[str]]:
    remarks: dict[int, list[str]] = {rank.rank: [] for rank in job.ranks}

    def remark(rank: int, text: str) -> None:
        if rank in remarks:
            remarks[rank].append(text)

    if found.stragglers.straggler is not None:
        remark(found.stragglers.straggler.rank, "waited for")
    for phase in found.phases:
        if phase.is_significant and phase.pattern in NAMING:
            remark(phase.slowest_rank, f"slowest {where_text(phase.path)}")
    usual = Counter(rank.steps_ended for rank in job.ranks).most_common(1)
    for rank in job.ranks:
        if rank.steps_ended != usual[0][0]:
            remark(rank.rank, f"{counted(rank.steps_ended, 'step')} ended")
        if not rank.complete:
            remark(rank.rank, "cut short")
        if any(stall.ended_ns is None for stall in rank.stalls):
            remark(rank.rank, "stalled")
    if len(means_ns) > FEW_RANKS:
        least, most = (end(means_ns, key=means_ns.__getitem__) for end in (min, max))
        if least != most:
            remark(least, "shortest steps")
            remark(most, "longest steps")
    if found.late_start is not None:
        remark(found.late_start.rank, "late start")
    return remarks


def _losses(rank: RankData) -> Iterator[str]:
    dropped = [f"{cause} {count:,}" for cause, count in rank.dropped.items() if count]
    if dropped:
        yield f"not everything was kept: {', '.join(dropped)}"


def job_unknown(job: JobData) -> Iterator[str]:
    """What a report would say if it had been recorded, with how to record it."""
    if not job.ranks:
        return
    unread = [rank.rank for rank in job.ranks if not rank.collectives.was_read]
    if unread:
        of = "" if len(unread) == len(job.ranks) else f" of {ranks_text(unread)}"
        yield f"Collectives{of}: PyTorch's flight recorder was not read (run switches it on)."
    elif not any((rank.collectives.events["duration_ns"] >= 0).any() for rank in job.ranks):
        yield (
            "How long collectives took: PyTorch notes it for NCCL with "
            "TORCH_NCCL_ENABLE_TIMING=1, and not for Gloo."
        )
    if not any((rank.stream_ns >= 0).any() for rank in job.ranks):
        yield "Times on the devices: no rank has any."
