# SPDX-License-Identifier: Apache-2.0
"""The places where slow steps were slow: the phase that most exceeds its usual time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import kept_steps, span_losses
from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

OUTSIDE, UNKNOWN = -1, -2
"""In no phase; and where spans are missing."""
_MOST_STEPS = 1000
"""Slow ones, and as many usual ones."""


def steps_with_spans(run: Run) -> NDArray[np.int64] | None:
    """The steps that begin behind the spans that made room; None for all."""
    if len(run.spans) >= run.phases_recorded:
        return None
    steps = run.steps.closed
    since_ns = int(run.spans["host_end_ns"][:1].max(initial=0))
    known: NDArray[np.int64] = steps["index"][steps["begin_ns"] >= since_ns]
    return known


def slow_places(run: Run, steps: NDArray[np.void], is_slow: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each slow step the path whose own time most exceeds its usual median, as an index
    into `Run.paths`; `OUTSIDE` or `UNKNOWN`. Of many slow steps, that of the longest ones."""
    places = np.full(np.count_nonzero(is_slow), UNKNOWN)
    kept = np.isin(steps["index"], kept_steps(run, span_losses(run))["index"])
    durations_ns = durations_ns_of(steps)
    slow, usual = np.flatnonzero(is_slow & kept), np.flatnonzero(~is_slow & kept)
    slow = np.sort(slow[np.argsort(-durations_ns[slow], kind="stable")[:_MOST_STEPS]])
    usual = usual[:: max(1, len(usual) // _MOST_STEPS)]
    if not len(slow) or not len(usual):
        return places
    own_ns = [_own_ns(run, steps[some]) for some in (slow, usual)]
    more_ns = own_ns[0] - np.sort(own_ns[1], axis=1)[:, (len(usual) - 1) // 2, None]
    where = more_ns.argmax(axis=0)
    places[np.searchsorted(np.flatnonzero(is_slow), slow)] = np.where(
        where == len(more_ns) - 1, OUTSIDE, where
    )
    return places


def _own_ns(run: Run, steps: NDArray[np.void]) -> NDArray[np.float64]:
    """Return the own time of each path in each of these steps, and last the time outside phases."""
    count, paths = len(steps), len(run.paths)
    place = places_in(steps["index"], run.spans["step"])
    chosen = (place >= 0) & (span_scopes(run.spans) == Scope.STEP)
    cell = run.spans["path"][chosen].astype(np.int64) * count + place[chosen]
    self_ns = np.maximum(run.span_self_ns[chosen], 0)
    own_ns: NDArray[np.float64] = np.zeros((paths + 1, count))
    own_ns.flat[:] = np.bincount(cell, self_ns, own_ns.size)
    own_ns[-1] = durations_ns_of(steps) - own_ns.sum(axis=0)
    return own_ns
