# SPDX-License-Identifier: Apache-2.0
"""The sections that set the ranks of a job side by side: each rank, its steps, what is missing."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.analysis import JobAnalysis
from pyinstrument_gpu.job.findings import BETWEEN_STEPS, MOST_ROWS, OUTSIDE_PHASES, where_text
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.joined import Joined
from pyinstrument_gpu.parts.parts import Emphasis, Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    Unit,
    counted,
    duration,
    printable,
    ranks_text,
    reasons_of_ranks,
)

_MAX_PHASE_COLUMNS = 5
_MAX_MISSING = 8

FEW_RANKS = 16
"""Up to so many, all ranks of a job are shown; of more, those that matter."""


@dataclass(frozen=True)
class RankPhase:
    """The time of one rank in a phase.

    Attributes:
        path: the phase.
        self_ns: host time per step without nested phases.
        device_ns: device time per step; unknown where the device was not timed in it.
    """

    path: str
    self_ns: float
    device_ns: float | None


@dataclass(frozen=True)
class RankOfJob:
    """A rank of a job.

    Attributes:
        rank: its number.
        file: its run file.
        host: the name of its machine.
        steps_ended: how many of its steps ended.
        step_ns: mean duration of the steps that were compared. Ranks wait for each other, so this
            does not tell which of them is slow.
        duration_ns: from the begin of its recording to its end, or its last heartbeat.
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


def job_steps(job: Job, joined: Joined) -> JobSteps | None:
    """Return the steps; None where ranks have no step in common."""
    if not len(joined.steps):
        return None
    longest_ns = functools.reduce(np.maximum, _step_ns(joined).values())
    p50_ns, p95_ns = np.quantile(longest_ns, [0.5, 0.95]).tolist()
    ended = [rank.steps_ended for rank in job.ranks]
    return JobSteps(
        len(joined.steps), float(longest_ns.mean()), p50_ns, p95_ns, min(ended), max(ended)
    )


def ranks_of_job(job: Job, found: JobAnalysis) -> tuple[RankOfJob, ...]:
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


def missing_ranks(job: Job) -> tuple[MissingRank, ...]:
    return tuple(MissingRank(rank, reason) for rank, reason in sorted(job.missing.items()))


def job_notes(job: Job) -> tuple[str, ...]:
    """Return what is to be said of the job, and then of its ranks: a sentence of several once."""
    by_note: dict[str, list[int]] = {}
    for rank in job.ranks:
        for note in (*rank.notes, *_losses(rank)):
            by_note.setdefault(note, []).append(rank.rank)
    return (*job.notes, *(f"{ranks_text(ranks)}: {note}" for note, ranks in by_note.items()))


def _step_ns(joined: Joined) -> dict[int, NDArray[np.int64]]:
    """Return by rank the durations of the steps that were compared."""
    return {
        rank.rank: rank.step_ns[joined.places[number]] for number, rank in enumerate(joined.ranks)
    }


def _phases(joined: Joined, number: int) -> Iterator[RankPhase]:
    """Yield the phases of the rank at that place."""
    rank, places = joined.ranks[number], joined.places[number]
    rows = {path: row for row, path in enumerate(rank.paths)}
    means_ns = joined.self_ns[:, number].mean(axis=1)
    for path, mean_ns in zip(joined.paths, means_ns.tolist(), strict=True):
        if path not in rows:
            if path in (OUTSIDE_PHASES, BETWEEN_STEPS):
                yield RankPhase(path, mean_ns, None)
            continue
        device_ns = rank.device_ns[rows[path], places]
        timed = device_ns[device_ns >= 0]
        yield RankPhase(path, mean_ns, float(timed.mean()) if len(timed) else None)


def _remarks(job: Job, found: JobAnalysis, means_ns: Mapping[int, float]) -> dict[int, list[str]]:
    remarks: dict[int, list[str]] = {rank.rank: [] for rank in job.ranks}

    def remark(rank: int, text: str) -> None:
        if rank in remarks:
            remarks[rank].append(text)

    for late, text in (
        (found.stragglers.straggler, "waited for"),
        (found.stragglers.hint, "held up the others"),
    ):
        for number in () if late is None else late.ranks:
            remark(number, text)
    for number in found.stragglers.several:
        remark(number, "late at times")
    for phase in found.phases:
        if phase.is_significant and phase.pattern.is_of_one_rank:
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


def job_unknown(job: Job) -> Iterator[str]:
    """Yield what a report would say if it had been recorded, with how to record it."""
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
    if not any((rank.device_ns >= 0).any() for rank in job.ranks):
        yield "Times on the devices: no rank has any."


def ranks_parts(ranks: Sequence[RankOfJob], job: JobInfo) -> Iterator[Part]:
    """Yield all ranks of a few, and of many those that matter, with what the others are."""
    yield Sentence()
    yield Sentence(f"Ranks: {job.ranks_read:,} of {job.world_size:,}", "title")
    if not ranks:
        return
    is_few = len(ranks) <= FEW_RANKS
    shown = [one for one in ranks if is_few or one.remarks][:MOST_ROWS]
    others = ranks[len(shown) :]
    columns = _columns(ranks)
    step_ns = [one.step_ns for one in ranks if one.step_ns is not None]
    unit = Unit.fitting(max(step_ns)) if step_ns else None
    rows = [_rank_row(one, columns, unit) for one in sorted(shown, key=lambda one: one.rank)]
    if rows:
        times = [] if unit is None else [f"{unit.name} per step", *columns]
        yield table(["rank", "steps", *map(printable, times)], [rows])
    if others:
        known_ns = [one.step_ns for one in others if one.step_ns is not None]
        which = "others not shown" if shown else "ranks, of which none matters more than others"
        span = ""
        if known_ns:
            span = f", whose steps take {duration(min(known_ns))} to {duration(max(known_ns))}"
        yield Sentence(f"{len(others):,} {which}{span}")


def _columns(ranks: Sequence[RankOfJob]) -> list[str]:
    """The phases that have a column of their own: those that take most, in their order."""
    times_ns: dict[str, float] = {}
    for one in ranks:
        for phase in one.phases:
            if phase.path in (OUTSIDE_PHASES, BETWEEN_STEPS):
                continue  # these are in the table of phases
            times_ns[phase.path] = max(times_ns.get(phase.path, 0.0), phase.self_ns)
    most = sorted(times_ns, key=times_ns.__getitem__)[-_MAX_PHASE_COLUMNS:]
    return [path for path in times_ns if path in most]


def _rank_row(one: RankOfJob, columns: Sequence[str], unit: Unit | None) -> Row:
    """Make the row of a rank, without times where there is no unit for them."""
    cells = [f"{one.steps_ended:,}"]
    if unit is not None:
        self_ns = {phase.path: phase.self_ns for phase in one.phases}
        cells += [unit.text(ns) for ns in (one.step_ns, *map(self_ns.get, columns))]
    emphasis: Emphasis = "bold" if "waited for" in one.remarks else ""
    return Row(str(one.rank), cells, note=", ".join(one.remarks), emphasis=emphasis)


def missing_notes(ranks: Sequence[MissingRank]) -> Iterator[str]:
    reasons = reasons_of_ranks({one.rank: one.reason for one in ranks})
    yield from reasons[:_MAX_MISSING]
    if len(reasons) > _MAX_MISSING:
        yield f"and further ranks, for {len(reasons) - _MAX_MISSING:,} other reasons"


@dataclass(frozen=True)
class JobInfo:
    """The recorded job.

    Attributes:
        job_id: the launcher's.
        world_size: how many ranks the job had.
        ranks_read: of how many of them there is a run.
        hosts: on how many machines these ran.
        command: the program and its arguments, as the first of them ran it; else its command line.
        torch: its version.
        duration_ns: the longest of their recordings.
    """

    job_id: str | None
    world_size: int
    ranks_read: int
    hosts: int | None
    command: tuple[str, ...] | None
    torch: str | None
    duration_ns: int


def job_info(job: Job) -> JobInfo:
    hosts = {rank.environment.get("host") for rank in job.ranks}
    first = job.ranks[0].environment if job.ranks else {}
    command = first.get("arguments") or first.get("command")
    return JobInfo(
        job_id=job.job_id,
        world_size=job.world_size,
        ranks_read=len(job.ranks),
        hosts=None if None in hosts or not hosts else len(hosts),
        command=None if command is None else tuple(command),
        torch=first.get("torch"),
        duration_ns=max((rank.duration_ns for rank in job.ranks), default=0),
    )
