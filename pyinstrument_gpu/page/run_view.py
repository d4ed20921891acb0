# SPDX-License-Identifier: Apache-2.0
"""The view of a run that the template sets: rows and sentences made of its document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.excess import Excess
from pyinstrument_gpu.analysis.slow_sums import UNEXPLAINED
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.labels import colors_of
from pyinstrument_gpu.page.cards import card_of
from pyinstrument_gpu.page.histograms import plain_histograms, spark_path, time_bounds
from pyinstrument_gpu.page.source_lines import SourceContext, source_context
from pyinstrument_gpu.page.step_bar import step_bars
from pyinstrument_gpu.page.step_series import StepSeries, cause_colors, plain_series
from pyinstrument_gpu.parts.parts import Part, Sentence, Table, without_blanks
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, duration, printable
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.overview import sections
from pyinstrument_gpu.report.savings import SAVING_HEADERS, saving_cells
from pyinstrument_gpu.report.summary import summary_of, try_command, worth_trying

_MAX_SLOWEST = 20
_SPARK = (150, 22)


def run_view(
    run: Run, file: str, name: str, number: int, series: StepSeries
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run for the template, and what the script needs of it. Costs its whole analysis."""
    document = document_of(run, file or None)
    summary, tries = summary_of(document), worth_trying(document)
    told = [one for one in document.findings if one.kind == "failure"] + tries
    # A page is there already.
    looks = dict.fromkeys(one.look for one in told if one.look and "--html" not in one.look)
    trial = try_command(document.run) if tries else None
    commands = {"To look deeper": [*looks], "To try such edits": [trial] if trial else []}
    parts = {name: without_blanks(found) for name, found in sections(document).items()}
    histograms, pictures = _histograms(run)
    flames = {aspect.name: list(aspect.flames(run)) for aspect in aspects()}
    curves = {aspect.name: list(aspect.curves(run)) for aspect in aspects()}
    view = {
        "number": number,
        "name": name,
        "file": file or "in memory",
        "document": document,
        "parts": parts,  # those of the terminal's report, by their names
        "summary": summary,
        "bars": step_bars(document, colors_of(run)),
        "cards": [*map(card_of, tries)],
        **_others(summary.others),
        "commands": {name: found for name, found in commands.items() if found},
        "pictures": pictures,
        "histograms": histograms,
        "first_histogram": _largest(document, pictures),
        "slowest": [*_slowest(run, series)],
        "slow_legend": _slow_legend(run, series),
        "series_note": _series_note(run, series),
        "sources": _sources(run),
        "curves": curves,
        "flames": flames,
        "environment": [*_environment(run)],
        **_phases(document, parts["phases"]),
        **_savings(document),
    }
    data = {
        "command_name": shlex.quote(printable(file)) if file else "RUN",
        "series": plain_series(run, series),
        "histograms": histograms,
        **{name: [one.data for one in found] for name, found in curves.items() if found},
    }
    return view, data


_Pictures: TypeAlias = dict[tuple[str, ...], tuple[int, str]]
"""By the names of a phase the place of its histogram, and that as the path of a small picture."""


def _others(parts: Sequence[Part]) -> dict[str, Any]:
    """What else there is to say: lines that begin with what they are about, "Loader: ...", as names
    and values, and all others as they are."""
    lines = [part for part in parts if isinstance(part, Sentence) and ": " in part.text]
    return {
        "facts": [(*part.text.split(": ", 1), part.kind) for part in lines],
        "others": [part for part in parts if part not in lines],
    }


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
    says = {
        "self": any(len(names_of(phase.path)) > 1 for phase in document.phases),
        "blocked": any(
            phase.blocked_ns or phase.device_ns is not None for phase in document.phases
        ),
    }
    table = _without_empty_columns(table, [name for name, is_told in says.items() if not is_told])
    return {"phases": table, "phase_unit": Unit.fitting(document.steps.mean_ns).name}


def _without_empty_columns(table: Table, needless: Sequence[str]) -> Table:
    """Leave out columns that say nothing of any phase, as in the short report, and those that only
    repeat another."""
    rows = [row for block in table.blocks for row in block]
    says = [
        header not in needless and any(row.cells[place] not in ("", UNKNOWN) for row in rows)
        for place, header in enumerate(table.headers[1:])
    ]
    blocks = [
        [replace(row, cells=[*compress(row.cells, says)]) for row in block]
        for block in table.blocks
    ]
    return replace(
        table, headers=[table.headers[0], *compress(table.headers[1:], says)], blocks=blocks
    )


def _slowest(run: Run, series: StepSeries) -> Iterator[tuple[int, str, str, str]]:
    """The longest steps: index, duration, begin, and what made each slow; empty where it is not."""
    durations_ns = durations_ns_of(series.steps)
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
    colors = cause_colors(found)
    return [(UNEXPLAINED if row < 0 else found.causes[row].words, colors[row]) for row in rows]


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
        sentences.append("No step is significantly slower than others of its kind.")
    if series.total < run.step_totals.count:
        gone = run.step_totals.count - series.total
        sentences.append(f"{counted(gone, 'older step')} left the history.")
    return " ".join(sentences)


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
