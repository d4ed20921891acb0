# SPDX-License-Identifier: Apache-2.0
"""The report of a job: its ranks side by side, who is waited for, and in which phase."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pyinstrument_gpu.document.job import JobDocument
from pyinstrument_gpu.document.job_findings import JobFinding, StallOfRank
from pyinstrument_gpu.document.job_ranks import (
    FEW_RANKS,
    NAMING,
    JobSteps,
    MissingRank,
    RankOfJob,
    phase_text,
)
from pyinstrument_gpu.job.findings import (
    BETWEEN_STEPS,
    OUTSIDE_PHASES,
    CollectiveUse,
    Pattern,
    PhaseAcrossRanks,
)
from pyinstrument_gpu.parts.parts import Emphasis, Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    counted,
    duration,
    percent,
    printable,
    reasons_of_ranks,
    size,
    small_percent,
)
from pyinstrument_gpu.report.console import for_terminal, notes

_MAX_PHASE_COLUMNS = 5
_MAX_ROWS = 30
_MAX_MISSING = 8
_MAX_STALLS = 8


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
        "findings": _findings(document.findings),
        "ranks": _ranks(document),
        "phases": _phases(document),
        "collectives": _collectives(document.collectives, document.steps),
        "stalls": _stalls(document.stalls),
        "notes": notes([*_missing(document.missing), *document.notes]),
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
        yield Sentence(f"No step that can be compared, in {duration(job.duration_ns)}")
    else:
        yield Sentence(
            f"{counted(steps.count, 'step')} compared, in {duration(job.duration_ns)}; on the rank "
            f"on which it takes longest, a step takes {duration(steps.mean_ns)} (p50 "
            f"{duration(steps.p50_ns)}, p95 {duration(steps.p95_ns)})"
        )
    yield Sentence(printable(document.verdict), "title")


def _findings(findings: Sequence[JobFinding]) -> Iterator[Sentence]:
    if findings:
        yield Sentence()
        yield Sentence("What matters", "title")
    for one in findings:
        cost = ""
        if one.cost_ns is not None and one.of_ns:
            cost = f" ({duration(one.cost_ns)}, {small_percent(one.cost_ns, one.of_ns)} of a step)"
        yield Sentence(printable(f"{one.about}{cost}: {one.evidence}"))
        if one.look is not None:
            yield Sentence(printable(f"  {one.look}"), "note")


def _ranks(document: JobDocument) -> Iterator[Part]:
    """All ranks of a few, and of many those that matter, with what the others are."""
    job = document.job
    yield Sentence()
    yield Sentence(f"Ranks: {job.ranks_read:,} of {job.world_size:,}", "title")
    if not document.ranks:
        return
    is_few = len(document.ranks) <= FEW_RANKS
    shown = [one for one in document.ranks if is_few or one.remarks][:_MAX_ROWS]
    others = document.ranks[len(shown) :]
    columns = _columns(document)
    step_ns = [one.step_ns for one in document.ranks if one.step_ns is not None]
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


def _columns(document: JobDocument) -> list[str]:
    """The phases that have a column of their own: those that take most, in their order."""
    times_ns: dict[str, float] = {}
    for one in document.ranks:
        for phase in one.phases:
            if phase.path in (OUTSIDE_PHASES, BETWEEN_STEPS):
                continue  # these are in the table of phases
            times_ns[phase.path] = max(times_ns.get(phase.path, 0.0), phase.self_ns)
    most = sorted(times_ns, key=times_ns.__getitem__)[-_MAX_PHASE_COLUMNS:]
    return [path for path in times_ns if path in most]


def _rank_row(one: RankOfJob, columns: Sequence[str], unit: Unit | None) -> Row:
    """Without times where there is no unit for them."""
    cells = [f"{one.steps_ended:,}"]
    if unit is not None:
        self_ns = {phase.path: phase.self_ns for phase in one.phases}
        cells += [unit.text(ns) for ns in (one.step_ns, *map(self_ns.get, columns))]
    emphasis: Emphasis = "bold" if "waited for" in one.remarks else ""
    return Row(str(one.rank), cells, note=", ".join(one.remarks), emphasis=emphasis)


def _phases(document: JobDocument) -> Iterator[Part]:
    phases, stragglers = document.phases, document.stragglers
    if not phases:
        return
    unit = Unit.fitting(max(one.high_ns for one in phases))
    rows = []
    for one in [*phases[:_MAX_ROWS], *([] if document.step is None else [document.step])]:
        # Where ranks do not differ for certain, or in turn, none is named.
        slowest = [UNKNOWN, UNKNOWN, UNKNOWN]
        if one.is_significant and one.pattern in NAMING:
            work_ns = unit.text(one.work_ns), f"+{unit.text(one.distance_ns)}"
            slowest = [str(one.slowest_rank), *work_ns]
        times_ns = (one.median_ns, one.low_ns, one.high_ns, one.waiting_ns)
        cells = [*map(unit.text, times_ns), *slowest, unit.text(one.imbalance_ns)]
        rows.append(Row(phase_text(one.path), cells, note=_pattern(one)))
    headers = ["phase", "median", "least", "most", "waiting", "slowest", "own work", "more"]
    yield Sentence()
    yield Sentence(f"Phases across ranks: {unit.name} per step", "title")
    whole = [] if document.step is None else [rows.pop()]
    yield table([*headers, "costs"], [rows, whole])
    if len(phases) > _MAX_ROWS:
        yield Sentence(f"{len(phases) - _MAX_ROWS:,} further phases not shown", "note")
    if stragglers.loss_ns is not None and stragglers.loss_ns > 0:
        of_step = (
            "" if stragglers.loss_share is None else f" ({percent(stragglers.loss_share, 1)}%)"
        )
        yield Sentence(
            f"Of a step, {duration(stragglers.loss_ns)}{of_step} would go if each rank were as the "
            + ("quicker one" if document.job.ranks_read == 2 else "median")
        )


def _pattern(one: PhaseAcrossRanks) -> str:
    says_nothing = one.pattern in (Pattern.BALANCED, Pattern.UNKNOWN)
    return one.pattern.value if one.is_significant and not says_nothing else ""


def _collectives(collectives: Sequence[CollectiveUse], steps: JobSteps | None) -> Iterator[Part]:
    if not collectives:
        return
    times_ns = [
        ns
        for one in collectives
        for ns in (one.transfer_ns, one.waiting_ns, one.exposed_ns)
        if ns is not None
    ]
    unit = Unit.fitting(max(times_ns, default=0.0))
    rows = []
    for one in collectives[:_MAX_ROWS]:
        times = [unit.text(ns) for ns in (one.transfer_ns, one.waiting_ns, one.exposed_ns)]
        rate = UNKNOWN if one.bytes_per_s is None else f"{size(one.bytes_per_s)}/s"
        last = UNKNOWN
        if one.last_rank is not None and one.last_share is not None:
            last = f"{one.last_rank} ({percent(one.last_share, 1)}%)"
        cells = [f"{one.count:,}", size(one.bytes), *times, rate, last]
        path = "" if one.path is None else f" in {one.path}"
        rows.append(Row(f"{one.operation} of {one.group}{path}", cells))
    yield Sentence()
    yield Sentence(f"Collectives: {unit.name} each, exposed per step", "title")
    headers = ["operation", "count", "bytes", "transfer", "waiting", "exposed", "rate", "last rank"]
    yield table(headers, [rows])
    if len(collectives) > _MAX_ROWS:
        yield Sentence(f"{len(collectives) - _MAX_ROWS:,} further kinds not shown", "note")
    if all(one.transfer_ns is None for one in collectives) and any(
        one.waiting_ns is not None for one in collectives
    ):
        yield Sentence("No durations are known: waiting is how far apart the ranks asked for it")


def _stalls(stalls: Sequence[StallOfRank]) -> Iterator[Sentence]:
    if stalls:
        yield Sentence()
        yield Sentence("Stalls", "title")
    for one in stalls[:_MAX_STALLS]:
        where = "outside steps" if one.step is None else f"in step {one.step:,}"
        opened = f", in {', '.join(one.open_phases)}" if one.open_phases else ""
        then = "then it went on" if one.has_ended else "and it had not gone on"
        yield Sentence(
            printable(
                f"rank {one.rank}: nothing for {duration(one.stalled_ns)} {where}{opened}; {then}"
            )
        )
    if len(stalls) > _MAX_STALLS:
        yield Sentence(f"{len(stalls) - _MAX_STALLS:,} further stalls not shown", "note")


def _missing(ranks: Sequence[MissingRank]) -> Iterator[str]:
    reasons = reasons_of_ranks({one.rank: one.reason for one in ranks})
    yield from reasons[:_MAX_MISSING]
    if len(reasons) > _MAX_MISSING:
        yield f"and further ranks, for {len(reasons) - _MAX_MISSING:,} other reasons"
