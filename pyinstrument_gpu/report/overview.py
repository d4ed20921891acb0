# SPDX-License-Identifier: Apache-2.0
"""The report of a whole run: where its steps went, what else ran, and what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import (
    QUANTILES,
    mean_per_step_ns,
    outside_during_steps,
    startup_ns,
)
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.report.device_times import device_times, unfinished_work_note
from pyinstrument_gpu.report.energy import energy_section
from pyinstrument_gpu.report.ledger import ledger_section
from pyinstrument_gpu.report.memory import memory_section, out_of_memory
from pyinstrument_gpu.report.metrics import metrics
from pyinstrument_gpu.report.modules import modules_section
from pyinstrument_gpu.report.operations import operations_section
from pyinstrument_gpu.report.phase_tree import phase_table
from pyinstrument_gpu.report.recorder import recorder_section
from pyinstrument_gpu.report.rules import rules_section
from pyinstrument_gpu.report.savings import savings_section
from pyinstrument_gpu.report.syncs import syncs_section
from pyinstrument_gpu.report.table import (
    UNKNOWN,
    Row,
    Unit,
    counted,
    duration,
    percent,
    printable,
    share,
)

_WIDTH_FOR_BARS = 100
_BAR_WIDTH = 20


def overview(run: RunData, width: int) -> list[Text | Table]:
    """The report of a whole run, as `rich` prints it."""
    parts: list[Text | Table] = [*out_of_memory(run), *_heading(run)]
    if run.step_totals.count:
        parts += _steps(run, width)
        parts += device_times(run, Scope.STEP, width)
        parts += ledger_section(run, width)
        parts += savings_section(run, width)
        parts += rules_section(run)
        parts += _other_threads(run, width)
        parts += _outside(run, width)
    elif run.phases:
        parts += [Text(), Text("No step ended. Times per call, over the whole run", "bold")]
        parts += _per_call(run, run.phases, width)
        parts += device_times(run, None, width)
    else:
        parts += [Text(), Text("No phase ended.")]
    return [
        *parts,
        *modules_section(run, width),
        *syncs_section(run, width),
        *operations_section(run, width),
        *memory_section(run, width),
        *energy_section(run),
        *metrics(run, width),
        *_notes(run),
        *recorder_section(run),
    ]


def _heading(run: RunData) -> Iterator[Text]:
    environment = run.environment
    command = environment.get("command")
    if command:
        yield Text(printable(shlex.join(command)), "bold")
    facts = []
    if environment.get("host"):
        facts.append(f"host {environment['host']}")
    if environment.get("rank") is not None:
        world_size = environment.get("world_size")
        facts.append(f"rank {environment['rank']}" + (f" of {world_size}" if world_size else ""))
    if environment.get("torch"):
        facts.append(f"torch {environment['torch']}")
    gpus = environment.get("gpus")
    if gpus is not None:
        facts += [f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)] or ["no GPU"]
    program = run.program_facts
    if program.loader_workers is not None:
        facts.append(counted(program.loader_workers, "loader worker"))
    if program.other_streams:
        facts.append("several streams")
    never_timed = all(phase.device is None for phase in run.phases.values())
    if run.device_timing is None and never_timed:
        facts.append("device timing off")
    yield Text(printable(", ".join(facts)))
    yield Text(
        f"{counted(run.step_totals.count, 'step')} in {duration(run.duration_ns)}, "
        + ("complete" if run.complete else "incomplete")
    )


def _steps(run: RunData, width: int) -> Iterator[Text | Table]:
    totals = run.step_totals
    total_ns = totals.duration.total_ns
    inside = analysis.of(run).attribution
    missing_ns = inside.unattributed_ns
    quantiles = analysis.of(run).step_quantiles
    unit = Unit.fitting(totals.duration.mean_ns)
    phases = {path: p for (path, scope), p in run.statistics.items() if scope == Scope.STEP}

    def mean(statistic: Statistic | None, calls: int) -> str:
        return unit.text(mean_per_step_ns(run, statistic, calls))

    def quantile_cells(values_ns: tuple[int, ...]) -> list[str]:
        return [*map(unit.text, values_ns or (None,) * len(QUANTILES))]

    def share_cells(time_ns: int | None) -> tuple[str, str]:
        """The share of the step as a number and as a bar."""
        if time_ns is None or not 0 <= time_ns <= total_ns > 0:
            return UNKNOWN, ""
        bar = "#" * round(_BAR_WIDTH * time_ns / total_ns) if width >= _WIDTH_FOR_BARS else ""
        return percent(time_ns, total_ns), bar

    largest_ns = max((_self_ns(phase) for phase in phases.values()), default=0)
    rows = {}
    for path, phase in phases.items():
        if phase.host is None:
            continue
        percentage, bar = share_cells(phase.host.total_ns)
        cells = [
            str(phase.count),
            mean(phase.host, phase.count),
            *quantile_cells(quantiles.of_path(path)),
            *(mean(s, phase.count) for s in (phase.self_host, phase.device, phase.blocked)),
            percentage,
        ]
        style = "bold" if 0 < largest_ns == _self_ns(phase) else ""
        rows[path] = Row("", cells, note=bar, style=style)

    def sum_row(name: str, time_ns: int | None) -> Row:
        per_step = unit.text(None if time_ns is None else time_ns / totals.count)
        percentage, bar = share_cells(time_ns)
        return Row(name, ["", per_step, *[""] * 5, percentage], note=bar)

    step = [
        str(totals.count),
        unit.text(totals.duration.mean_ns),
        *quantile_cells(quantiles.duration_ns),
        *[""] * 3,
        percent(total_ns, total_ns),
    ]
    sums = [sum_row("sum of phases", inside.phases_ns), sum_row("unattributed", missing_ns)]
    headers = ["phase", "calls", "mean", "p50", "p95", "self", "device", "blocked", "% step"]
    yield Text()
    yield Text(f"Where the step goes: {unit.name} per step", "bold")
    sums.append(Row("step", step, style="bold"))
    yield from phase_table(run, headers, rows, width, sums)
    yield Text()
    unattributed = UNKNOWN
    if missing_ns is not None:
        unattributed = duration(missing_ns) + share(missing_ns, total_ns)
    yield Text(
        f"Total step time {duration(total_ns)}, sum of phases {duration(inside.phases_ns)}, "
        f"unattributed {unattributed}"
    )
    if inside.crossing is None:
        yield Text(
            "Some history is missing, so the sum is made of self times: a phase that outlasts its "
            "step, or the phase around it, counts in full"
        )
        if missing_ns is None:
            yield Text("Unattributed time is unknown, because the sum exceeds the step time")
    elif inside.crossing:
        yield Text(
            f"Spans that outlasted their step: {inside.crossing:,}. Rows count them in full, "
            "the sum only their time inside steps"
        )
    yield from _blocked_coverage(phases.values())
    yield from _rates(run)
    losses = analysis.of(run).span_losses
    if not quantiles.steps:
        only = " and was not profiled" if quantiles.profiled else ""
        yield Text(f"No p50 and p95: no step has all of its spans in the history{only}")
    elif quantiles.steps < totals.count - quantiles.profiled:
        which = "whose spans are still in the history"
        if losses.lacking.any():
            which = "in a row that lack no spans, the most there are"
        yield Text(f"p50 and p95 cover the {quantiles.steps:,} of {totals.count:,} steps {which}")
    if quantiles.profiled and quantiles.steps:
        steps = counted(quantiles.profiled, "profiled step")
        yield Text(f"p50 and p95 leave out {steps}. Means, totals and shares include them")
    if losses.spans and not losses.are_located and quantiles.steps:
        spans = counted(losses.spans, "span")
        yield Text(f"p50 and p95 may be too low: {spans} of these steps may be missing")


def _self_ns(phase: PhaseStatistics) -> int:
    return phase.self_host.total_ns if phase.self_host is not None else 0


def _blocked_coverage(phases: Collection[PhaseStatistics]) -> Iterator[Text]:
    known = [phase.blocked.count for phase in phases if phase.blocked is not None]
    calls = sum(phase.count for phase in phases if phase.blocked is not None)
    if sum(known) < calls:
        yield Text(
            f"blocked is known of {sum(known):,} of {calls:,} calls; their mean stands for all"
        )


def _rates(run: RunData) -> Iterator[Text]:
    totals = run.step_totals
    rates = []
    if totals.steps_per_second is not None:
        rates.append(f"{_rate(totals.steps_per_second)} steps/s")
    if totals.samples_per_second is not None:
        rates.append(f"{_rate(totals.samples_per_second)} samples/s")
    if rates:
        known = f" (samples of {totals.sampled:,} of {totals.count:,} steps known)"
        partly = 0 < totals.sampled < totals.count
        yield Text(", ".join(rates) + " of step time" + (known if partly else ""))


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"


def _other_threads(run: RunData, width: int) -> Iterator[Text | Table]:
    phases = run.phases_in(Scope.OTHER_THREADS)
    if phases:
        yield Text()
        yield Text("Other threads while a step was open (not part of its time): per call", "bold")
        yield from _per_call(run, phases, width)


def _outside(run: RunData, width: int) -> Iterator[Text | Table]:
    outside_ns = run.duration_ns - run.step_totals.duration.total_ns
    if run.open_step is not None:
        outside_ns -= run.duration_ns - run.open_step.begin_ns
    yield Text()
    yield Text(
        f"Outside steps: {duration(outside_ns)} of {duration(run.duration_ns)}"
        f"{share(outside_ns, run.duration_ns)}",
        "bold",
    )
    phases = run.phases_in(Scope.OUTSIDE)
    until_first_step_ns = startup_ns(run)
    if not phases and until_first_step_ns == 0:
        return
    # Where the span itself is lost, it tells by its length: longer than all the time outside.
    too_long = {path for path, p in phases.items() if p.host and p.host.max_ns > outside_ns}
    during_steps = too_long | {run.paths[path] for path in outside_during_steps(run)}
    yield from _per_call(run, phases, width, during_steps, {"start-up": until_first_step_ns})
    if during_steps:
        yield Text("* was open during steps, so its times include theirs")


def _per_call(
    run: RunData,
    phases: Mapping[str, PhaseStatistics],
    width: int,
    during_steps: Collection[str] = (),
    totals_ns: Mapping[str, int | None] = MappingProxyType({}),
) -> Iterator[Text | Table]:
    """A table of times per call, with `totals_ns` as a second block.

    The paths `during_steps` are marked, without self times: as far as they lie in a step, those are
    what that step calls unattributed.
    """
    hosts = [phase.host for phase in phases.values() if phase.host is not None]
    total_ns = max([*(host.total_ns for host in hosts), *(ns or 0 for ns in totals_ns.values())])
    unit = Unit.fitting(max((host.mean_ns for host in hosts), default=total_ns), total_ns)

    def mean(statistic: Statistic | None) -> str:
        return unit.text(statistic.mean_ns if statistic is not None and statistic.count else None)

    rows = {}
    for path, name in enumerate(run.paths):
        phase = phases.get(name)
        if phase is None or phase.host is None:
            continue
        marked = name in during_steps
        cells = [
            str(phase.count),
            unit.text(phase.host.total_ns),
            mean(phase.host),
            unit.text(phase.host.p50_ns),
            unit.text(phase.host.p95_ns),
            mean(None if marked else phase.self_host),
            mean(phase.device),
            mean(phase.blocked),
        ]
        rows[path] = Row("", cells, note="*" if marked else "")
    sums = [Row(name, ["", unit.text(ns), *[""] * 6]) for name, ns in totals_ns.items()]
    times = [f"total {unit.name}", f"mean {unit.name}", "p50", "p95", "self", "device", "blocked"]
    yield from phase_table(run, ["phase", "calls", *times], rows, width, sums)


def _notes(run: RunData) -> Iterator[Text]:
    notes = [*run.notes]
    if run.open_phases:
        opened = ", ".join(
            f"{phase.path} ({run.threads[phase.thread].name}, since {duration(phase.begin_ns)})"
            for phase in run.open_phases
        )
        notes.append(f"Open at the end: {opened}.")
    if run.open_step is not None:
        notes.append(
            f"Step {run.open_step.index} had not ended: its phases are counted, its time is not."
        )
    if run.environment.get("optimizer_seen") is False:
        notes.append("No optimizer was seen, so each step ends with a backward pass.")
    unfinished = unfinished_work_note(run)
    if unfinished is not None:
        notes.append(unfinished)
    left_early = run.step_totals.count - run.step_totals.complete
    if left_early:
        notes.append(f"Cut short: {left_early:,} of {counted(run.step_totals.count, 'step')}.")
    if notes:
        yield Text()
    for note in notes:
        yield Text(f"! {printable(note)}", "yellow")
