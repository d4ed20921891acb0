# SPDX-License-Identifier: Apache-2.0
"""The document of a job: all that a report says of its ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu.document.job_findings import (
    JobFinding,
    StallOfRank,
    job_findings,
    job_verdict,
    stalls_of,
)
from pyinstrument_gpu.document.job_ranks import (
    JobSteps,
    MissingRank,
    RankOfJob,
    job_notes,
    job_steps,
    job_unknown,
    missing_ranks,
    ranks_of_job,
)
from pyinstrument_gpu.document.plain import rounded
from pyinstrument_gpu.job import analysis
from pyinstrument_gpu.job.data import JobData
from pyinstrument_gpu.job.findings import (
    CollectiveUse,
    LateStart,
    PhaseAcrossRanks,
    Stragglers,
)
from pyinstrument_gpu.parts.words import counted

JOB_VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""


@dataclass(frozen=True)
class JobInfo:
    """What was recorded.

    Attributes:
        job_id: the launcher's.
        world_size: how many ranks the job had.
        ranks_read: of how many of them there is a run.
        hosts: on how many machines these ran.
        command: the command line of the first of them.
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


@dataclass(frozen=True)
class JobDocument:
    """All that a report says of the ranks of a job together. Each rank has a report of its own, of
    its run. A section is missing where nothing of its kind was recorded.

    Attributes:
        version: of this format.
        verdict: which rank the others wait for, in one sentence.
        findings: what matters most first: failures, who is waited for, what costs time.
        job: what was recorded.
        steps: the steps that were compared.
        stragglers: who is waited for in steps.
        late_start: for whom the others waited at the start.
        phases: over the ranks. A path that begins with "/" is none of a phase, but of the time
            outside of phases or between steps.
        step: whole steps over the ranks, with the time before them.
        ranks: by number; of many, those that matter come first.
        collectives: by process group, operation and phase.
        stalls: times in which nothing happened for far longer than steps take.
        missing: the ranks of which there is no run.
        notes: what is damaged, was cut short or differs between the ranks.
        unknown: what was not recorded.
    """

    version: int
    verdict: str
    findings: tuple[JobFinding, ...]
    job: JobInfo
    steps: JobSteps | None
    stragglers: Stragglers
    late_start: LateStart | None
    phases: tuple[PhaseAcrossRanks, ...]
    step: PhaseAcrossRanks | None
    ranks: tuple[RankOfJob, ...]
    collectives: tuple[CollectiveUse, ...]
    stalls: tuple[StallOfRank, ...]
    missing: tuple[MissingRank, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]


def job_document_of(job: JobData) -> JobDocument:
    """The document of a job. It costs the analysis of its ranks together."""
    found = analysis.of(job)
    steps, stalls = job_steps(job, found.joined), stalls_of(job)
    findings = job_findings(job, found, steps, stalls)
    return rounded(
        JobDocument(
            version=JOB_VERSION,
            verdict=job_verdict(job, found.stragglers, findings, stalls),
            findings=findings,
            job=_job_info(job),
            steps=steps,
            stragglers=found.stragglers,
            late_start=found.late_start,
            phases=found.phases,
            step=found.step,
            ranks=ranks_of_job(job, found),
            collectives=found.collectives,
            stalls=stalls,
            missing=missing_ranks(job),
            notes=(*job_notes(job), *_not_judged(steps, found.stragglers)),
            unknown=tuple(job_unknown(job)),
        )
    )


def _not_judged(steps: JobSteps | None, stragglers: Stragglers) -> Iterator[str]:
    if steps is not None and stragglers.step_ns is not None and stragglers.steps < steps.count:
        of_all = f"{steps.count - stragglers.steps:,} of the {counted(steps.count, 'step')}"
        yield (
            f"of {of_all} it is not known who is late: not all records of their collective "
            "operations are there"
        )


def _job_info(job: JobData) -> JobInfo:
    hosts = {rank.environment.get("host") for rank in job.ranks}
    first = job.ranks[0].environment if job.ranks else {}
    command = first.get("command")
    return JobInfo(
        job_id=job.job_id,
        world_size=job.world_size,
        ranks_read=len(job.ranks),
        hosts=None if None in hosts or not hosts else len(hosts),
        command=None if command is None else tuple(command),
        torch=first.get("torch"),
        duration_ns=max((rank.duration_ns for rank in job.ranks), default=0),
    )
