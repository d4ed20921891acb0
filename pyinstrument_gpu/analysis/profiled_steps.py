# SPDX-License-Identifier: Apache-2.0
"""What torch's profiler cost: the steps that were profiled, next to those before and after them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run


def were_profiled(run: Run, steps: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Of each of these indices of steps, whether it is that of a step to be left out because it was
    profiled. None is where all were."""
    if not run.profiled_totals.count:
        return np.zeros(len(steps), dtype=bool)
    return run.profiled.among(steps)


def longest_row(chosen: NDArray[np.bool_]) -> slice:
    """Where of what is chosen the longest row without a gap lies, the first of them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return slice(0, 0)
    longest = int(np.argmax(ends - begins))
    return slice(int(begins[longest]), int(ends[longest]))
