# SPDX-License-Identifier: Apache-2.0
"""What an export says that it lacks."""

import numpy as np

from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export.runs import losses
from tests.helpers.made_runs import run_of

STEPS = [(0, 0, 10, 1, 1, True, 0), (1, 10, 20, 1, 1, False, 0)]
SPANS = [(0, 1, i, 0, 0, 0, 0, 10 * i, 10 * i + 5, -1, -1, -1, 1) for i in range(2)]


def test_steps_and_device_times_are_counted_as_spans_are() -> None:
    whole = run_of(SPANS, steps=Steps(np.array(STEPS, STEP_DTYPE)), span_device_ns=np.array([3, 4]))
    assert losses(whole) is None

    damaged = run_of(
        SPANS,
        statistics=whole.statistics,
        steps=Steps(np.array(STEPS[:1], STEP_DTYPE)),
        step_totals=whole.step_totals,
        span_device_ns=np.array([3, -1]),
    )
    assert losses(damaged) == "1 of 2 steps are missing; 1 of 2 device times are missing"
    assert losses(damaged, is_summary=True) is None


def test_spans_of_profiled_steps_are_no_loss() -> None:
    """Those are in the statistics, though not among `run.phases`."""
    [((path, scope), phase)] = run_of(SPANS).statistics.items()
    statistics = {(path, scope): phase, (path, Scope.PROFILED_STEP): phase}
    run = run_of(SPANS, statistics=statistics)
    assert run.phases_recorded == 2 * len(SPANS)
    assert losses(run, is_summary=True) is None
