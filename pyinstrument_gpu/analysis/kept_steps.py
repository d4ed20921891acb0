# SPDX-License-Identifier: Apache-2.0
"""Which steps of a run have a whole history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.run_data import RunData


def kept_steps(run: RunData) -> NDArray[np.void]:
    """The steps whose spans were not dropped for their age, as rows of `Run.steps.array`."""
    steps = run.steps.array
    kept = np.ones(len(steps), dtype=bool)
    if len(run.spans) < run.phases_recorded:
        # A thread's spans are dropped in the order in which they ended, so a step is whole when it
        # began after the first one that was kept.
        for thread in np.unique(steps["thread"]):
            ends_ns = run.spans["host_end_ns"][run.spans["thread"] == thread]
            since_ns = ends_ns[0] if len(ends_ns) else np.iinfo(np.int64).max
            kept &= (steps["thread"] != thread) | (steps["begin_ns"] >= since_ns)
    return steps[kept]
