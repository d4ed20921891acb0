# SPDX-License-Identifier: Apache-2.0
"""The statistics of a run as a table: a row per phase path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pyinstrument_gpu.model.paths import without_surrogates
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.model.statistics import PhaseStatistics

_MEASURES = ("host", "self_host", "device", "blocked")
_NUMBERS = ("total_ns", "mean_ns", "std_ns", "min_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns")

FLOATS = tuple(f"{measure}_{number}" for measure in _MEASURES for number in ("mean_ns", "std_ns"))
"""The columns that hold float; those before `count` hold str, all others int."""

COLUMNS = (
    *("phase", "path", "count"),
    *(f"{measure}_{number}" for measure in _MEASURES for number in ("count", *_NUMBERS)),
)

Value: TypeAlias = str | int | float | None


def rows(run: RunData) -> Iterator[tuple[Value, ...]]:
    """A row for each path, in the order of `Run.phases`; what is missing is None."""
    phase_of = dict(zip(run.paths, run.path_names.tolist(), strict=True))
    for path, statistics in run.phases.items():
        numbers = _numbers(statistics)
        texts = map(without_surrogates, (run.names[phase_of[path]], path))
        yield (*texts, statistics.count, *numbers)


def _numbers(statistics: PhaseStatistics) -> Iterator[int | float | None]:
    for measure in _MEASURES:
        statistic: Statistic | None = getattr(statistics, measure)
        if statistic is None or not statistic.count:
            yield from [None] * (1 + len(_NUMBERS))
            continue
        yield statistic.count
        for number in _NUMBERS:
            yield getattr(statistic, number)
