# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what a change could save, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import subject
from pyinstrument_gpu.analysis.savings import Saving
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import Row, Unit, counted, percent, printable, table

_MAX_ROWS = 20
_WIDTH_FOR_SPREAD = 100
_HEADERS = ("removed", "calls", "takes", "likely", "at most", "% step", "p10", "p90")


def savings_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The savings, the largest likely one first, and the advice based on them. Nothing if neither
    the device nor syncs were timed."""
    if not analysis.of(run).knows_waits:
        return
    found = analysis.of(run).savings
    if found.rows:
        unit = Unit.fitting(max(row.time_ns for row in found.rows))
        columns = len(_HEADERS) if width >= _WIDTH_FOR_SPREAD else len(_HEADERS) - 2
        rows = [
            Row(subject(run, row), _cells(row, unit, found.step_ns)[: columns - 1])
            for row in found.rows[:_MAX_ROWS]
        ]
        yield Text()
        yield Text(f"What a change could save: {unit.name} per step", "bold")
        yield table(_HEADERS[:columns], [rows], width, whole_names=True)
        if len(found.rows) > _MAX_ROWS:
            yield Text(f"... and {counted(len(found.rows) - _MAX_ROWS, 'smaller one')}", "yellow")
        yield Text(
            "at most: an upper limit. likely: the run replayed without it, over "
            + counted(found.steps, "step"),
            "dim",
        )
    given = analysis.of(run).advice
    if given:
        yield Text()
        yield Text("What to change", "bold")
    for number, one in enumerate(given, 1):
        yield Text(f"{number}. {printable(one.about)}: {one.edit}")
        yield Text(f"   {one.reason}", "dim")


def _cells(row: Saving, unit: Unit, step_ns: float) -> list[str]:
    return [
        f"{row.calls:.2f}",
        *(unit.text(ns) for ns in (row.time_ns, row.likely_ns, row.at_most_ns)),
        percent(row.likely_ns, step_ns),
        *(unit.text(ns) for ns in row.spread_ns),
    ]
