# SPDX-License-Identifier: Apache-2.0
"""The report of a whole run: where its steps went, what else ran, and what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.document.document import Document
from pyinstrument_gpu.document.phases import PhaseCalls, PhaseInSteps, overlap
from pyinstrument_gpu.document.steps import StepTimes
from pyinstrument_gpu.parts.parts import Emphasis, Part, Row, Sentence
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    counted,
    duration,
    percent,
    printable,
    rate,
    share,
)
from pyinstrument_gpu.report.console import notes
from pyinstrument_gpu.report.device_times import device_times
from pyinstrument_gpu.report.guides import guides_section
from pyinstrument_gpu.report.ledger import ledger_section
from pyinstrument_gpu.report.recorder import recorder_section
from pyinstrument_gpu.report.savings import savings_section


def overview(document: Document) -> list[Part]:
    """The parts of the report of a whole run."""
    return [part for parts in sections(document).values() for part in parts]


def sections(document: Document) -> dict[str, list[Part]]:
    """The parts of the report by what they are about, in order."""
    steps = document.steps
    recorded = {one: document.sections.get(one.name) for one in aspects()}
    recorded = {aspect: section for aspect, section in recorded.items() if section}
    found: dict[str, Iterable[Part]] = {
        "first": [part for one, section in recorded.items() for part in one.first_parts(section)],
        "heading": _heading(document),
    }
    if document.run.is_preview:
        found["phases"] = []  # its times are not the program's
    elif steps is not None:
        found |= {
            "phases": _steps(steps, document.phases),
            "device": device_times(document, document.phases),
            "ledger": ledger_section(document.ledger, steps),
            "savings": savings_section(document.savings, document.findings),
            "guides": guides_section(document.guides, document.findings),
            "other threads": _other_threads(document.phases_on_other_threads),
            "outside": _outside(document, steps),
        }
    elif document.phases_without_steps:
        phases = document.phases_without_steps
        title = Sentence("No step ended. Times per call, over the whole run", "title")
        found |= {
            "phases": [Sentence(), title, *_per_call(phases)],
            "device": device_times(document, phases),
        }
    else:
        found["phases"] = [Sentence(), Sentence("No phase ended.")]
    for aspect, section in recorded.items():
        if aspect.in_preview or not document.run.is_preview:
            found[aspect.name] = aspect.parts(section, document)
    found |= {
        "notes": notes(document.notes),
        "recorder": recorder_section(document.recorder),
    }
    return {name: list(parts) for name, parts in found.items()}


def _heading(document: Document) -> Iterator[Sentence]:
    run, steps = document.run, document.steps
    if run.command:
        yield Sentence(printable(shlex.join(run.command)), "title")
    facts = []
    if run.host:
        facts.append(f"host {run.host}")
    if run.rank is not None:
        facts.append(f"rank {run.rank}" + (f" of {run.world_size}" if run.world_size else ""))
    if run.torch:
        facts.append(f"torch {run.torch}")
    if run.gpu_count is not None:
        names = dict.fromkeys(run.gpus)
        facts += [f"{run.gpus.count(gpu)} x {gpu}" for gpu in names] or ["no GPU"]
    if run.loader_workers is not None:
        facts.append(counted(run.loader_workers, "loader worker"))
    if run.other_streams:
        facts.append("several streams")
    if not run.device_timing:
        facts.append("device timing off")
    yield Sentence(printable(", ".join(facts)))
    yield Sentence(
        f"{counted(0 if steps is None else steps.count, 'step')} in {duration(run.duration_ns)}, "
        + ("complete" if run.is_complete else "incomplete")
    )
    yield Sentence(printable(document.verdict), "title")


def _steps(steps: StepTimes, phases: Sequence[PhaseInSteps]) -> Iterator[Part]:
    unit = Unit.fitting(steps.mean_ns)

    def share_cell(of_step: float | None) -> str:
        return UNKNOWN if of_step is None else f"{100 * of_step:.1f}"

    largest_ns = max((phase.self_ns or 0 for phase in phases), default=0)
    rows = {}
    for phase in phases:
        times_ns = (phase.host_ns, phase.p50_ns, phase.p95_ns, phase.self_ns)
        cells = [
            str(phase.calls),
            *map(unit.text, (*times_ns, phase.stream_ns, phase.blocked_ns)),
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
        sum_row("unattributed", steps.unattributed_ns),
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
    total_ns, missing_ns = steps.total_ns, steps.unattributed_ns
    unattributed = UNKNOWN
    if missing_ns is not None:
        unattributed = duration(missing_ns) + share(missing_ns, total_ns)
    yield Sentence(
        f"Total step time {duration(total_ns)}, sum of phases {duration(steps.phases_ns)}, "
        f"unattributed {unattributed}"
    )
    if steps.crossing_spans is None:
        yield Sentence(
            "Some history is missing, so the sum is made of self times: a phase that outlasts its "
            "step, or the phase around it, counts in full"
        )
        if missing_ns is None:
            yield Sentence("Unattributed time is unknown, because the sum exceeds the step time")
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


def _other_threads(phases: Sequence[PhaseCalls]) -> Iterator[Part]:
    if phases:
        yield Sentence()
        yield Sentence(
            "Other threads while a step was open (not part of its time): per call", "title"
        )
        yield from _per_call(phases)


def _outside(document: Document, steps: StepTimes) -> Iterator[Part]:
    phases, duration_ns = document.phases_outside, document.run.duration_ns
    yield Sentence()
    yield Sentence(
        f"Outside steps: {duration(steps.outside_ns)} of {duration(duration_ns)}"
        f"{share(steps.outside_ns, duration_ns)}",
        "title",
    )
    if not phases and steps.startup_ns == 0:
        return
    yield from _per_call(phases, {"start-up": steps.startup_ns})
    if any(phase.during_steps for phase in phases):
        yield Sentence("* was open during steps, so its times include theirs")


def _per_call(
    phases: Sequence[PhaseCalls],
    totals_ns: Mapping[str, int | None] = MappingProxyType({}),
) -> Iterator[Part]:
    """A table of times per call, with `totals_ns` as a second block."""
    total_ns = max([*(one.total_ns for one in phases), *(ns or 0 for ns in totals_ns.values())])
    means_ns = (one.mean_ns for one in phases if one.mean_ns is not None)
    unit = Unit.fitting(max(means_ns, default=total_ns), total_ns)
    rows = {}
    for one in phases:
        times_ns = (one.mean_ns, one.p50_ns, one.p95_ns, one.self_ns, one.stream_ns, one.blocked_ns)
        cells = [str(one.calls), unit.text(one.total_ns), *map(unit.text, times_ns)]
        rows[one.path] = Row("", cells, note="*" if one.during_steps else "")
    sums = [Row(name, ["", unit.text(ns), *[""] * 6]) for name, ns in totals_ns.items()]
    times = [f"total {unit.name}", f"mean {unit.name}", "p50", "p95", "self", "device", "blocked"]
    yield from phase_table(["phase", "calls", *times], rows, sums)
