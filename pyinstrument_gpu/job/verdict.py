# SPDX-License-Identifier: Apache-2.0
"""The first things to know of a job of ranks: the findings, and the verdict, in one sentence."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

from pyinstrument_gpu.analysis.contention import CONTENTION, waited_for_processor
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.job.analysis import JobAnalysis
from pyinstrument_gpu.job.findings import (
    PROCESSOR,
    CollectiveUse,
    LateStart,
    Pattern,
    PhaseAcrossRanks,
    Pipeline,
    Straggler,
    Stragglers,
    where_text,
)
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.job.ranks import JobSteps
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import (
    capitalised,
    counted,
    duration,
    printable,
    ranks_text,
    small_percent,
)

_MAX_STALLS = 8

_WORTH_A_WORD = 0.01
"""Of the step: from this share on, what phases or collectives cost is a finding."""


@dataclass(frozen=True)
class JobFinding:
    """A finding that matters.

    Attributes:
        kind: "failure" (a rank stalled, was cut short or is missing), "straggler" (a rank that the
            others wait for), "imbalance" (a phase that takes ranks differently long), "pipeline"
            (ranks wait for sends and receives), "collective" (a step waits for it) or "start" (a
            rank that the others waited for before the steps).
        about: what it is about.
        cost_ns: what it costs per step; unknown where nothing says it.
        of_ns: the time per step that this is a part of.
        evidence: the numbers that say so.
        look: a command that shows more.
    """

    kind: str
    about: str
    cost_ns: float | None
    of_ns: float | None
    evidence: str
    look: str | None

    @property
    def cost(self) -> str:
        """The cost in words; empty where it is not known."""
        if self.cost_ns is None or not self.of_ns:
            return ""
        return f"{duration(self.cost_ns)}, {small_percent(self.cost_ns, self.of_ns)} of a step"


@dataclass(frozen=True)
class StallOfRank:
    """A time in which no step of a rank began or ended for far longer than steps take.

    Attributes:
        rank: whose watchdog saw it.
        step: the step that was open; unknown where none was.
        stalled_ns: how long nothing had happened when the watchdog noticed, or until it went on.
        limit_ns: how long nothing had to happen for that.
        has_ended: whether it went on afterwards.
        open_phases: the innermost open phase of each thread that had one.
    """

    rank: int
    step: int | None
    stalled_ns: int
    limit_ns: int
    has_ended: bool
    open_phases: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place in words."""
        step = "outside steps" if self.step is None else f"in step {self.step:,}"
        return step + (f", in {', '.join(self.open_phases)}" if self.open_phases else "")


def stalls_of(job: Job) -> tuple[StallOfRank, ...]:
    """Return the stalls, those that never ended first, each kind by rank."""
    found = [_stall(rank.rank, stall) for rank in job.ranks for stall in rank.stalls]
    return tuple(sorted(found, key=lambda stall: stall.has_ended))


def job_findings(
    job: Job, found: JobAnalysis, steps: JobSteps | None, stalls: Sequence[StallOfRank]
) -> tuple[JobFinding, ...]:
    """Return what went wrong, then who is waited for, then what costs time, the most first."""
    stragglers, late_start = found.stragglers, found.late_start
    # What phases and collectives cost is of the steps that were judged, as the loss is.
    step_ns = stragglers.step_ns
    if step_ns is None and steps is not None:
        step_ns = steps.mean_ns
    costs = [
        *_pipeline(step_ns, found.pipeline),
        *_imbalances(step_ns, stragglers, found.phases),
        *_collectives(step_ns, found.collectives),
    ]
    costs.sort(key=lambda one: -(one.cost_ns or 0.0))
    late = [] if late_start is None else [_late_start(late_start)]
    return (*_failures(job, stalls), *_straggler(job, step_ns, stragglers), *costs, *late)


def _failures(job: Job, stalls: Sequence[StallOfRank]) -> Iterator[JobFinding]:
    why = f"pyinstrument-gpu why {_folder(job)}"
    standing = [stall for stall in stalls if not stall.has_ended]
    if standing:
        longest = max(standing, key=lambda stall: stall.stalled_ns)
        yield _failure(
            f"{ranks_text({stall.rank for stall in standing})} stalled",
            f"no step of rank {longest.rank} began or ended for {duration(longest.stalled_ns)}, "
            f"{longest.where}",
            why,
        )
    cut = [rank.rank for rank in job.ranks if not rank.complete]
    if cut:
        what = "the recording was not stopped: the process died, or still runs"
        yield _failure(
            f"{ranks_text(cut)} {'was' if len(cut) == 1 else 'were'} cut short", what, why
        )
    if job.missing:
        reasons = list(dict.fromkeys(job.missing.values()))
        more = f", and {counted(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
        is_are = "is" if len(job.missing) == 1 else "are"
        yield _failure(
            f"{ranks_text(job.missing)} {is_are} missing", f"{reasons[0].rstrip('.')}{more}", None
        )


def _folder(job: Job) -> str:
    file = next((rank.file for rank in job.ranks if rank.file is not None), None)
    return "FOLDER" if file is None else shlex.quote(os.path.dirname(file) or ".")


def _failure(about: str, evidence: str, look: str | None) -> JobFinding:
    return JobFinding("failure", about, None, None, evidence, look)


def _straggler(job: Job, step_ns: float | None, stragglers: Stragglers) -> Iterator[JobFinding]:
    found = stragglers.straggler
    if found is None:
        return
    of_file = next((rank.file for rank in job.ranks if rank.rank == found.rank), None)
    comes = "it comes last" if len(found.ranks) == 1 else "one of them comes last"
    where = "" if found.path is None else f" {where_text(found.path)}"
    slower = f"{_is_are(found.ranks)} slower"
    chance = ""
    if found.p_value is not None:
        chance = f" (probability {found.p_value:.2g} if all ranks were alike)"
    line = ""
    if found.line is not None and found.line_ns is not None:
        it_is = "it is" if len(found.ranks) == 1 else "they are"
        more = f"{duration(found.line_ns)} more of each step than the others"
        line = f"; {it_is} in {found.line} for {more}"
    yield JobFinding(
        kind="straggler",
        about=f"{_name(found)} {'is late' if found.path == PROCESSOR else slower}{where}",
        cost_ns=stragglers.loss_ns,
        of_ns=step_ns,
        evidence=(
            f"{comes} in {found.steps:,} of {counted(stragglers.steps, 'step')}, "
            f"{duration(found.lateness_ns)} after the {_next(found)} on average{chance}{line}"
        ),
        look=None if of_file is None else f"pyinstrument-gpu report {shlex.quote(of_file)}",
    )


def _late_start(found: LateStart) -> JobFinding:
    later = f"{duration(found.lateness_ns)} later than the next rank"
    how = f"its recording began {later}"
    if not found.began_late:
        how = f"it came to where the ranks first meet {later}, though it did not begin so late"
    return JobFinding("start", f"rank {found.rank} was late at the start", None, None, how, None)


def _imbalances(
    step_ns: float | None, stragglers: Stragglers, phases: Sequence[PhaseAcrossRanks]
) -> Iterator[JobFinding]:
    named = None if stragglers.straggler is None else stragglers.straggler.path
    for phase in phases:
        is_much = step_ns is not None and (phase.imbalance_ns or 0.0) >= _WORTH_A_WORD * step_ns
        if is_much and phase.is_significant and phase.path != named:
            yield JobFinding(
                kind="imbalance",
                about=f"the time {where_text(phase.path)} is uneven over the ranks",
                cost_ns=phase.imbalance_ns,
                of_ns=step_ns,
                evidence=_unevenness(phase),
                look=None,
            )


def _unevenness(phase: PhaseAcrossRanks) -> str:
    # Host times would include waits for other ranks, too.
    more = f"{duration(phase.work_ns)} there, {duration(phase.distance_ns)} more than the others"
    if phase.pattern.is_of_one_rank:
        return f"rank {phase.slowest_rank} works for {more}"
    who = "several ranks are slow there, together or in turn; "
    return (
        f"{who if phase.pattern is Pattern.IN_TURN else ''}the slowest works for {more} on average"
    )


def _pipeline(step_ns: float | None, found: Pipeline | None) -> Iterator[JobFinding]:
    if found is None:
        return
    who, it_works, it_waits = "no rank stands out", "the longest works", "it waits"
    if found.limits:
        is_one = len(found.limits) == 1
        who = f"{ranks_text(found.limits)} {'limits' if is_one else 'limit'} the others"
        it_works, it_waits = ("it works", "it waits") if is_one else ("they work", "they wait")
    yield JobFinding(
        kind="pipeline",
        about="waiting for sends and receives, as the stages of a pipeline do in its bubble",
        cost_ns=found.waiting_ns,
        of_ns=step_ns,
        evidence=(
            f"{who}: {it_works} for {duration(found.work_ns)} of each step, the median of the "
            f"others for {duration(found.others_ns)}; {it_waits} for {duration(found.exposed_ns)} "
            f"{'itself' if it_waits == 'it waits' else 'themselves'}, which nothing hides"
        ),
        look=None,
    )


def _collectives(
    step_ns: float | None, collectives: Sequence[CollectiveUse]
) -> Iterator[JobFinding]:
    for use in collectives:
        if step_ns is None or (use.exposed_ns or 0.0) < _WORTH_A_WORD * step_ns:
            continue
        parts = [
            f"{name} {duration(ns)} each"
            for name, ns in (
                ("moving data takes at most", use.transfer_ns),
                ("waiting for other ranks", use.waiting_ns),
            )
            if ns is not None
        ]
        yield JobFinding(
            kind="collective",
            about=f"{use.operation} of {use.group}" + (f" in {use.path}" if use.path else ""),
            cost_ns=use.exposed_ns,
            of_ns=step_ns,
            evidence=", ".join(["each step waits this long for it", *parts]),
            look=None,
        )


def _stall(rank: int, stall: Stall) -> StallOfRank:
    until_ns = stall.noticed_ns if stall.ended_ns is None else stall.ended_ns
    return StallOfRank(
        rank=rank,
        step=None if stall.step < 0 else stall.step,
        stalled_ns=until_ns - stall.since_ns,
        limit_ns=stall.limit_ns,
        has_ended=stall.ended_ns is not None,
        open_phases=tuple(path for _, path in stall.paths),
    )


def job_verdict(
    job: Job,
    stragglers: Stragglers,
    findings: Sequence[JobFinding],
    stalls: Sequence[StallOfRank],
) -> str:
    """Return what stopped, if anything did, and who is waited for. Of ranks that are missing, or
    were not compared, only that is said."""
    if not job.ranks:
        return f"No run of the {counted(job.world_size, 'rank')} could be read."
    sentence = _who(stragglers)
    is_part = bool(job.missing or stragglers.left_out)
    if is_part and stragglers.pattern is not Pattern.UNKNOWN:
        # The others may be later still.
        compared = counted(len(job.ranks) - len(stragglers.left_out), "rank")
        sentence = f"Of the {compared} compared, {sentence[:1].lower()}{sentence[1:]}"
    if job.missing:
        sentence += f"; {counted(len(job.missing), 'rank')} {_is_are(job.missing)} missing"
    if stragglers.left_out and stragglers.pattern is not Pattern.UNKNOWN:
        left_out = stragglers.left_out
        sentence += f"; {ranks_text(left_out)} {_is_are(left_out)} not compared, as too few of the "
        sentence += f"steps of the others are there of {'it' if len(left_out) == 1 else 'them'}"
    if any(not stall.has_ended for stall in stalls):
        first = findings[0]  # on these stalls
        return f"{capitalised(first.about)}: {first.evidence}. {sentence}."
    return f"{sentence}."


def _is_are(things: Sized) -> str:
    return "is" if len(things) == 1 else "are"


def _who(stragglers: Stragglers) -> str:
    found, pattern, hint = stragglers.straggler, stragglers.pattern, stragglers.hint
    if hint is not None and stragglers.step_ns and hint.path is not None:
        steps = f"{hint.steps:,} of {counted(stragglers.steps, 'step')}"
        delay = duration(hint.lateness_ns * stragglers.steps / hint.steps)
        cost = small_percent(hint.lateness_ns, stragglers.step_ns)
        return (
            f"{capitalised(_name(hint))} held up the others in {steps}, by {delay} on average, "
            f"{small_percent(hint.path_share, 1)} of that {where_text(hint.path)}{_in_line(hint)}, "
            f"which costs "
            f"{cost} of the time; so few delays may be chance"
        )
    if pattern is Pattern.UNKNOWN or (found is None and pattern.is_of_one_rank):
        reason = (stragglers.reason or "the runs don't show it").rstrip(".")
        return f"Which rank is late is unknown: {reason}"
    if found is not None:
        when = "" if found.pattern is Pattern.ALWAYS else " in some steps"
        steps = f"{found.steps:,} of {counted(stragglers.steps, 'step')}"
        later = f"{duration(found.lateness_ns)} after the {_next(found)} on average"
        comes = "it comes" if len(found.ranks) == 1 else "one of them comes"
        text = capitalised(_name(found))
        text += f" {_is_are(found.ranks)} waited for{when}: {comes} last in {steps}, {later}, "
        if found.path is None:
            text += "and the runs can't tell in which phase"
        else:
            share = small_percent(found.path_share, 1)
            text += f"{share} of that {where_text(found.path)}{_in_line(found)}"
        return text + _loss(stragglers) + _contention(stragglers, "; besides, ")
    if stragglers.is_busy:
        before = f"No rank can be named under {CONTENTION}: "
        return _contention(stragglers, before) + _loss(stragglers)
    if pattern is Pattern.IN_TURN:
        who = f" ({ranks_text(stragglers.several)})" if stragglers.several else ""
        several = f"Several ranks{who} are waited for, together or in turn, and none can be named"
        return several + _loss(stragglers)
    return f"No rank stands out in {counted(stragglers.steps, 'step')}{_loss(stragglers)}"


def _name(found: Straggler) -> str:
    """Return whom to look at: "rank 3", or "ranks 4-7, those of host b,"."""
    of = "" if found.host is None else f", those of host {found.host},"
    of = of if found.group is None else f", those of group {found.group},"
    return ranks_text(found.ranks) + of


def _in_line(found: Straggler) -> str:
    return "" if found.line is None else f", in {found.line}"


def _next(found: Straggler) -> str:
    return "next rank" if len(found.ranks) == 1 else "latest of the others"


def _loss(stragglers: Stragglers) -> str:
    if stragglers.loss_share is None or stragglers.loss_share <= 0:
        return ""
    share = small_percent(stragglers.loss_share, 1)
    return f"; differences between ranks cost {share} of the step"


def _contention(stragglers: Stragglers, before: str) -> str:
    if not stragglers.is_busy or stragglers.processor_share is None:
        return ""
    return before + waited_for_processor(stragglers.processor_share)


def findings_parts(findings: Sequence[JobFinding]) -> Iterator[Sentence]:
    if findings:
        yield Sentence()
        yield Sentence("What matters", "title")
    for one in findings:
        cost = f" ({one.cost})" if one.cost else ""
        yield Sentence(printable(f"{one.about}{cost}: {one.evidence}"))
        if one.look is not None:
            yield Sentence(printable(f"  {one.look}"), "note")


def stalls_parts(stalls: Sequence[StallOfRank]) -> Iterator[Sentence]:
    if stalls:
        yield Sentence()
        yield Sentence("Stalls", "title")
    for one in stalls[:_MAX_STALLS]:
        then = "then it went on" if one.has_ended else "and it had not gone on"
        yield Sentence(
            printable(
                f"rank {one.rank}: nothing for {duration(one.stalled_ns)} {one.where}; {then}"
            )
        )
    if len(stalls) > _MAX_STALLS:
        yield Sentence(f"{len(stalls) - _MAX_STALLS:,} further stalls not shown", "note")
