# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what a change could save, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import subject
from pyinstrument_gpu.analysis.savings import Limit, Saving, Savings
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import Row, Unit, counted, printable, table

_MAX_ROWS = 20
_MAX_DOUBTS = 3
_WIDTH_FOR_SPREAD = 100
_HEADERS = ("removed", "calls", "takes", "low", "likely", "high", "at most", "p10", "p90")


def savings_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The savings, the largest sure one first, the advice based on them, and what can't be told.
    If neither the device nor syncs were timed, only the last."""
    knows_waits = analysis.of(run).knows_waits
    found = analysis.of(run).savings
    if knows_waits and found.rows:
        unit = Unit.fitting(max(row.time_ns for row in found.rows))
        columns = len(_HEADERS) if width >= _WIDTH_FOR_SPREAD else len(_HEADERS) - 2
        rows = [
            Row(subject(run, row), _cells(row, unit)[: columns - 1])
            for row in found.rows[:_MAX_ROWS]
        ]
        yield Text()
        yield Text(f"What a change could save: {unit.name} per step", "bold")
        yield table(_HEADERS[:columns], [rows], width, whole_names=True)
        if len(found.rows) > _MAX_ROWS:
            yield Text(f"... and {counted(len(found.rows) - _MAX_ROWS, 'smaller one')}", "yellow")
        yield Text(
            "low to high: what the run, replayed without it, leaves open; likely: ? where that is "
            "too wide to tell; at most: an upper limit. "
            f"A step takes {unit.text(found.step_ns)} {unit.name} ({_based_on(found)})",
            "dim",
        )
    given = analysis.of(run).advice if knows_waits else []
    if given:
        yield Text()
        yield Text("What to change", "bold")
    for number, one in enumerate(given, 1):
        yield Text(f"{number}. {printable(one.about)}: {one.edit}")
        yield Text(f"   {one.reason}", "dim")
    unsure = [one for one in analysis.of(run).doubts if knows_waits or one.saving is None]
    if unsure:
        yield Text()
        yield Text("May be worth a try: this run can't tell", "bold")
    for one in unsure[:_MAX_DOUBTS]:
        yield Text(f"- {printable(one.about)}: {one.edit}")
        saved = ""
        if one.saving is not None:
            low, high = (f"{ns / 1e6:.3f}" for ns in (one.saving.low_ns, one.saving.high_ns))
            saved = f"saves {low} to {high} ms per step: "
        yield Text(f"   {saved}{one.reason}", "dim")
    if len(unsure) > _MAX_DOUBTS:
        others = ", ".join(printable(one.about) for one in unsure[_MAX_DOUBTS:])
        yield Text(f"- and {others}")


def _based_on(found: Savings) -> str:
    steps = f"mean of {counted(found.steps, 'step')}"
    return steps if found.replayed == found.steps else f"{steps}, of which {found.replayed} timed"


def _cells(row: Saving, unit: Unit) -> list[str]:
    likely = unit.text(row.likely_ns) if row.is_told else "?"
    at_most = unit.text(row.at_most_ns) if row.limit != Limit.NONE else "-"
    return [
        f"{row.calls:.2f}",
        unit.text(row.time_ns),
        unit.text(row.low_ns),
        likely,
        unit.text(row.high_ns),
        at_most,
        *(map(unit.text, row.spread_ns) if row.is_told else ("?", "?")),
    ]
