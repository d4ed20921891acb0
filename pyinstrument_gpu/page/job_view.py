# SPDX-License-Identifier: Apache-2.0
"""A job as the template sets it: its sections, and a map of its ranks and phases."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from pyinstrument_gpu.job.findings import phase_text
from pyinstrument_gpu.job.report import JobDocument, job_sections
from pyinstrument_gpu.page.cards import card_of_job
from pyinstrument_gpu.parts.parts import without_blanks
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, duration, ranks_text

MAX_RANKS = 8
"""Of a job on a page, whose runs are there in full."""
_MAX_MAP_ROWS = 64
_MAX_MAP_PHASES = 12
STRONGEST = 40
"""Percent of a phase's colour in a cell; of more than 45 a number would be hard to read on it."""


class MapCell(NamedTuple):
    """A rank in a phase: its time, what that is against the others, and how strong its colour is,
    in percent."""

    text: str
    title: str
    strength: int


def ranks_on_page(document: JobDocument) -> list[int]:
    """The ranks whose runs belong on the page: all of a few, of many those that matter."""
    there = [one.rank for one in document.ranks if one.file is not None]
    return sorted(there[:MAX_RANKS])


def job_view(document: JobDocument, ranks: Sequence[int]) -> dict[str, Any]:
    """A job for the template, on a page that has the runs of these ranks."""
    embedded = ""
    if 0 < len(ranks) < len(document.ranks):
        embedded = (
            f"Below are the runs of {ranks_text(ranks)} of {len(document.ranks):,}; "
            "pyinstrument-gpu report --rank N --html makes the page of another."
        )
    straggler = document.stragglers.straggler
    line = None if straggler is None else straggler.line
    return {
        "document": document,
        # Those of the terminal's report, by their names.
        "parts": {name: without_blanks(found) for name, found in job_sections(document).items()},
        "cards": [card_of_job(one, line) for one in document.findings],
        "embedded": embedded,
        **_rank_map(document),
    }


def _rank_map(document: JobDocument) -> dict[str, Any]:
    """The ranks and phases of a job as a table whose colours show who takes longer than others: the
    paths of the phases, what they are called, and of each rank a row of cells."""
    by_phase: dict[str, dict[int, float]] = {}
    for one in document.ranks:
        for phase in one.phases:
            by_phase.setdefault(phase.path, {})[one.rank] = phase.self_ns
    if not by_phase:
        return {"map_rows": ()}
    most = sorted(by_phase, key=lambda path: -max(by_phase[path].values()))[:_MAX_MAP_PHASES]
    by_phase = {path: times_ns for path, times_ns in by_phase.items() if path in most}
    medians_ns = {path: median(times_ns.values()) for path, times_ns in by_phase.items()}
    farthest_ns = max(
        ns - medians_ns[path] for path, times_ns in by_phase.items() for ns in times_ns.values()
    )
    ranks = sorted(document.ranks[:_MAX_MAP_ROWS], key=lambda one: one.rank)
    step_ns = [one.step_ns for one in ranks if one.step_ns is not None]
    unit = Unit.fitting(max(step_ns, default=max(medians_ns.values())))

    def cell(path: str, ns: float | None) -> MapCell:
        if ns is None:
            return MapCell(UNKNOWN, "no such phase", 0)
        more_ns = ns - medians_ns[path]
        strength = round(STRONGEST * more_ns / farthest_ns) if more_ns > 0 else 0
        than = f"{duration(abs(more_ns))} {'less' if more_ns < 0 else 'more'} than the median"
        return MapCell(unit.text(ns), than, strength)

    return {
        "map_unit": unit.name,
        "map_phases": [(path, phase_text(path)) for path in by_phase],
        "map_rows": [
            (
                one,
                unit.text(one.step_ns),
                [cell(path, by_phase[path].get(one.rank)) for path in by_phase],
            )
            for one in ranks
        ],
        "without_row": len(document.ranks) - len(ranks),
    }
