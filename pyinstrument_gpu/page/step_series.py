# SPDX-License-Identifier: Apache-2.0
"""The times of steps over a run, thinned out for a picture.

Of a long run, the shortest, the median and the longest step of each of equally long stretches are
drawn, so the line keeps the envelope of the whole, and every point of it is a step of the run. All
outliers are added: those beyond Tukey's outer fence, three interquartile ranges above the upper
quartile (J. W. Tukey, Exploratory Data Analysis, 1977), and a fifth above the median at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.core.arrays import places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.labels import color_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.parts.words import printable

MAX_STEPS = 2_000
"""A run of up to so many steps is drawn whole."""
MAX_OUTLIERS = 1_000
"""Where more lie beyond the fence, the longest so many are drawn."""
MAX_PHASES = 10
"""Phases whose time in each step is known to the page; the others are one sum."""
_FENCE = 3
_LEAST_EXCESS = 0.2
"""Where steps hardly differ, the fence is near the median; an outlier exceeds it by this much."""


@dataclass(frozen=True)
class StepSeries:
    """Some steps of a run, by index.

    Attributes:
        steps: rows of `Run.steps.array`; all of them have ended.
        is_outlier: for each whether it lies beyond the fence.
        is_profiled: for each whether torch.profiler slowed it.
        total: how many ended steps the history has.
        outliers: how many of these lie beyond the fence.
        fence_ns: beyond which a step is an outlier; None if there are too few steps to tell.
        paths: the phases that take most of the steps' time, as indices into `Run.paths`.
        self_ns: for each of `paths` its own time in each of the steps, on the step's thread and
            without phases inside; -1 unknown. Shape (paths, steps).
        other_ns: the same of all other phases together.
    """

    steps: NDArray[np.void]
    is_outlier: NDArray[np.bool_]
    is_profiled: NDArray[np.bool_]
    total: int
    outliers: int
    fence_ns: int | None
    paths: tuple[int, ...]
    self_ns: NDArray[np.int64]
    other_ns: NDArray[np.int64]


def step_series(run: Run, max_steps: int = MAX_STEPS) -> StepSeries:
    """The steps to draw. Looks at every step and span once."""
    steps = run.steps.closed
    durations_ns = steps["end_ns"] - steps["begin_ns"]
    profiled = were_profiled(run, steps["index"])
    fence_ns = _fence_ns(durations_ns[~profiled])
    beyond = np.zeros(len(steps), dtype=bool)
    if fence_ns is not None:
        beyond = (durations_ns > fence_ns) & ~profiled
    outliers = np.flatnonzero(beyond)
    longest = outliers[np.argsort(durations_ns[outliers], kind="stable")[-MAX_OUTLIERS:]]
    drawn = np.union1d(_envelope(durations_ns, max_steps), longest).astype(np.int64)
    paths, self_ns, other_ns = _phases(run, steps[drawn])
    return StepSeries(
        steps=steps[drawn],
        is_outlier=beyond[drawn],
        is_profiled=profiled[drawn],
        total=len(steps),
        outliers=len(outliers),
        fence_ns=fence_ns,
        paths=paths,
        self_ns=self_ns,
        other_ns=other_ns,
    )


def _fence_ns(durations_ns: NDArray[np.int64]) -> int | None:
    if len(durations_ns) < 8:
        return None
    low, middle, high = np.quantile(durations_ns, [0.25, 0.5, 0.75])
    return int(max(high + _FENCE * (high - low), (1 + _LEAST_EXCESS) * middle))


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
    return {
        "index": steps["index"].tolist(),
        "begin": steps["begin_ns"].tolist(),
        "duration": (steps["end_ns"] - steps["begin_ns"]).tolist(),
        "samples": [value if math.isfinite(value) else None for value in steps["samples"].tolist()],
        "cut": np.flatnonzero(~steps["complete"]).tolist(),
        "outlier": np.flatnonzero(series.is_outlier).tolist(),
        "profiled": np.flatnonzero(series.is_profiled).tolist(),
        "phases": [
            {
                "path": printable(run.paths[path]),
                "color": css_color(color_of(run.names[run.path_names[path]])),
            }
            for path in series.paths
        ],
        "self": series.self_ns.tolist(),
        "other": series.other_ns.tolist(),
    }
