# SPDX-License-Identifier: Apache-2.0
"""How long the loader takes for a batch, and how many workers the loop would need.

The loop takes for a batch what its step takes without what the wait for data is worth. The number
of workers is a bound: it is assumed that twice as many deliver twice as much. It is not given where
the loop waits so little that the time between batches is its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, worth_of
from pyinstrument_gpu.analysis.savings import Change

NO_WAIT_SHARE = 0.01
"""The share of the step below which batches wait for the loop."""
_ADVICE = "use more loader workers, prefetching or pinned memory"


def loader_workers(case: Case) -> Iterator[Finding]:
    saving, loader = case.saving(Change.DATA_WAIT), case.found.batches
    if saving is None:
        return
    worth = worth_of(saving, case.found.savings)
    if case.found.premises.lacks_cores:
        worth = replace(worth, low_ns=0.0)
    takes = f"the host waits for data for {ms(saving.time_ns)} of a step"
    inside = interval_at(case.steps["begin_ns"], case.steps["end_ns"], loader.asked_ns) >= 0
    workers = case.found.premises.loader_workers
    per_step = np.count_nonzero(inside) / len(case.steps)
    if saving.time_ns < NO_WAIT_SHARE * case.step_ns or not per_step:
        evidence = takes
    elif workers is None:
        evidence = f"{takes}; by how many workers is not known"
    elif (batch_ns := loader.interval_ns if workers else saving.time_ns / per_step) is None:
        evidence = f"{takes}: too little, or too seldom, to tell how fast the loader is"
    else:
        loop_ns = (worth.whole_ns - worth.high_ns) / per_step
        evidence = f"a batch takes {ms(batch_ns)} to make, the loop needs one every {ms(loop_ns)}"
        evidence += _needed(case, workers, batch_ns, loop_ns)
    yield Finding(_ADVICE, None, worth, evidence)


def _needed(case: Case, workers: int, batch_ns: float, loop_ns: float) -> str:
    if loop_ns <= 0:
        return ""
    needed = max(1, math.ceil(batch_ns * max(workers, 1) / loop_ns))
    cores = case.run.environment.get("cores")
    are_few = cores is not None and needed > cores
    return f"; if workers scale, {needed} would do instead of {workers}" + (
        f", but there are {cores} cores" if are_few else ""
    )
