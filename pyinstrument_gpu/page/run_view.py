# SPDX-License-Identifier: Apache-2.0
"""One run as the template sets it: rows and sentences made of its document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.ledger import LedgerEntry
from pyinstrument_gpu.aspects.syncs.section import listed_sites
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistic import Statistic
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.document.document import Document, document_of
from pyinstrument_gpu.document.savings import Saving
from pyinstrument_gpu.export.palette import STEP_COLOR, color_of
from pyinstrument_gpu.page.bars import css_color, ink_on
from pyinstrument_gpu.page.curves import Curves, memory_curves, metric_curves, plain_curves
from pyinstrument_gpu.page.histograms import plain_histograms, spark_path, time_bounds
from pyinstrument_gpu.page.source_lines import SourceContext, source_context
from pyinstrument_gpu.page.step_series import StepSeries, plain_series
from pyinstrument_gpu.parts.parts import Part, Row, Table, without_blanks
from pyinstrument_gpu.parts.words import Unit, counted, duration, printable, rate, small_percent
from pyinstrument_gpu.report.overview import sections
from pyinstrument_gpu.report.savings import SAVING_HEADERS, saving_cells

_MAX_FINDINGS = 5
"""In the overview; all others are among the savings."""
_MAX_SITES = 20
_MAX_SLOWEST = 20
_MAX_PIECES = 30
_SPARK = (150, 22)
_COLOR_OF_REST = "var(--panel)"
_IDLE = (
    ("data_wait_ns", "idle: the host waits for data", "pattern-data"),
    ("host_blocked_ns", "idle: the host was blocked", "pattern-blocked"),
    ("host_late_ns", "idle: the host is late", "pattern-late"),
    ("unattributed_ns", "busy or idle: events can't tell", "pattern-unknown"),
)


@dataclass(frozen=True)
class PhaseRow:
    """A row of the table of phases.

    Attributes:
        depth: how many phases are around it.
        cells: its numbers, without the share.
        share: of the step, None unknown.
        histogram: its place among the histograms; None without one.
        spark: that histogram as the path of a small picture.
    """

    name: str
    path: str
    depth: int
    color: str
    cells: tuple[str, ...]
    share: float | None = None
    histogram: int | None = None
    spark: str = ""
    is_sum: bool = False


@dataclass(frozen=True)
class Piece:
    """A part of a stacked bar: its share of the whole, and how it looks."""

    name: str
    share: float
    text: str
    color: str = ""
    pattern: str = ""

    @property
    def ink(self) -> str:
        """The colour of a name on it: black or white, whichever can be read better."""
        return ink_on(self.color) if self.color.startswith("#") else "inherit"


@dataclass(frozen=True)
class Source:
    """A line that waits, in its context."""

    title: str
    line: int
    context: SourceContext


@dataclass(frozen=True)
class RunView:
    """One run on the page. `parts` are those of the terminal's report, by their names."""

    number: int
    name: str
    file: str
    document: Document
    parts: Mapping[str, list[Part]]
    data: Mapping[str, Any]
    tiles: tuple[tuple[str, str, str], ...]
    findings: tuple[tuple[Finding, str], ...]
    phases: tuple[PhaseRow, ...]
    phase_headers: tuple[str, ...]
    histograms: tuple[Mapping[str, Any], ...]
    first_histogram: int
    slowest: tuple[tuple[int, str, str, bool], ...]
    series_note: str
    ledger_bars: tuple[tuple[str, tuple[Piece, ...]], ...]
    savings: tuple[tuple[Saving, list[str]], ...]
    savings_headers: tuple[str, ...]
    longest_saving_ns: float
    sources: tuple[Source, ...]
    curves: Mapping[str, Sequence[Curves]]
    environment: tuple[tuple[str, str], ...]


def run_view(run: Run, file: str, name: str, number: int, series: StepSeries) -> RunView:
    """The view of a run. Costs its whole analysis."""
    document = document_of(run, file)
    parts = {name: without_blanks(found) for name, found in sections(document).items()}
    histograms, places = _histograms(run)
    phase_headers, phases = _phase_rows(document, parts["phases"], places)
    curves = {"metrics": metric_curves(run), "memory": memory_curves(run)}
    savings_headers, savings, longest_saving_ns = _saving_rows(document)
    return RunView(
        number=number,
        name=name,
        file=file,
        document=document,
        parts=parts,
        data={
            "command_name": shlex.quote(printable(file)),
            "series": plain_series(run, series),
            "histograms": histograms,
            **{name: [plain_curves(one) for one in found] for name, found in curves.items()},
        },
        tiles=tuple(_tiles(document)),
        findings=tuple((one, _worth(one)) for one in document.findings[:_MAX_FINDINGS]),
        phases=tuple(phases),
        phase_headers=phase_headers,
        histograms=tuple(histograms),
        first_histogram=_largest(document, places),
        slowest=tuple(_slowest(series)),
        series_note=_series_note(run, series),
        ledger_bars=tuple(_ledger_bars(document)),
        savings=tuple(savings),
        savings_headers=savings_headers,
        longest_saving_ns=longest_saving_ns,
        sources=tuple(_sources(run)),
        curves=curves,
        environment=tuple(_environment(run)),
    )


def _tiles(document: Document) -> Iterator[tuple[str, str, str]]:
    """The numbers that stand first: name, value, and what belongs to it."""
    steps, run = document.steps, document.run
    if steps is not None:
        yield "steps", f"{steps.count:,}", f"in {duration(run.duration_ns)}"
        quantiles = ""
        if steps.p50_ns is not None and steps.p95_ns is not None:
            quantiles = f"p50 {duration(steps.p50_ns)}, p95 {duration(steps.p95_ns)}"
        yield "mean step", duration(steps.mean_ns), quantiles
        if steps.samples_per_second is not None:
            yield "samples", f"{steps.samples_per_second:,.0f}/s", "of step time"
        elif steps.steps_per_second is not None:
            yield "steps", f"{rate(steps.steps_per_second)}/s", "of step time"
        if steps.unattributed_ns is not None and steps.total_ns:
            share = small_percent(steps.unattributed_ns, steps.total_ns)
            yield "in no phase", share, "of the steps"
        if run.duration_ns:
            outside = small_percent(steps.outside_ns, run.duration_ns)
            yield "outside steps", outside, duration(steps.outside_ns)
    else:
        yield "steps", "0", f"in {duration(run.duration_ns)}"
    savings = document.savings
    if savings is not None and savings.busy_ns is not None and savings.step_ns:
        busy = small_percent(savings.busy_ns, savings.step_ns)
        yield "device busy", f">= {busy}", "of a step, proven"
    yield "recording", "complete" if run.is_complete else "cut short", ""


def _worth(one: Finding) -> str:
    if one.high_ns is None or one.low_ns is None or not one.of_ns:
        return ""
    low, high = (small_percent(ns, one.of_ns) for ns in (one.low_ns, one.high_ns))
    if one.low_ns <= 0:
        return f"saves at most {high} of the {one.of} ({duration(one.high_ns)})"
    if low == high:
        return f"saves {high} of the {one.of} ({duration(one.high_ns)})"
    times = f"{duration(one.low_ns)} to {duration(one.high_ns)}"
    likely = "" if one.likely_ns is None else f", likely {duration(one.likely_ns)}"
    return f"saves {low} to {high} of the {one.of} ({times}{likely})"


_Places: TypeAlias = dict[tuple[str, ...], tuple[int, str]]
"""By the names of a phase the place of its histogram, and that as the path of a small picture."""


def _histograms(run: Run) -> tuple[list[dict[str, Any]], _Places]:
    """The histograms, and the places of those of phases in steps, or of all without steps."""
    # As the tables of phases, without steps that were profiled.
    of_scopes = {"": run.phases}
    if run.step_totals.count:
        of_scopes = {
            "": run.phases_in(Scope.STEP),
            ", on another thread": run.phases_in(Scope.OTHER_THREADS),
            ", outside steps": run.phases_in(Scope.OUTSIDE),
        }
    bounds = time_bounds(phase.host for phase in of_scopes[""].values())
    chosen = [(where, *each) for where, phases in of_scopes.items() for each in phases.items()]
    found: list[dict[str, Any]] = []
    places: _Places = {}
    for where, path, phase in chosen[:MAX_PATHS]:
        if phase.host is None or not phase.host.count:
            continue
        if not where:
            places[names_of(path)] = (len(found), spark_path(phase.host, bounds, *_SPARK))
        blocked = phase.blocked if phase.blocked is None or phase.blocked.max_ns else None
        sides: dict[str, Statistic | None] = {
            "host": phase.host,
            "device": phase.device,
            "blocked": blocked,
        }
        found.append(plain_histograms(path + where, sides))
    return found, places


def _largest(document: Document, places: _Places) -> int:
    """The histogram of the phase that takes most of a step."""
    largest = max(document.phases, key=lambda phase: phase.self_ns or 0.0, default=None)
    return 0 if largest is None else places.get(names_of(largest.path), (0, ""))[0]


def _phase_rows(
    document: Document, parts: Sequence[Part], places: _Places
) -> tuple[tuple[str, ...], list[PhaseRow]]:
    """The headers and rows of the report's table of phases, with what only a picture shows."""
    if document.steps is None or not parts:  # as of a preview
        return (), []
    table = next(part for part in parts if isinstance(part, Table))
    unit = Unit.fitting(document.steps.mean_ns)
    rows = [_phase_row(row, places) for block in table.blocks for row in block]
    return (f"{unit.name} per step", *table.headers[1:]), rows


def _phase_row(row: Row, places: _Places) -> PhaseRow:
    name, cells = printable(row.name), tuple(row.cells)
    if not row.path:
        return PhaseRow(name, name, row.depth, "", cells, row.share, is_sum=True)
    color = _color(row.name)
    picture = places.get(names_of(row.path), (None, ""))
    return PhaseRow(name, row.path, row.depth, color, cells, row.share, *picture)


def _color(name: str) -> str:
    return css_color(color_of(name))


def _slowest(series: StepSeries) -> Iterator[tuple[int, str, str, bool]]:
    """The longest steps: index, duration, begin, and whether each is an outlier."""
    durations_ns = series.steps["end_ns"] - series.steps["begin_ns"]
    for place in (-durations_ns).argsort(kind="stable")[:_MAX_SLOWEST].tolist():
        step = series.steps[place]
        yield (
            int(step["index"]),
            duration(int(durations_ns[place])),
            duration(int(step["begin_ns"])),
            bool(series.is_outlier[place]),
        )


def _series_note(run: Run, series: StepSeries) -> str:
    drawn = len(series.steps)
    sentences = []
    if drawn < series.total:
        sentences.append(
            f"Drawn: {drawn:,} of {series.total:,} steps, the shortest, the median and the longest "
            "of each stretch."
        )
    if series.fence_ns is not None and series.outliers:
        shown = int(series.is_outlier.sum())
        which = "all" if shown == series.outliers else f"the longest {shown:,}"
        drawn_are = f", {which} of them drawn" if series.outliers > 1 else ""
        beyond = duration(series.fence_ns)
        sentences.append(f"{counted(series.outliers, 'outlier')} beyond {beyond}{drawn_are}.")
    elif series.fence_ns is not None:
        sentences.append(f"No outlier: no step took more than {duration(series.fence_ns)}.")
    if series.total < run.step_totals.count:
        gone = run.step_totals.count - series.total
        sentences.append(f"{counted(gone, 'older step')} left the history.")
    return " ".join(sentences)


def _ledger_bars(document: Document) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    """The host's side and, if it was timed, the device's: two bars with the same total."""
    ledger = document.ledger
    if ledger is None or not ledger.step_ns:
        return
    whole_ns = ledger.step_ns

    def piece(name: str, ns: float | None, color: str = "", pattern: str = "") -> Iterator[Piece]:
        if ns:
            text = f"{name}: {duration(ns)}, {100 * ns / whole_ns:.1f} %"
            yield Piece(name, ns / whole_ns, text, color, pattern)

    def of_phase(one: LedgerEntry) -> tuple[str, str]:
        if one.path is None:
            return "outside phases", _COLOR_OF_REST
        return one.path, _color(names_of(one.path)[-1])

    def of_phases(prefix: str, times_ns: Mapping[int, float]) -> Iterator[Piece]:
        """The largest phases, and one piece for all others."""
        largest = sorted(times_ns, key=lambda place: -times_ns[place])[:_MAX_PIECES]
        for place in sorted(largest):
            name, color = of_phase(ledger.entries[place])
            yield from piece(prefix + name, times_ns[place], color)
        rest_ns = sum(times_ns.values()) - sum(times_ns[place] for place in largest)
        yield from piece(f"{prefix}other phases", max(0.0, rest_ns), css_color(STEP_COLOR))

    entries = dict(enumerate(ledger.entries))
    host_ns = {
        place: (one.host_ns if one.computing_ns is None else one.computing_ns) or 0.0
        for place, one in entries.items()
    }
    blocked = piece("waiting for the device", ledger.total.blocked_ns, "", "pattern-blocked")
    yield "host", (*of_phases("", host_ns), *blocked)
    if ledger.total.busy_ns is None:
        return
    busy = "busy: " if ledger.doubt is None else "busy or waiting: "
    idle = [
        part
        for column, name, pattern in _IDLE
        for part in piece(name, getattr(ledger.total, column), "", pattern)
    ]
    busy_ns = {place: one.busy_ns or 0.0 for place, one in entries.items()}
    yield "device", (*of_phases(busy, busy_ns), *idle)


def _saving_rows(
    document: Document,
) -> tuple[tuple[str, ...], list[tuple[Saving, list[str]]], float]:
    """The headers and rows of the report's table of savings, of all of them, and the time at which
    the axis of their pictures ends."""
    savings = document.savings
    if savings is None or not savings.rows or savings.step_ns is None:
        return (), [], 1.0
    unit = Unit.fitting(max(row.time_ns for row in savings.rows))
    longest_ns = max(max(row.high_ns, row.time_ns, row.at_most_ns or 0) for row in savings.rows)
    columns = SAVING_HEADERS.index("at most")
    rows = [(row, saving_cells(row, unit)[:columns]) for row in savings.rows[:MAX_PATHS]]
    headers = SAVING_HEADERS[1 : 1 + columns]
    return (f"{unit.name} per step, without", *headers), rows, longest_ns or 1.0


def _sources(run: Run) -> Iterator[Source]:
    for site in listed_sites(run.syncs)[:_MAX_SITES]:
        for line in (site.program, site.library):
            if line is not None:
                yield Source(
                    f"{site.kind.label} at {run.name_of_line(line)}, in {line.function}",
                    line.line,
                    source_context(line.file, line.line, run.began_realtime_ns),
                )


def _environment(run: Run) -> Iterator[tuple[str, str]]:
    for name, value in run.environment.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name == "command" and isinstance(value, list):
            text = shlex.join(map(str, value))
        yield name.replace("_", " "), text
