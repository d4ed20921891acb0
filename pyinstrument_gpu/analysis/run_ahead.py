# SPDX-License-Identifier: Apache-2.0
"""Run-ahead: how long after a phase began on the host its work began on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.profiled_steps import were_profiled
from pyinstrument_gpu.analysis.quantiles import quantiles
from pyinstrument_gpu.core.groups import groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times, span_scopes
from pyinstrument_gpu.core.statistics import Scope

_UNKNOWN_FROM_NS = 2.0**61
"""A clock that is off by so much, 73 years, says nothing."""


@dataclass(frozen=True)
class RunAhead:
    """The run-ahead of a phase: over how many spans, quantiles by nearest rank (negative where the
    clocks disagree by more), and by how much that of one span may be off, at worst."""

    spans: int
    p50_ns: int
    p95_ns: int
    uncertainty_ns: float


def run_ahead(
    run: Run, uncertainty_ns: NDArray[np.float64], scope: Scope | None = None
) -> Mapping[int, RunAhead]:
    """The run-ahead of each path with a span on the run's axis whose clock has an uncertainty."""
    chosen = ~np.isnan(uncertainty_ns)
    chosen &= ~were_profiled(run, run.spans["step"])
    if scope is not None:
        chosen &= span_scopes(run.spans) == scope
    spans = run.spans[chosen]
    uncertainty_ns = uncertainty_ns[chosen]
    ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
    by_path = {}
    for path, places in groups(spans["path"]):
        p50_ns, p95_ns = quantiles(ahead_ns[places], (0.5, 0.95))
        worst_ns = float(uncertainty_ns[places].max())
        by_path[path] = RunAhead(len(places), p50_ns, p95_ns, worst_ns)
    return by_path


def clock_uncertainty_ns(run: Run) -> NDArray[np.float64]:
    """By how much the device times of each span may be off on the run's axis; NaN where nothing is
    known of its place or its clock."""
    uncertainty_ns = np.full(len(run.spans), np.nan)
    placed = has_device_times(run.spans) & (run.span_device_ns >= 0)
    for clock in run.device_clocks:
        of_device = np.flatnonzero(placed & (run.spans["device"] == clock.device))
        begin_ns = run.span_device_clock_ns[of_device]
        uncertainty_ns[of_device] = np.maximum(
            clock.uncertainty_at_ns(begin_ns),
            clock.uncertainty_at_ns(begin_ns + run.span_device_ns[of_device]),
        )
    uncertainty_ns[uncertainty_ns >= _UNKNOWN_FROM_NS] = np.nan
    return uncertainty_ns
