# SPDX-License-Identifier: Apache-2.0
"""What torch's profiler cost: the steps that were profiled, next to those before and after them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.run_data import RunData

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


def were_profiled(run: RunData, steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Of each of the steps, rows of `Run.steps.array`, whether it was profiled."""
    profiled = np.zeros(len(steps), dtype=bool)
    if run.operations is not None:
        for first, last in run.operations.profiled:
            profiled |= (steps["index"] >= first) & (steps["index"] <= last)
    return profiled


def profiled_steps(run: RunData) -> ProfiledSteps | None:
    """The times around the window of `Run.operations`; None where there is none."""
    operations = run.operations
    if operations is None or operations.first_step is None or operations.last_step is None:
        return None
    steps = run.steps.closed
    index, times_ns = steps["index"], steps["end_ns"] - steps["begin_ns"]
    others = ~were_profiled(run, steps)
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
