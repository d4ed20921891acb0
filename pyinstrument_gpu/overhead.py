# SPDX-License-Identifier: Apache-2.0
"""What the recorder itself costs, measured in the process that pays for it."""

from __future__ import annotations

import statistics
from time import perf_counter_ns

from pyinstrument_gpu._native import native

_BATCHES = 7
_PHASES_PER_BATCH = 500


def measure_phase_ns() -> float:
    """Nanoseconds of one `with gpu_phase(...)`, as Python code pays them, the empty loop taken off.

    The median of some batches on warm caches, recorded into a ring that nobody reads. Needs an
    active recording with NVTX ranges off (with a tool attached they would fill its timeline). Takes
    about half a millisecond.
    """
    gpu_phase = native.gpu_phase
    native.begin_scratch()
    try:
        costs = []
        for _ in range(_BATCHES):
            begin = perf_counter_ns()
            for _ in range(_PHASES_PER_BATCH):
                pass
            middle = perf_counter_ns()
            for _ in range(_PHASES_PER_BATCH):
                with gpu_phase("data"):
                    pass
            end = perf_counter_ns()
            costs.append((end - middle - (middle - begin)) / _PHASES_PER_BATCH)
    finally:
        native.end_scratch()
    return max(statistics.median(costs), 0.0)
