# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what a change could save, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.document.savings import Saving, Savings
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import Unit, counted, printable

_MAX_ROWS = 20
_MAX_DOUBTS = 3
SAVING_HEADERS = ("removed", "calls", "takes", "low", "likely", "high", "at most", "p10", "p90")


def savings_section(found: Savings | None, findings: Sequence[Finding]) -> Iterator[Part]:
    """The savings, the largest sure one first, the advice based on them, and what can't be told."""
    if found is not None and found.rows and found.step_ns is not None:
        yield from _savings(found, found.step_ns)
    given = [one for one in findings if one.kind == "advice"]
    if given:
        yield Sentence()
        yield Sentence("What to change", "title")
    for number, one in enumerate(given, 1):
        yield Sentence(f"{number}. {printable(one.about)}: {one.edit}")
        yield Sentence(f"   {one.evidence}", "note")
    unsure = [one for one in findings if one.kind == "doubt"]
    if unsure:
        yield Sentence()
        yield Sentence("May be worth a try: this run can't tell", "title")
    for one in unsure[:_MAX_DOUBTS]:
        yield Sentence(f"- {printable(one.about)}: {one.edit}")
        saved = ""
        if one.low_ns is not None and one.high_ns is not None:
            saved = f"saves {one.low_ns / 1e6:.3f} to {one.high_ns / 1e6:.3f} ms per step: "
        yield Sentence(f"   {saved}{one.evidence}", "note")
    if len(unsure) > _MAX_DOUBTS:
        others = ", ".join(printable(one.about) for one in unsure[_MAX_DOUBTS:])
        yield Sentence(f"- and {others}")


def _savings(found: Savings, step_ns: float) -> Iterator[Part]:
    unit = Unit.fitting(max(row.time_ns for row in found.rows))
    rows = [Row(row.about, saving_cells(row, unit)) for row in found.rows[:_MAX_ROWS]]
    yield Sentence()
    yield Sentence(f"What a change could save: {unit.name} per step", "title")
    yield table(SAVING_HEADERS, [rows], whole_names=True, wide_only=SAVING_HEADERS[-2:])
    if len(found.rows) > _MAX_ROWS:
        yield Sentence(f"... and {counted(len(found.rows) - _MAX_ROWS, 'smaller one')}", "warn")
    yield Sentence(
        "low to high: what the run, replayed without it, leaves open; likely: ? where that is "
        "too wide to tell; at most: an upper limit. "
        f"A step takes {unit.text(step_ns)} {unit.name} ({_based_on(found)})",
        "note",
    )


def _based_on(found: Savings) -> str:
    steps = f"mean of {counted(found.steps, 'step')}"
    return steps if found.replayed == found.steps else f"{steps}, of which {found.replayed} timed"


def saving_cells(row: Saving, unit: Unit) -> list[str]:
    """What stands below `SAVING_HEADERS`, behind the name."""

    def told(time_ns: float | None) -> str:
        return "?" if time_ns is None else unit.text(time_ns)

    return [
        f"{row.calls:.2f}",
        unit.text(row.time_ns),
        unit.text(row.low_ns),
        told(row.likely_ns),
        unit.text(row.high_ns),
        unit.text(row.at_most_ns),
        told(row.p10_ns),
        told(row.p90_ns),
    ]
