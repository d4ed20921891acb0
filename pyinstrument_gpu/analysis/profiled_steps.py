# SPDX-License-Identifier: Apache-2.0
"""What torch's profiler cost: the steps that were profiled, next to those before and after them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run

NEIGHBOURS = 20
"""Of so many steps before and after the profiled ones the median is taken, fewer where there are
no more."""
MIN_NEIGHBOURS = 3


class ProfiledSteps(NamedTuple):
    """Medians of the times of steps; None where too few are known.

    Attributes:
        profiled_ns: of the profiled steps.
        before_ns: of those before, without the first step of the run, which is longer for reasons
            of its own.
        after_ns: of those after.
    """

    profiled_ns: float | None
    before_ns: float | None
    after_ns: float | None


def were_profiled(run: Run, steps: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Of each of these indices of steps, whether it is that of a step to be left out because it was
    profiled. None is where all were."""
    if run.operations is None or not run.profiled_totals.count:
        return np.zeros(len(steps), dtype=bool)
    return run.operations.were_profiled(steps)


def longest_row(chosen: NDArray[np.bool_]) -> slice:
    """Where of what is chosen the longest row without a gap lies, the first of them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return slice(0, 0)
    longest = int(np.argmax(ends - begins))
    return slice(int(begins[longest]), int(ends[longest]))


def profiled_steps(run: Run) -> ProfiledSteps | None:
    """The times around the window of `Run.operations`; None where there is none."""
    operations = run.operations
    if operations is None or operations.first_step is None or operations.last_step is None:
        return None
    steps = run.steps.closed
    index, times_ns = steps["index"], steps["end_ns"] - steps["begin_ns"]
    others = ~operations.were_profiled(index)
    inside = (index >= operations.first_step) & (index <= operations.last_step)
    before = others & (index < operations.first_step) & (index > 0)
    after = others & (index > operations.last_step)
    return ProfiledSteps(
        _median(times_ns[inside], 1),
        _median(times_ns[before][-NEIGHBOURS:], MIN_NEIGHBOURS),
        _median(times_ns[after][:NEIGHBOURS], MIN_NEIGHBOURS),
    )


def _median(times_ns: NDArray[np.int64], least: int) -> float | None:
    return float(np.median(times_ns)) if len(times_ns) >= least else None
