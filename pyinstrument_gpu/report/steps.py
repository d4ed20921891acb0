# SPDX-License-Identifier: Apache-2.0
"""The section on steps: how long they take, and how much of that phases account for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import outside_ns, startup_ns
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Emphasis, Part, Row, Sentence
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    counted,
    duration,
    percent,
    rate,
    share,
    small_percent,
)
from pyinstrument_gpu.report.phases import PhaseCalls, PhaseInSteps, overlap, per_call_parts

OUTSIDE_SHARE = 0.01
"""Of the time outside steps, that it takes to be told."""


@dataclass(frozen=True)
class StepTimes:
    """The steps that ended.

    Attributes:
        count: how many that ran to their end; of these are all other numbers here.
        cut_short: how many an exception, a break or the end of their loader cut short. If these
            can't be told from the others any more, `count` counts them too.
        p50_ns, p95_ns: of `quantile_steps` steps: those whose spans are all in the history.
        profiled: how many further steps the profiler slowed, which are left out of everything here.
        profiled_mean_ns: their mean.
        phases_ns: of `total_ns`, what phases account for.
        outside_phases_ns: the rest; unknown where phases account for more than all.
        crossing_spans: spans that outlasted their step, of which only the part in steps counts.
            Unknown where the history is not whole: then `phases_ns` is a sum of self times.
        lost_spans: spans that are missing from the history for another reason than their age.
        lost_are_located: whether it is known which steps lack spans.
        in_a_row: whether the quantiles are of the longest row of steps that lack no spans.
        startup_ns: from the begin of the recording to that of the first step.
        outside_ns: the time outside steps.
        steps_per_second: of the time in steps.
        samples_per_second: of the time in those `sampled` steps whose samples are known.
        optimizer_seen: false: each step ends with a backward pass.
    """

    count: int
    cut_short: int
    total_ns: int
    mean_ns: float
    p50_ns: int | None
    p95_ns: int | None
    quantile_steps: int
    profiled: int
    profiled_mean_ns: float | None
    phases_ns: int
    outside_phases_ns: int | None
    crossing_spans: int | None
    lost_spans: int
    lost_are_located: bool
    in_a_row: bool
    startup_ns: int | None
    outside_ns: int
    steps_per_second: float | None
    samples_per_second: float | None
    sampled: int
    optimizer_seen: bool | None


def steps(run: Run) -> StepTimes | None:
    """Return the step times; None where no step ended."""
    found, profiled = analysis.of(run), run.profiled_totals
    totals = found.step_totals
    if not totals.count:
        return None
    inside, quantiles, losses = found.attribution, found.step_quantiles, found.span_losses
    p50_ns, p95_ns = quantiles.duration_ns or (None, None)
    total_ns = totals.duration.total_ns
    return StepTimes(
        count=totals.count,
        cut_short=run.step_totals.count - run.step_totals.complete,
        total_ns=total_ns,
        mean_ns=totals.duration.mean_ns,
        p50_ns=p50_ns,
        p95_ns=p95_ns,
        quantile_steps=quantiles.steps,
        profiled=profiled.count,
        profiled_mean_ns=profiled.duration.mean_ns if profiled.count else None,
        phases_ns=inside.phases_ns,
        outside_phases_ns=inside.outside_phases_ns,
        crossing_spans=inside.crossing,
        lost_spans=losses.spans,
        lost_are_located=losses.are_located,
        in_a_row=bool(losses.lacking.any()),
        startup_ns=startup_ns(run),
        outside_ns=outside_ns(run),
        steps_per_second=totals.steps_per_second,
        samples_per_second=totals.samples_per_second,
        sampled=totals.sampled,
        optimizer_seen=run.environment.get("optimizer_seen"),
    )


def steps_parts(steps: StepTimes, phases: Sequence[PhaseInSteps]) -> Iterator[Part]:
    unit = Unit.fitting(steps.mean_ns)

    def share_cell(of_step: float | None) -> str:
        return UNKNOWN if of_step is None else f"{100 * of_step:.1f}"

    largest_ns = max((phase.self_ns or 0 for phase in phases), default=0)
    rows = {}
    for phase in phases:
        times_ns = (phase.host_ns, phase.p50_ns, phase.p95_ns, phase.self_ns)
        cells = [
            str(phase.calls),
            *map(unit.text, (*times_ns, phase.device_ns, phase.blocked_ns)),
            share_cell(phase.share),
        ]
        emphasis: Emphasis = "bold" if 0 < largest_ns == (phase.self_ns or 0) else ""
        rows[phase.path] = Row("", cells, share=phase.share, emphasis=emphasis)

    def sum_row(name: str, time_ns: int | None) -> Row:
        per_step = unit.text(None if time_ns is None else time_ns / steps.count)
        is_share = time_ns is not None and 0 <= time_ns <= steps.total_ns > 0
        of_step = (time_ns or 0) / steps.total_ns if is_share else None
        return Row(name, ["", per_step, *[""] * 5, share_cell(of_step)], share=of_step)

    step = [
        str(steps.count),
        *map(unit.text, (steps.mean_ns, steps.p50_ns, steps.p95_ns)),
        *[""] * 3,
        percent(steps.total_ns, steps.total_ns),
    ]
    sums = [
        sum_row("sum of phases", steps.phases_ns),
        sum_row("outside phases", steps.outside_phases_ns),
        Row("step", step, emphasis="bold"),
    ]
    headers = ["phase", "calls", "mean", "p50", "p95", "self", "device", "blocked", "% step"]
    yield Sentence()
    yield Sentence(f"Where the step goes: {unit.name} per step", "title")
    yield from phase_table(headers, rows, sums)
    yield Sentence()
    yield from _attribution(steps)
    if (own := overlap(phases, steps.mean_ns)) is not None:
        yield Sentence(
            f"Phases overlap: their self times add up to {own:.0%} of the step. A phase of a task "
            "or a generator goes on while that is suspended"
        )
    yield from _blocked_coverage(phases)
    yield from _rates(steps)
    yield from _quantiles(steps)


def _attribution(steps: StepTimes) -> Iterator[Sentence]:
    total_ns, missing_ns = steps.total_ns, steps.outside_phases_ns
    outside = UNKNOWN
    if missing_ns is not None:
        outside = duration(missing_ns) + share(missing_ns, total_ns)
    yield Sentence(
        f"Total step time {duration(total_ns)}, sum of phases {duration(steps.phases_ns)}, "
        f"outside phases {outside}"
    )
    if steps.crossing_spans is None:
        yield Sentence(
            "Some history is missing, so the sum is made of self times: a phase that outlasts its "
            "step, or the phase around it, counts in full"
        )
        if missing_ns is None:
            yield Sentence("Time outside phases is unknown, because the sum exceeds the step time")
    elif steps.crossing_spans:
        yield Sentence(
            f"Spans that outlasted their step: {steps.crossing_spans:,}. Rows count them in full, "
            "the sum only their time inside steps"
        )


def _quantiles(steps: StepTimes) -> Iterator[Sentence]:
    if not steps.quantile_steps:
        only = " and was not profiled" if steps.profiled else ""
        yield Sentence(f"No p50 and p95: no step has all of its spans in the history{only}")
    elif steps.quantile_steps < steps.count:
        which = "whose spans are still in the history"
        if steps.in_a_row:
            which = "in a row that lack no spans, the most there are"
        yield Sentence(
            f"p50 and p95 cover the {steps.quantile_steps:,} of {steps.count:,} steps {which}"
        )
    if steps.profiled and steps.profiled_mean_ns is not None:
        more_ns = steps.profiled_mean_ns - steps.mean_ns
        yield Sentence(
            f"All times leave out {counted(steps.profiled, 'profiled step')}, which took "
            f"{duration(steps.profiled_mean_ns)} on average"
            + (f", {duration(more_ns)} more than others" if more_ns > 0 else "")
        )
    if steps.lost_spans and not steps.lost_are_located and steps.quantile_steps:
        spans = counted(steps.lost_spans, "span")
        yield Sentence(f"p50 and p95 may be too low: {spans} of these steps may be missing")


def _blocked_coverage(phases: Sequence[PhaseInSteps]) -> Iterator[Sentence]:
    blocked = [phase for phase in phases if phase.blocked_ns is not None]
    calls = sum(phase.calls for phase in blocked)
    known = sum(
        phase.calls if phase.blocked_calls is None else phase.blocked_calls for phase in blocked
    )
    if known < calls:
        yield Sentence(
            f"blocked is known of {known:,} of {calls:,} calls; their mean stands for all"
        )


def _rates(steps: StepTimes) -> Iterator[Sentence]:
    rates = []
    if steps.steps_per_second is not None:
        rates.append(f"{rate(steps.steps_per_second)} steps/s")
    if steps.samples_per_second is not None:
        rates.append(f"{rate(steps.samples_per_second)} samples/s")
    if rates:
        known = f" (samples of {steps.sampled:,} of {steps.count:,} steps known)"
        partly = 0 < steps.sampled < steps.count
        yield Sentence(", ".join(rates) + " of step time" + (known if partly else ""))


def outside_parts(
    steps: StepTimes | None, phases: Sequence[PhaseCalls], duration_ns: int
) -> Iterator[Part]:
    """Yield what a run of that duration does outside of steps."""
    if steps is None:
        return
    yield Sentence()
    yield Sentence(outside_words(steps, duration_ns), "title")
    if phases:
        yield from per_call_parts(phases)
    if any(phase.during_steps for phase in phases):
        yield Sentence("* was open during steps, so its times include theirs")


def outside_words(steps: StepTimes, duration_ns: int) -> str:
    """Return how much of a run of that duration lies outside of steps, and before the first."""
    text = f"Outside steps: {duration(steps.outside_ns)} of {duration(duration_ns)}"
    if duration_ns:
        text += f" ({small_percent(steps.outside_ns, duration_ns)})"
    startup_ns = steps.startup_ns or 0
    if startup_ns > OUTSIDE_SHARE * steps.outside_ns:
        text += f", {duration(startup_ns)} of it before the first step"
    return text
