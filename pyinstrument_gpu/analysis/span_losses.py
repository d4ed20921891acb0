# SPDX-License-Identifier: Apache-2.0
"""Spans that are missing from the history for another reason than their age, and of which steps.

Statistics cover every span, so that it is known of each path how many spans are missing, but not of
which steps. A path that occurs equally often in each step tells: the steps that have fewer of its
spans lack as many as are missing in all. What is missing of other paths went the same way, because
a full ring is emptied at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.groups import groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope, as_if_not_profiled

USUAL_SHARE = 0.5
"""The share of the steps that have a path from which on it has to tell which of them lack it."""


@dataclass(frozen=True)
class SpanLosses:
    """Losses that are not due to age.

    Attributes:
        spans: their number, inside steps and outside.
        lacking: whether each of `Run.steps` is known to lack spans.
        are_located: whether all steps that lack spans are known.
    """

    spans: int
    lacking: NDArray[np.bool_]
    are_located: bool


def span_losses(run: Run) -> SpanLosses:
    lost = max(0, run.phases_recorded - len(run.spans) - run.dropped.get("span_history", 0))
    lacking, rare = np.zeros(len(run.steps), dtype=bool), 0
    if not lost or not len(lacking):
        return SpanLosses(lost, lacking, are_located=not lost)
    counted = sum(phase.count for phase in run.statistics.values()) == run.phases_recorded
    are_located = counted and not run.dropped.get("span_history", 0)
    indices = run.steps.array["index"]
    in_steps = run.spans[span_scopes(run.spans) == Scope.STEP]
    of_paths = {path: in_steps["step"][places] for path, places in groups(in_steps["path"])}
    for (path, scope), phase in as_if_not_profiled(run.statistics).items():
        steps = of_paths.get(path, in_steps["step"][:0])
        missing = phase.count - len(steps)
        if scope != Scope.STEP or missing <= 0:
            continue
        place = np.searchsorted(indices, steps[np.isin(steps, indices)])
        counts = np.bincount(place, minlength=len(lacking))
        usual = int(np.argmax(np.bincount(counts[counts > 0]))) if counts.any() else 0
        fewer = np.maximum(usual - counts, 0)
        if int(fewer.sum()) == missing:
            lacking |= fewer > 0
        else:
            rare += missing
            are_located &= phase.count < USUAL_SHARE * len(lacking)
    return SpanLosses(lost, lacking, are_located and (not rare or bool(lacking.any())))
