# SPDX-License-Identifier: Apache-2.0
"""One run as the template sets it: rows and sentences made of its document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.excess import Excess
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.labels import STEP_COLOR, color_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.page.histograms import plain_histograms, spark_path, time_bounds
from pyinstrument_gpu.page.source_lines import SourceContext, source_context
from pyinstrument_gpu.page.step_series import StepSeries, cause_color, plain_series
from pyinstrument_gpu.parts.parts import Part, Table, without_blanks
from pyinstrument_gpu.parts.words import Unit, counted, duration, printable, rate, small_percent
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.overview import sections
from pyinstrument_gpu.report.savings import SAVING_HEADERS, saving_cells
from pyinstrument_gpu.report.slow_steps import UNEXPLAINED

_MAX_FINDINGS = 5
"""In the overview; all others are among the savings."""
_MAX_SLOWEST = 20
_MAX_PIECES = 30
_SPARK = (150, 22)
_COLOR_OF_REST = "var(--panel)"
_IDLE = (
    ("data_wait_ns", "idle: the host waits for data", "pattern-data"),
    ("sync_wait_ns", "idle: the host was blocked", "pattern-blocked"),
    ("host_wait_ns", "idle: the host is late", "pattern-late"),
    ("unknown_ns", "busy or idle: events can't tell", "pattern-unknown"),
)


class Piece(NamedTuple):
    """A part of a stacked bar: its share of the whole, and how it looks."""

    name: str
    share: float
    text: str
    color: str = ""
    pattern: str = ""


def run_view(
    run: Run, file: str, name: str, number: int, series: StepSeries
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run for the template, and what the script needs of it. Costs its whole analysis."""
    document = document_of(run, file)
    parts = {name: without_blanks(found) for name, found in sections(document).items()}
    histograms, pictures = _histograms(run)
    curves = {aspect.name: list(aspect.curves(run)) for aspect in aspects()}
    view = {
        "number": number,
        "name": name,
        "file": file,
        "document": document,
        "parts": parts,  # those of the terminal's report, by their names
        "tiles": [*_tiles(document)],
        "findings": [(one, _worth(one)) for one in document.findings[:_MAX_FINDINGS]],
        "pictures": pictures,
        "histograms": histograms,
        "first_histogram": _largest(document, pictures),
        "slowest": [*_slowest(run, series)],
        "slow_legend": _slow_legend(run, series),
        "series_note": _series_note(run, series),
        "time_budget_bars": [*_time_budget_bars(document)],
        "sources": _sources(run),
        "curves": curves,
        "environment": [*_environment(run)],
        **_phases(document, parts["phases"]),
        **_savings(document),
    }
    data = {
        "command_name": shlex.quote(printable(file)),
        "series": plain_series(run, series),
        "histograms": histograms,
        **{name: [one.data for one in found] for name, found in curves.items() if found},
    }
    return view, data


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
        if steps.outside_phases_ns is not None and steps.total_ns:
            share = small_percent(steps.outside_phases_ns, steps.total_ns)
            yield "outside phases", share, "of the steps"
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


_Pictures: TypeAlias = dict[tuple[str, ...], tuple[int, str]]
"""By the names of a phase the place of its histogram, and that as the path of a small picture."""


def _histograms(run: Run) -> tuple[list[dict[str, Any]], _Pictures]:
    """The histograms, and the pictures of phases in steps, or of all without steps."""
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
    pictures: _Pictures = {}
    for where, path, phase in chosen[:MAX_PATHS]:
        if phase.host is None or not phase.host.count:
            continue
        if not where:
            pictures[names_of(path)] = (len(found), spark_path(phase.host, bounds, *_SPARK))
        blocked = phase.blocked if phase.blocked is not None and phase.blocked.max_ns else None
        sides = {"host": phase.host, "device": phase.device, "blocked": blocked}
        found.append(plain_histograms(path + where, sides))
    return found, pictures


def _largest(document: Document, pictures: _Pictures) -> int:
    """The histogram of the phase that takes most of a step."""
    largest = max(document.phases, key=lambda phase: phase.self_ns or 0.0, default=None)
    return 0 if largest is None else pictures.get(names_of(largest.path), (0, ""))[0]


def _phases(document: Document, parts: Sequence[Part]) -> dict[str, Any]:
    """The report's table of phases and its unit, if the run has steps."""
    if document.steps is None or not parts:  # as of a preview
        return {"phases": None}
    table = next(part for part in parts if isinstance(part, Table))
    return {"phases": table, "phase_unit": Unit.fitting(document.steps.mean_ns).name}


def _slowest(run: Run, series: StepSeries) -> Iterator[tuple[int, str, str, str]]:
    """The longest steps: index, duration, begin, and what made each slow; empty where it is not."""
    durations_ns = series.steps["end_ns"] - series.steps["begin_ns"]
    found = analysis.of(run).excess
    for place in (-durations_ns).argsort(kind="stable")[:_MAX_SLOWEST].tolist():
        step = series.steps[place]
        yield (
            int(step["index"]),
            duration(int(durations_ns[place])),
            duration(int(step["begin_ns"])),
            "" if series.slow[place] < 0 else _main_words(found, int(series.slow[place])),
        )


def _main_words(found: Excess, place: int) -> str:
    row = int(found.main_cause[place])
    return UNEXPLAINED if row < 0 else found.causes[row].words


def _slow_legend(run: Run, series: StepSeries) -> list[tuple[str, str]]:
    """The causes of the slow steps that are drawn, with their colours."""
    found = analysis.of(run).excess
    rows = np.unique(found.main_cause[series.slow[series.slow >= 0]]).tolist()
    return [(UNEXPLAINED if row < 0 else found.causes[row].words, cause_color(row)) for row in rows]


def _series_note(run: Run, series: StepSeries) -> str:
    drawn = len(series.steps)
    sentences = []
    if drawn < series.total:
        sentences.append(
            f"Drawn: {drawn:,} of {series.total:,} steps, the shortest, the median and the longest "
            "of each stretch."
        )
    if series.slow_steps:
        shown = int((series.slow >= 0).sum())
        which = "all" if shown == series.slow_steps else f"the worst {shown:,}"
        drawn_are = f", {which} of them drawn" if series.slow_steps > 1 else ""
        sentences.append(f"{counted(series.slow_steps, 'slow step')}{drawn_are}.")
    else:
        sentences.append("No step is slower than its kind by more than noise.")
    if series.total < run.step_totals.count:
        gone = run.step_totals.count - series.total
        sentences.append(f"{counted(gone, 'older step')} left the history.")
    return " ".join(sentences)


def _time_budget_bars(document: Document) -> Iterator[tuple[str, list[Piece]]]:
    """The host's side and, if it was timed, the device's: two bars with the same total."""
    time_budget = document.time_budget
    if time_budget is None or not time_budget.step_ns:
        return
    whole_ns = time_budget.step_ns

    def piece(name: str, ns: float | None, color: str = "", pattern: str = "") -> list[Piece]:
        if not ns:
            return []
        text = f"{name}: {duration(ns)}, {100 * ns / whole_ns:.1f} %"
        return [Piece(name, ns / whole_ns, text, color, pattern)]

    def of_phases(prefix: str, times_ns: Sequence[float]) -> Iterator[Piece]:
        """The largest phases, and one piece for all others."""
        in_order = sorted(range(len(times_ns)), key=lambda place: -times_ns[place])
        for place in sorted(in_order[:_MAX_PIECES]):
            path = time_budget.entries[place].path
            name, color = "outside phases", _COLOR_OF_REST
            if path is not None:
                name, color = path, css_color(color_of(names_of(path)[-1]))
            yield from piece(prefix + name, times_ns[place], color)
        rest_ns = sum(times_ns[place] for place in in_order[_MAX_PIECES:])
        yield from piece(f"{prefix}other phases", rest_ns, css_color(STEP_COLOR))

    total, entries = time_budget.total, time_budget.entries
    host_ns = [
        (one.host_ns if one.computing_ns is None else one.computing_ns) or 0.0 for one in entries
    ]
    blocked = piece("waiting for the device", total.blocked_ns, "", "pattern-blocked")
    yield "host", [*of_phases("", host_ns), *blocked]
    if total.busy_ns is None:
        return
    busy = "busy: " if time_budget.doubt is None else "busy or waiting: "
    yield (
        "device",
        [
            *of_phases(busy, [one.busy_ns or 0.0 for one in entries]),
            *(
                part
                for column, name, pattern in _IDLE
                for part in piece(name, getattr(total, column), "", pattern)
            ),
        ],
    )


def _savings(document: Document) -> dict[str, Any]:
    """The rows of the report's table of savings, of all of them, their unit, and the time at which
    the axis of their pictures ends."""
    savings = document.savings
    if savings is None or not savings.rows or savings.step_ns is None:
        return {"savings": ()}
    unit = Unit.fitting(max(row.time_ns for row in savings.rows))
    longest_ns = max(max(row.high_ns, row.time_ns, row.at_most_ns or 0) for row in savings.rows)
    columns = SAVING_HEADERS.index("at most")
    return {
        "savings": [(row, saving_cells(row, unit)[:columns]) for row in savings.rows[:MAX_PATHS]],
        "savings_headers": (f"{unit.name} per step, without", *SAVING_HEADERS[1 : 1 + columns]),
        "longest_saving_ns": longest_ns or 1.0,
    }


def _sources(run: Run) -> dict[str, list[tuple[str, int, SourceContext]]]:
    """The lines of each aspect: what each is called, its number, and its context."""
    return {
        aspect.name: [
            (title, one.line, source_context(one.file, one.line, run.began_realtime_ns))
            for title, one in aspect.lines(run)
        ]
        for aspect in aspects()
    }


def _environment(run: Run) -> Iterator[tuple[str, str]]:
    for name, value in run.environment.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name == "command" and isinstance(value, list):
            text = shlex.join(map(str, value))
        yield name.replace("_", " "), text
