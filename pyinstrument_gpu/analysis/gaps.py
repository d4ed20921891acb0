# SPDX-License-Identifier: Apache-2.0
"""Gaps: the time of the steps that no phase covers, by the phases in front of it and behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.groups import groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope


@dataclass(frozen=True)
class Gap:
    """What lies between the same two phases in all steps.

    Attributes:
        before: the outermost phase in front of it, as an index into `Run.paths`; -1: there is none,
            it begins with the step.
        behind: that behind it; -1: it ends with the step.
        time_ns: per step.
        is_rare: more than half of it lies in at most one step of ten.
    """

    before: int
    behind: int
    time_ns: float
    is_rare: bool


def gaps(run: Run, steps: NDArray[np.void]) -> list[Gap]:
    """The gaps of these steps (rows of `Run.steps.array`, closed and with all their spans), the
    largest first. About 0.2 s per million spans."""
    count = len(steps)
    if not count:
        return []
    covers, place = _outermost(run, steps)
    here, none = np.arange(count), np.full(count, -1)
    # The borders of a step are covers of no length.
    places = np.concatenate([here, place, here])
    begins_ns = np.concatenate([steps["begin_ns"], covers["host_begin_ns"], steps["end_ns"]])
    ends_ns = np.concatenate([steps["begin_ns"], covers["host_end_ns"], steps["end_ns"]])
    paths = np.concatenate([none, covers["path"].astype(np.int64), none])
    rank = np.repeat([0, 1, 2], [count, len(covers), count])
    order = np.lexsort((begins_ns, rank, places))
    is_inside = places[order][1:] == places[order][:-1]
    lengths_ns = np.maximum(begins_ns[order][1:] - ends_ns[order][:-1], 0)
    width = len(run.path_parents) + 1
    pairs = (paths[order][:-1] + 1) * width + paths[order][1:] + 1
    lengths_ns, steps_of = lengths_ns[is_inside], places[order][1:][is_inside]
    found = []
    for pair, chosen in groups(pairs[is_inside]):
        before, behind = divmod(int(pair), width)
        # Of a rare pair only the steps that have it.
        _, step = np.unique(steps_of[chosen], return_inverse=True)
        of_steps_ns = np.sort(np.bincount(step, lengths_ns[chosen]))[::-1]
        sum_ns = float(lengths_ns[chosen].sum())
        is_rare = bool(of_steps_ns[: count // 10].sum() > sum_ns / 2)
        found.append(Gap(before - 1, behind - 1, sum_ns / count, is_rare))
    return sorted(found, key=lambda gap: -gap.time_ns)


def _outermost(run: Run, steps: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The spans of the steps' own threads that lie in no other, each with the position of its
    step."""
    chosen = (span_scopes(run.spans) == Scope.STEP) & np.isin(run.spans["step"], steps["index"])
    spans = run.spans[chosen]
    spans = spans[np.lexsort((spans["depth"], spans["host_begin_ns"], spans["step"]))]
    place = np.searchsorted(steps["index"], spans["step"])
    latest_ns = np.maximum.accumulate(spans["host_end_ns"])
    is_outermost = np.ones(len(spans), dtype=bool)
    is_outermost[1:] = (spans["host_begin_ns"][1:] >= latest_ns[:-1]) | (place[1:] != place[:-1])
    return spans[is_outermost], place[is_outermost]
