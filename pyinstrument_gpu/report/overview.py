# SPDX-License-Identifier: Apache-2.0
"""The report of a whole run: where its steps went, what ran beside them, what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.report.layout import (
    UNKNOWN,
    Row,
    Unit,
    duration,
    percent,
    printable,
    table,
)
from pyinstrument_gpu.report.step_times import (
    QUANTILES,
    attribution,
    spans_lost_within,
    step_quantiles,
    tree,
)
from pyinstrument_gpu.run import Run, Scope
from pyinstrument_gpu.statistics import PhaseStatistics, Statistic

_WIDTH_FOR_BARS = 100
_BAR_WIDTH = 20

_DROPS = {
    "ring_full": "spans are missing from the history (a ring was full); statistics have them",
    "span_history": "of the oldest spans made room in the history; statistics have them",
    "step_history": "of the oldest steps made room in the history; statistics have them",
    "disk_error": "spans are missing from the history (the disk failed); statistics have them",
    "depth": "spans were nested too deep and are not recorded",
    "names": "phases had one name too many and share a common one",
    "paths": "spans had one path too many and share a common one",
    "threads": "threads were too many and share the last entry",
    "unmatched_ends": "phases were ended that had not begun",
    "nested_steps": 'steps were opened inside a step and are recorded as phase "step"',
    "open_at_thread_end": "phases were open when their thread ended and are not recorded",
    "no_memory": "spans are not recorded: no memory for their thread's buffers",
}


def overview(run: Run, width: int) -> list[Text | Table]:
    """The report of a whole run, as `rich` prints it."""
    parts: list[Text | Table] = [*_heading(run)]
    if run.step_totals.count:
        parts += _steps(run, width)
        parts += _other_threads(run, width)
        parts += _outside(run, width)
    elif run.phases:
        parts += [Text(), Text("No step ended. Per call, over the whole run", "bold")]
        parts += [_per_call(run, run.phases, width)]
    else:
        parts += [Text(), Text("No phase ended.")]
    return [*parts, *_notes(run), *_recorder(run)]


def _heading(run: Run) -> Iterator[Text]:
    environment = run.environment
    command = environment.get("command") or []
    if command:
        text = command if isinstance(command, str) else shlex.join(map(str, command))
        yield Text(printable(text), "bold")
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
    if all(phase.device is None for phase in run.phases.values()):
        facts.append("device timing off")
    yield Text(printable(", ".join(facts)))
    yield Text(
        f"{run.step_totals.count:,} steps in {duration(run.duration_ns)}, "
        + ("complete" if run.complete else "not complete")
    )


def _steps(run: Run, width: int) -> Iterator[Text | Table]:
    totals = run.step_totals
    total_ns = totals.duration.total_ns
    inside = attribution(run)
    missing_ns = total_ns - inside.phases_ns
    quantiles = step_quantiles(run)
    unit = Unit.fitting(totals.duration.mean_ns)
    phases = {path: p for (path, scope), p in run.statistics.items() if scope == Scope.STEP}

    def mean(statistic: Statistic | None, calls: int) -> str:
        if statistic is None or not statistic.count:
            return UNKNOWN
        # Where a measure is known for some of the calls only, their mean stands for all.
        return unit.text(statistic.mean_ns * calls / totals.count)

    def quantile_cells(values_ns: tuple[int, ...]) -> list[str]:
        return [unit.text(value) for value in values_ns] or [UNKNOWN] * len(QUANTILES)

    def bar(time_ns: int) -> str:
        if width < _WIDTH_FOR_BARS or not total_ns:
            return ""
        return "#" * min(round(_BAR_WIDTH * time_ns / total_ns), _BAR_WIDTH)

    absent = (0,) * len(QUANTILES) if quantiles.steps else ()
    largest_ns = max((_self_ns(phase) for phase in phases.values()), default=0)
    rows = []
    for path, depth in tree(run, list(phases)):
        name = run.names[run.path_names[path]]
        phase = phases.get(path)
        if phase is None or phase.host is None:  # it began outside the steps
            rows.append(Row(name, [""] * 8, depth, style="dim"))
            continue
        cells = [
            str(phase.count),
            mean(phase.host, phase.count),
            *quantile_cells(quantiles.phase_ns.get(path, absent)),
            *(mean(s, phase.count) for s in (phase.self_host, phase.device, phase.blocked)),
            percent(phase.host.total_ns, total_ns),
        ]
        style = "bold" if 0 < largest_ns == _self_ns(phase) else ""
        rows.append(Row(name, cells, depth, bar(phase.host.total_ns), style))

    def sum_row(name: str, time_ns: int) -> Row:
        per_step = unit.text(time_ns / totals.count)
        return Row(name, ["", per_step, *[""] * 5, percent(time_ns, total_ns)], note=bar(time_ns))

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
    yield table(headers, [rows, [*sums, Row("step", step, style="bold")]], width)
    yield Text()
    yield Text(
        f"Total step time {duration(total_ns)}, sum of phases {duration(inside.phases_ns)}, "
        f"unattributed {duration(missing_ns)} ({percent(missing_ns, total_ns)}%)"
    )
    rates = ", ".join(_rates(run))
    if rates:
        yield Text(rates)
    if quantiles.steps < totals.count:
        yield Text(
            f"p50 and p95 are over the {quantiles.steps:,} of {totals.count:,} steps "
            "whose spans are kept"
        )
    lost = spans_lost_within(run)
    if lost:
        yield Text(f"p50 and p95 may be too low: {lost:,} spans of these steps may be missing")
    if inside.crossing:
        yield Text(
            f"{inside.crossing:,} spans outlasted their step: "
            "the sum leaves out what lies beyond it, their rows do not"
        )
    elif missing_ns < 0:
        yield Text(
            "The phases add up to more than the steps: a phase outlasted its step or a step "
            "had not ended, and the history that could tell is not kept"
        )


def _self_ns(phase: PhaseStatistics) -> int:
    return phase.self_host.total_ns if phase.self_host is not None else 0


def _rates(run: Run) -> Iterator[str]:
    totals = run.step_totals
    if totals.steps_per_second is not None:
        yield f"{_rate(totals.steps_per_second)} steps/s"
    if totals.samples_per_second is not None:
        over = f" (over {totals.sampled:,} steps)" if totals.sampled < totals.count else ""
        yield f"{_rate(totals.samples_per_second)} samples/s{over}"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"


def _other_threads(run: Run, width: int) -> Iterator[Text | Table]:
    phases = run.phases_in(Scope.OTHER_THREADS)
    if phases:
        yield Text()
        yield Text("Other threads while a step was open, beside its time: per call", "bold")
        yield _per_call(run, phases, width)


def _outside(run: Run, width: int) -> Iterator[Text | Table]:
    outside_ns = run.duration_ns - run.step_totals.duration.total_ns
    if run.open_step is not None:
        outside_ns -= run.duration_ns - run.open_step.begin_ns
    yield Text()
    yield Text(
        f"Outside steps: {duration(outside_ns)} of {duration(run.duration_ns)} "
        f"({percent(outside_ns, run.duration_ns)}%)",
        "bold",
    )
    phases = run.phases_in(Scope.OUTSIDE)
    if phases:
        yield _per_call(run, phases, width)


def _per_call(run: Run, phases: Mapping[str, PhaseStatistics], width: int) -> Table:
    ids = {path: i for i, path in enumerate(run.paths)}
    hosts = {ids[path]: p for path, p in phases.items()}
    unit = Unit.fitting(max(p.host.mean_ns for p in hosts.values() if p.host is not None))

    def mean(statistic: Statistic | None) -> str:
        return unit.text(statistic.mean_ns if statistic is not None and statistic.count else None)

    rows = []
    for path, depth in tree(run, list(hosts)):
        name = run.names[run.path_names[path]]
        phase = hosts.get(path)
        if phase is None or phase.host is None:  # it began in another scope
            rows.append(Row(name, [""] * 8, depth, style="dim"))
            continue
        cells = [
            str(phase.count),
            f"{phase.host.total_ns / 1e9:.3f}",
            mean(phase.host),
            unit.text(phase.host.p50_ns),
            unit.text(phase.host.p95_ns),
            *(mean(statistic) for statistic in (phase.self_host, phase.device, phase.blocked)),
        ]
        rows.append(Row(name, cells, depth))
    headers = [
        "phase",
        "calls",
        "total s",
        f"mean {unit.name}",
        "p50",
        "p95",
        "self",
        "device",
        "blocked",
    ]
    return table(headers, [rows], width)


def _notes(run: Run) -> Iterator[Text]:
    notes = [*run.notes]
    if run.open_phases:
        opened = ", ".join(
            f"{phase.path} ({run.threads[phase.thread].name}, since {duration(phase.begin_ns)})"
            for phase in run.open_phases
        )
        notes.append(f"Open at the end: {opened}.")
    if run.open_step is not None:
        notes.append(
            f"Step {run.open_step.index} had not ended: its phases count, its time does not."
        )
    left_early = run.step_totals.count - run.step_totals.complete
    if left_early:
        notes.append(
            f"{left_early:,} of {run.step_totals.count:,} steps were left before their end."
        )
    if notes:
        yield Text()
    for note in notes:
        yield Text(f"! {printable(note)}", "yellow")


def _recorder(run: Run) -> Iterator[Text]:
    yield Text()
    facts = []
    phase_ns = run.overhead.get("phase_ns")
    totals = run.step_totals
    if phase_ns is None:
        facts.append("cost per phase not measured")
    else:
        facts.append(f"{phase_ns:.1f} ns per phase")
    if totals.count:
        calls = sum(phase.count for phase in run.phases_in(Scope.STEP).values())
        facts.append(f"{calls / totals.count:.1f} phases per step")
        if phase_ns is not None and totals.duration.total_ns:
            share = 100 * phase_ns * calls / totals.duration.total_ns
            facts.append(f"{share:.2g}% of the step")
    if run.duration_ns:
        share = 100 * run.harvester_cpu_ns / run.duration_ns
        facts.append(f"its own thread {share:.2g}% of one core")
    yield Text("Recorder: " + ", ".join(facts), "dim")
    drops = {cause: count for cause, count in run.dropped.items() if count}
    if not drops:
        yield Text("Nothing dropped", "dim")
    for cause, count in drops.items():
        yield Text(f"Dropped ({cause}): {count:,} {_DROPS.get(cause, '')}".rstrip(), "yellow")
