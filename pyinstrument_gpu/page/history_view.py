# SPDX-License-Identifier: Apache-2.0
"""A history as the template sets it: of each program what is said of it, and curves of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from pyinstrument_gpu.history.history import ProgramHistory, ProgramRuns
from pyinstrument_gpu.history.report import program_parts
from pyinstrument_gpu.parts.parts import curve_data, without_blanks
from pyinstrument_gpu.parts.words import Unit

_MOST_SERIES = 24
_MOST_RUNS = 2_000
_GIB = 1 << 30


def history_view(said: ProgramHistory, runs: ProgramRuns) -> tuple[dict[str, Any], dict[str, Any]]:
    """A program for the template, and what the script needs of it."""
    changed = {one.series for point, _ in runs.points for one in point.series}
    order = sorted(range(len(runs.series)), key=lambda number: number not in changed)
    shown = order[:_MOST_SERIES]
    drawn = np.unique(np.linspace(0, said.runs - 1, min(said.runs, _MOST_RUNS)).astype(int))
    remarks = []
    if len(drawn) < said.runs:
        remarks.append(f"Drawn: {len(drawn):,} of {said.runs:,} runs.")
    if len(shown) < len(order):
        remarks.append(f"{len(order) - len(shown):,} more series did not change.")
    view = {
        "program": said.program,
        "parts": without_blanks(program_parts(said, len(said.changes))),
        "series": [runs.series[number].name for number in shown],
        "remark": " ".join(remarks),
    }
    return view, {"history": [*_curves(runs, shown, drawn)]}


def _curves(runs: ProgramRuns, shown: list[int], drawn: Any) -> Iterator[dict[str, Any]]:
    times_s = runs.columns["began_us"][drawn] // 10**6
    for number in shown:
        series = runs.series[number]
        values, unit = _scaled(series.unit, series.values)
        cuts = {p.place for p, _ in runs.points for one in p.series if one.series == number}
        boundaries = [0, *sorted(cuts), len(values)]
        level = np.full(len(values), np.nan)
        for begin, end in pairwise(boundaries):
            if np.isfinite(values[begin:end]).any():
                level[begin:end] = np.nanmedian(values[begin:end])
        names = {series.name: values[drawn], "median": level[drawn]}
        yield curve_data("time", unit, times_s, names)


def _scaled(unit: str, values: Any) -> tuple[Any, str]:
    """The values in a unit for people."""
    if unit == "ns":
        fitting = Unit.fitting(float(np.nanmax(values)))
        return values / fitting.ns, fitting.name
    if unit == "bytes":
        return values / _GIB, "GiB"
    return (100 * values, "% of a step") if unit == "share" else (values, unit)
