# SPDX-License-Identifier: Apache-2.0
"""The times of steps over a run, thinned out for a picture.

Of a long run, the shortest, the median and the longest step of each of equally long stretches are
drawn, so the line keeps the envelope of the whole, and every point of it is a step of the run. All
slow steps are added (analysis/step_kinds.py), each with what made it slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.excess import Excess
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.labels import COLORS, STEP_COLOR, colors_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.parts.words import printable
from pyinstrument_gpu.report.slow_steps import slow_step

MAX_STEPS = 2_000
"""A run of up to so many steps is drawn whole."""
MAX_SLOW = 1_000
"""Where more are slow, so many with the largest excess are drawn."""
MAX_PHASES = 10
"""Phases whose time in each step is known to the page; the others are one sum."""


@dataclass(frozen=True)
class StepSeries:
    """A series of steps of a run, by index.

    Attributes:
        steps: rows of `Run.steps.array`; all of them have ended.
        slow: for each its place among the slow steps of the analysis; -1 none.
        is_profiled: for each whether torch.profiler slowed it.
        total: how many ended steps the history has.
        slow_steps: how many of these are slow.
        paths: the phases that take most of the steps' time, as indices into `Run.paths`.
        self_ns: for each of `paths` its own time in each of the steps, on the step's thread and
            without phases inside; -1 unknown. Shape (paths, steps).
        other_ns: the same of all other phases together.
    """

    steps: NDArray[np.void]
    slow: NDArray[np.int64]
    is_profiled: NDArray[np.bool_]
    total: int
    slow_steps: int
    paths: tuple[int, ...]
    self_ns: NDArray[np.int64]
    other_ns: NDArray[np.int64]


def step_series(run: Run, max_steps: int = MAX_STEPS) -> StepSeries:
    """The steps to draw. Looks at every step and span once."""
    steps = run.steps.closed
    durations_ns = durations_ns_of(steps)
    profiled = were_profiled(run, steps["index"])
    found = analysis.of(run).excess
    worst = found.steps["index"][np.argsort(-found.excess_ns, kind="stable")[:MAX_SLOW]]
    longest = places_in(steps["index"], worst)
    drawn = np.union1d(_envelope(durations_ns, max_steps), longest).astype(np.int64)
    paths, self_ns, other_ns = _phases(run, steps[drawn])
    return StepSeries(
        steps=steps[drawn],
        slow=places_in(found.steps["index"], steps["index"][drawn]),
        is_profiled=profiled[drawn],
        total=len(steps),
        slow_steps=len(found.steps),
        paths=paths,
        self_ns=self_ns,
        other_ns=other_ns,
    )


def _envelope(durations_ns: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The positions of at most so many steps; the first and the last are among them."""
    count = len(durations_ns)
    if count <= most:
        return np.arange(count)
    stretches = np.array_split(np.arange(count), max(1, (most - 2) // 3))
    chosen = [0, count - 1]
    for places in stretches:
        order = places[np.argsort(durations_ns[places], kind="stable")]
        chosen += [int(order[0]), int(order[len(order) // 2]), int(order[-1])]
    return np.unique(chosen)


def _phases(
    run: Run, steps: NDArray[np.void]
) -> tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64]]:
    """The paths, and for each its own time in each of the steps, then that of all others."""
    in_steps = {
        path: phase.self_host.total_ns
        for (path, scope), phase in run.statistics.items()
        if scope == Scope.STEP and phase.self_host is not None
    }
    paths = tuple(sorted(in_steps, key=lambda path: -in_steps[path])[:MAX_PHASES])
    sums_ns = np.zeros((len(paths) + 1, len(steps)), np.int64)
    if not len(steps):
        return paths, sums_ns[:-1], sums_ns[-1]
    place = places_in(steps["index"], run.spans["step"])
    belongs = (place >= 0) & (span_scopes(run.spans) == Scope.STEP)
    row_of = np.full(len(run.paths) + 1, len(paths))
    row_of[list(paths)] = np.arange(len(paths))
    own_ns = run.span_self_ns[belongs]
    cell = row_of[run.spans["path"][belongs]] * len(steps) + place[belongs]
    found_ns = np.bincount(cell, np.maximum(own_ns, 0), minlength=sums_ns.size)
    unknown = np.bincount(cell[own_ns < 0], minlength=sums_ns.size) > 0
    sums_ns[:] = np.where(unknown, -1, found_ns).reshape(sums_ns.shape)
    # Of a step whose spans are no longer kept, nothing is known.
    kept = np.isin(steps["index"], analysis.of(run).kept_steps["index"])
    sums_ns[:, ~kept] = -1
    return paths, sums_ns[:-1], sums_ns[-1]


def plain_series(run: Run, series: StepSeries) -> dict[str, Any]:
    """The series as the page's script has it."""
    steps = series.steps
    colors = colors_of(run)
    return {
        "index": steps["index"].tolist(),
        "begin": steps["begin_ns"].tolist(),
        "duration": durations_ns_of(steps).tolist(),
        "samples": [value if math.isfinite(value) else None for value in steps["samples"].tolist()],
        "cut": np.flatnonzero(~steps["complete"]).tolist(),
        "slow": np.flatnonzero(series.slow >= 0).tolist(),
        **_ledgers(run, series),
        "profiled": np.flatnonzero(series.is_profiled).tolist(),
        "phases": [
            {
                "path": printable(run.paths[path]),
                "color": css_color(colors[run.names[run.path_names[path]]]),
            }
            for path in series.paths
        ],
        "self": series.self_ns.tolist(),
        "other": series.other_ns.tolist(),
    }


def cause_colors(found: Excess) -> list[str]:
    """Return the colours of a run's causes. Those that explain most have one each, the others grey;
    at the end, so that -1 finds it, red for unexplained time."""
    largest = np.argsort(-found.parts_ns.sum(axis=1), kind="stable").tolist()
    colors = dict(zip(largest, COLORS, strict=False))
    causes = range(len(found.causes))
    return [*(css_color(colors.get(row, STEP_COLOR)) for row in causes), "var(--alarm)"]


def _ledgers(run: Run, series: StepSeries) -> dict[str, Any]:
    """The causes, each with its colour, and of each slow step its ledger: what its kind takes, what
    each cause has added, with a note, what none explains, and, if there is a rest, what was not
    looked for."""
    found = analysis.of(run).excess
    rows = {one.name: row for row, one in enumerate(found.causes)}
    ledgers = [slow_step(run, found, place) for place in series.slow[series.slow >= 0].tolist()]
    return {
        "causes": [
            {
                "words": one.words,
                "remedy": one.remedy,
                "color": color,
            }
            for one, color in zip(found.causes, cause_colors(found), strict=False)
        ],
        "main": found.main_cause[series.slow[series.slow >= 0]].tolist(),
        "ledgers": [
            {
                "typical": one.typical_ns,
                "parts": [[rows[part.cause], part.time_ns, part.note] for part in one.parts],
                "unexplained": one.unexplained_ns,
                "where": one.where and printable(one.where),
                "unknown": [] if one.is_explained else list(one.not_looked_at),
            }
            for one in ledgers
        ],
    }
