# SPDX-License-Identifier: Apache-2.0
"""The part of the report that accounts for each step twice: for the host and for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.ledger import MeanEntry
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import phase_table
from pyinstrument_gpu.report.table import Row, Unit, counted

_WIDTH_FOR_WORDS = 100
_HOST_HEADERS = ("phase", "computing", "blocked")
_SIDES = (*_HOST_HEADERS, "| busy")
_WIDE_HEADERS = (*_SIDES, "data wait", "host blocked", "host late", "unattributed")
_HEADERS = (*_SIDES, "data", "sync", "late", "rest")
_BUSY_OR_WAITING = {"| busy": "| busy?"}
_SHORT = "data: data wait, sync: host blocked, late: host late, rest: unattributed"
_LEGEND = (
    "host: the phase's own time, either computing or blocked (waiting for the device)",
    "device: what the stream did, by the phase that enqueued the work. Idle time is listed by "
    "cause where events prove it. unattributed: busy or idle, events cannot tell",
)


def ledger_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The ledger as means per step; nothing if it would add nothing to the table of phases."""
    found = analysis.of(run)
    if not found.knows_waits or not len(found.ledger.entries):
        return
    steps, means = found.ledger.means()
    total = MeanEntry.total(means.values())
    unit = Unit.fitting(total.host_ns)
    is_timed = total.busy_ns is not None
    headers: Sequence[str] = _WIDE_HEADERS if width >= _WIDTH_FOR_WORDS else _HEADERS
    legend: Sequence[str] = _LEGEND if headers is _WIDE_HEADERS else (*_LEGEND, _SHORT)
    sides, adds_up = "host side | device side", "Each side adds up"
    if not is_timed:  # a side of which nothing is known is no side
        headers, legend = _HOST_HEADERS, _LEGEND[:1]
        sides, adds_up = "host side; the device was not timed", "They add up"

    doubt = found.premises.doubt
    if is_timed and doubt is not None:
        headers = [_BUSY_OR_WAITING.get(header, header) for header in headers]
        why = f"busy?: busy or waiting, because the stream may wait {doubt} where it looks busy"
        legend = (*legend, why)

    def cells(mean: MeanEntry) -> list[str]:
        return _cells(mean, unit)[: len(headers) - 1]

    rows = {path: Row("", cells(mean)) for path, mean in means.items() if path >= 0}
    sums = [Row("step", cells(total), style="bold")]
    if -1 in means:
        sums.insert(0, Row("outside phases", cells(means[-1])))
    yield Text()
    yield Text(f"Ledger: {unit.name} per step, {sides}", "bold")
    yield from phase_table(run, headers, rows, width, sums)
    whole = run.step_totals
    all_steps = ""
    if steps < whole.count:
        all_steps = f"; over all {whole.count:,} steps {unit.text(whole.duration.mean_ns)}"
    yield Text(
        f"{adds_up} to the step: {unit.text(total.host_ns)} {unit.name} "
        f"(mean of {counted(steps, 'step')}{all_steps})"
    )
    for line in legend:
        yield Text(line, "dim")
    if total.blocked_ns is None:
        yield Text("?: computing and blocked together, because syncs were not watched", "dim")


def _cells(mean: MeanEntry, unit: Unit) -> list[str]:
    host_ns, computing_ns, *others_ns = astuple(mean)
    first = f"{unit.text(host_ns)}?" if computing_ns is None else unit.text(computing_ns)
    return [first, *map(unit.text, others_ns)]
