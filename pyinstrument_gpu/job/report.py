# SPDX-License-Identifier: Apache-2.0
"""The report of a job: all that is said of its ranks together, as one document and as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu.job import analysis
from pyinstrument_gpu.job.collectives import collectives_parts
from pyinstrument_gpu.job.findings import (
    CollectiveUse,
    LateStart,
    PhaseAcrossRanks,
    Pipeline,
    Stragglers,
)
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.job.phases import phases_parts
from pyinstrument_gpu.job.ranks import (
    JobInfo,
    JobSteps,
    MissingRank,
    RankOfJob,
    job_info,
    job_notes,
    job_steps,
    job_unknown,
    missing_notes,
    missing_ranks,
    ranks_of_job,
    ranks_parts,
)
from pyinstrument_gpu.job.verdict import (
    JobFinding,
    StallOfRank,
    findings_parts,
    job_findings,
    job_verdict,
    stalls_of,
    stalls_parts,
)
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, duration, printable
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.report.notes import notes_parts
from pyinstrument_gpu.report.plain import rounded

JOB_VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""


@dataclass(frozen=True)
class JobDocument:
    """The whole report of the ranks of a job together. Each rank has a report of its own, of its
    run. A section is missing where nothing of its kind was recorded.

    Attributes:
        version: of this format.
        verdict: which rank the others wait for, in one sentence.
        findings: what matters most first: failures, who is waited for, what costs time.
        job: what was recorded.
        steps: the steps that were compared.
        stragglers: who is waited for in steps.
        pipeline: what ranks wait for sends and receives.
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
    pipeline: Pipeline | None
    late_start: LateStart | None
    phases: tuple[PhaseAcrossRanks, ...]
    step: PhaseAcrossRanks | None
    ranks: tuple[RankOfJob, ...]
    collectives: tuple[CollectiveUse, ...]
    stalls: tuple[StallOfRank, ...]
    missing: tuple[MissingRank, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]


def job_document_of(job: Job) -> JobDocument:
    """The document of a job. It costs the analysis of its ranks together."""
    found = analysis.of(job)
    steps, stalls = job_steps(job, found.joined), stalls_of(job)
    findings = job_findings(job, found, steps, stalls)
    return rounded(
        JobDocument(
            version=JOB_VERSION,
            verdict=job_verdict(job, found.stragglers, findings, stalls),
            findings=findings,
            job=job_info(job),
            steps=steps,
            stragglers=found.stragglers,
            pipeline=found.pipeline,
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
            f"which rank is late is unknown for {of_all}: some records of their collective "
            "operations are missing"
        )


def job_report(document: JobDocument, width: int | None = None, color: bool | None = None) -> str:
    """The report of a job as text; `width` and `color` as in `for_terminal`."""
    return for_terminal(job_overview(document), width, color)


def job_overview(document: JobDocument) -> list[Part]:
    """The parts of the report of a job."""
    return [part for parts in job_sections(document).values() for part in parts]


def job_sections(document: JobDocument) -> dict[str, list[Part]]:
    """The parts of the report by what they are about, in order."""
    found = {
        "heading": _heading(document),
        "findings": findings_parts(document.findings),
        "ranks": ranks_parts(document.ranks, document.job),
        "phases": phases_parts(
            document.phases, document.step, document.stragglers, document.job.ranks_read
        ),
        "collectives": collectives_parts(document.collectives),
        "stalls": stalls_parts(document.stalls),
        "notes": notes_parts([*missing_notes(document.missing), *document.notes]),
    }
    return {name: list(parts) for name, parts in found.items()}


def _heading(document: JobDocument) -> Iterator[Sentence]:
    job, steps = document.job, document.steps
    if job.command:
        yield Sentence(printable(shlex.join(job.command)), "title")
    facts = [f"{job.ranks_read:,} of {counted(job.world_size, 'rank')}"]
    if job.hosts is not None:
        facts.append(f"on {counted(job.hosts, 'host')}")
    if job.torch:
        facts.append(f"torch {job.torch}")
    if job.job_id:
        facts.append(f"job {job.job_id}")
    yield Sentence(printable(", ".join(facts)))
    if steps is None:
        yield Sentence(f"No steps to compare, in {duration(job.duration_ns)}")
    else:
        yield Sentence(
            f"{counted(steps.count, 'step')} compared, in {duration(job.duration_ns)}; on the rank "
            f"on which it takes longest, a step takes {duration(steps.mean_ns)} (p50 "
            f"{duration(steps.p50_ns)}, p95 {duration(steps.p95_ns)})"
        )
    yield Sentence(printable(document.verdict), "title")
