# SPDX-License-Identifier: Apache-2.0
"""The statistics of a run as a table: a row per phase path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.table import Column, Part

_MEASURES = ("host", "self_host", "device", "blocked")
_NUMBERS = {
    **dict.fromkeys(("count", "total_ns"), np.int64),
    **dict.fromkeys(("mean_ns", "std_ns"), np.float64),
    **dict.fromkeys(("min_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns"), np.int64),
}
_LIMIT = 1 << 63
"""Sums of a file that was tampered with may be beyond all columns of numbers: they are missing."""


def summary(run: Run, offset_ns: int) -> Iterator[Part]:
    """In the order of `Run.phases`; what was not measured is missing."""
    number_of = {path: number for number, path in enumerate(run.paths)}
    paths = np.array([number_of[path] for path in run.phases], np.int64)
    phases = run.phases.values()
    part = {
        "phase": Column(run.path_names[paths].astype(np.int64), run.names),
        "path": Column(paths, run.paths),
        "count": Column(np.array([phase.count for phase in phases], np.int64)),
    }
    for measure in _MEASURES:
        statistics = [getattr(phase, measure) for phase in phases]
        for name, kind in _NUMBERS.items():
            known = [getattr(one, name) if one and one.count else -1 for one in statistics]
            values = np.array([-1 if value >= _LIMIT else value for value in known], kind)
            part[f"{measure}_{name}"] = Column(values, decimals=3)
    yield part
