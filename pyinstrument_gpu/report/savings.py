# SPDX-License-Identifier: Apache-2.0
"""The section that says what changes could save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding, subject
from pyinstrument_gpu.analysis.savings import Limit, ReplayedSaving
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import Unit, counted, printable


@dataclass(frozen=True)
class Saving:
    """The gain of a run without one thing. Times are per step.

    Attributes:
        about: what is taken out: a wait at a line, the wait for data, a phase's launches, ...
        calls: how often it happens.
        time_ns: what the host spends on it.
        low_ns, high_ns: what the run, replayed without it, leaves open.
        likely_ns: the likeliest in between; unknown where the range is too wide to tell.
        at_most_ns: no change of this kind saves more; unknown where nothing proves a limit.
        p10_ns, p90_ns: how the likely saving differs from step to step.
        of: what it is a share of: "step", or "elapsed time" with all between steps.
    """

    about: str
    calls: float
    time_ns: float
    low_ns: float
    likely_ns: float | None
    high_ns: float
    at_most_ns: float | None
    p10_ns: float | None
    p90_ns: float | None
    of: str


@dataclass(frozen=True)
class Savings:
    """The savings of changes.

    Attributes:
        steps: over how many steps the times are taken.
        replayed: how many of them were replayed.
        step_ns: the mean time of a step.
        elapsed_ns: the same with all between steps.
        busy_ns: what the device is proven to work in a step.
        rows: the largest sure saving first.
    """

    steps: int
    replayed: int
    step_ns: float | None
    elapsed_ns: float | None
    busy_ns: float | None
    rows: tuple[Saving, ...]


def savings(run: Run) -> Savings | None:
    """Return the savings; None without times of device or syncs."""
    about = analysis.of(run)
    if not about.knows_waits:
        return None
    found = about.savings
    return Savings(
        steps=found.steps,
        replayed=found.replayed,
        step_ns=found.step_ns if found.steps else None,
        elapsed_ns=found.elapsed_ns if found.steps else None,
        busy_ns=found.busy_ns,
        rows=tuple(_row(run, row) for row in found.rows),
    )


def _row(run: Run, row: ReplayedSaving) -> Saving:
    p10_ns, p90_ns = row.spread_ns if row.is_told else (None, None)
    return Saving(
        about=subject(run, row),
        calls=row.calls,
        time_ns=row.time_ns,
        low_ns=row.low_ns,
        likely_ns=row.likely_ns if row.is_told else None,
        high_ns=row.high_ns,
        at_most_ns=None if row.limit == Limit.NONE else row.at_most_ns,
        p10_ns=p10_ns,
        p90_ns=p90_ns,
        of=row.of,
    )


_MAX_ROWS = 20
_MAX_DOUBTS = 3
SAVING_HEADERS = ("removed", "calls", "takes", "low", "likely", "high", "at most", "p10", "p90")


def savings_parts(found: Savings | None, findings: Sequence[Finding]) -> Iterator[Part]:
    """Yield the savings, the largest sure one first, the advice based on them, and what this run
    can't tell, in the order in which they come."""
    if found is not None and found.rows and found.step_ns is not None:
        yield from _savings(found, found.step_ns)
    kinds = {"advice": _advice, "doubt": _doubts}
    for kind in dict.fromkeys(one.kind for one in findings if one.kind in kinds):
        yield from kinds[kind]([one for one in findings if one.kind == kind])


def _advice(given: Sequence[Finding]) -> Iterator[Part]:
    yield Sentence()
    yield Sentence("What to change", "title")
    for number, one in enumerate(given, 1):
        yield Sentence(f"{number}. {printable(one.about)}: {one.edit}")
        yield Sentence(f"   {one.evidence}", "note")


def _doubts(unsure: Sequence[Finding]) -> Iterator[Part]:
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
        "low to high: the range that replaying the run without it allows; likely: ? where that is "
        "too wide to tell; at most: an upper limit. "
        f"A step takes {unit.text(step_ns)} {unit.name} ({_based_on(found)})",
        "note",
    )


def _based_on(found: Savings) -> str:
    steps = f"mean of {counted(found.steps, 'step')}"
    return steps if found.replayed == found.steps else f"{steps}, of which {found.replayed} timed"


def saving_cells(row: Saving, unit: Unit) -> list[str]:
    """Return the cells below `SAVING_HEADERS`, after the name."""

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
