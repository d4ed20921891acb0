# SPDX-License-Identifier: Apache-2.0
"""The part of the report that accounts for each step twice: for the host and for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.analysis.time_budget import TimeBudget, TimeBudgetEntry
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import Unit, counted
from pyinstrument_gpu.report.steps import StepTimes

_HOST_HEADERS = ("phase", "computing", "blocked")
_IDLE = {
    "data wait": "data",
    "sync wait": "sync",
    "host wait": "host",
    "unknown": "rest",
}
_HEADERS = (*_HOST_HEADERS, "| busy", *_IDLE)
_BUSY_OR_WAITING = {"| busy": "| busy?"}
_LEGEND = (
    "host: the phase's own time, either computing or blocked (waiting for the device)",
    "device: what the stream did, by the phase that enqueued the work. Idle time is listed by "
    "cause where events prove it. unknown: busy or idle, events cannot tell",
)


def time_budget_parts(time_budget: TimeBudget | None, steps: StepTimes | None) -> Iterator[Part]:
    """The time budget as means per step."""
    if time_budget is None or steps is None:
        return
    total = time_budget.total
    unit = Unit.fitting(time_budget.step_ns)
    is_timed = total.busy_ns is not None
    headers: Sequence[str] = _HEADERS
    legend: Sequence[str] = _LEGEND
    sides, adds_up = "host side | device side", "Each side adds up"
    if not is_timed:  # a side of which nothing is known is no side
        headers, legend = _HOST_HEADERS, _LEGEND[:1]
        sides, adds_up = "host side; the device was not timed", "They add up"
    if is_timed and time_budget.doubt is not None:
        headers = [_BUSY_OR_WAITING.get(header, header) for header in headers]
        waits = f"When the stream looks busy it may be waiting {time_budget.doubt}"
        legend = (*legend, f"busy?: busy or waiting. {waits}")

    def cells(entry: TimeBudgetEntry) -> list[str]:
        return _cells(entry, unit)[: len(headers) - 1]

    rows = {one.path: Row("", cells(one)) for one in time_budget.entries if one.path is not None}
    sums = [Row("outside phases", cells(one)) for one in time_budget.entries if one.path is None]
    sums.append(Row("step", cells(total), emphasis="bold"))
    yield Sentence()
    yield Sentence(f"Time budget: {unit.name} per step, {sides}", "title")
    yield from phase_table(headers, rows, sums, short=_IDLE)
    all_steps = ""
    if time_budget.steps < steps.count:
        all_steps = f"; over all {steps.count:,} steps {unit.text(steps.mean_ns)}"
    yield Sentence(
        f"{adds_up} to the step: {unit.text(time_budget.step_ns)} {unit.name} "
        f"(mean of {counted(time_budget.steps, 'step')}{all_steps})"
    )
    for line in legend:
        yield Sentence(line, "note")
    if total.blocked_ns is None:
        yield Sentence("?: computing and blocked together, because syncs were not watched", "note")


def _cells(entry: TimeBudgetEntry, unit: Unit) -> list[str]:
    computing_ns = entry.computing_ns
    first = f"{unit.text(entry.host_ns)}?" if computing_ns is None else unit.text(computing_ns)
    idle_ns = (entry.data_wait_ns, entry.sync_wait_ns, entry.host_wait_ns)
    others_ns = (entry.blocked_ns, entry.busy_ns, *idle_ns, entry.unknown_ns)
    return [first, *map(unit.text, others_ns)]
