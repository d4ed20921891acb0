# SPDX-License-Identifier: Apache-2.0
"""One analysis per run: each part is computed once, and goes with its run."""

import gc
import weakref
from collections import Counter
from typing import Any

import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis import (
    advice,
    bottleneck,
    correlation_points,
    host_timeline,
    savings,
    step_times,
    time_budget,
)
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from tests.helpers.device_program import attached_cuda
from tests.helpers.sync_program import Launch, Made, Sync, ran

MS = 1_000_000
PARTS = [
    (advice, "advice"),
    (bottleneck, "bottlenecks"),
    (bottleneck, "span_bottlenecks"),
    (correlation_points, "correlation_points"),
    (host_timeline, "host_timeline"),
    (time_budget, "time_budget"),
    (bottleneck, "clock_uncertainty_ns"),
    (bottleneck, "queue_times"),
    (savings, "savings"),
    (step_times, "attribution"),
    (step_times, "kept_steps"),
    (step_times, "step_quantiles"),
]


def program() -> Run:
    """A program with a phase on the device that is read at once, and a wait for its loader."""
    made = Made(
        phases=((Launch(10_000, 5 * MS),), (Launch(2 * MS, 2_000),)),
        syncs=(Sync(0, 0, False, 15_000, 3_000, 0),),
        loader_ns=(MS,) * 50,
    )
    with attached_cuda() as cuda:
        return ran(made, cuda).run


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each part was computed."""
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        compute = getattr(module, name)

        def counted(*args: Any) -> Any:
            counts[name] += 1
            return compute(*args)

        monkeypatch.setattr(module, name, counted)

    for module, name in PARTS:
        count(module, name)
    return counts


def test_reports_compute_each_part_once(computed: Counter[str]) -> None:
    run = program()
    first = run.report(verbose=True, width=120, color=False)

    assert "Time budget: " in first
    assert "What a change could save: " in first
    assert "On the device: " in first
    assert computed == {name: 1 for _, name in PARTS}
    assert run.report(verbose=True, width=120, color=False) == first
    run.report(step=3)
    assert computed == {name: 1 for _, name in PARTS}


def test_a_part_of_each_scope_is_its_own(computed: Counter[str]) -> None:
    found = analysis.of(program())

    assert set(found.bottlenecks(Scope.OUTSIDE)) != set(found.bottlenecks(Scope.STEP))
    assert set(found.bottlenecks()) >= set(found.bottlenecks(Scope.STEP))
    assert computed["bottlenecks"] == 3


def test_each_run_has_its_own_analysis() -> None:
    run, other = program(), program()

    assert analysis.of(run).time_budget is analysis.of(run).time_budget
    assert analysis.of(run).time_budget is not analysis.of(other).time_budget
    assert len(analysis.of(Run()).time_budget.entries) == 0


def test_an_analysis_does_not_keep_its_run() -> None:
    run = program()
    run.report(verbose=True)
    gone = weakref.ref(run)
    gc.disable()
    try:
        del run
        assert gone() is None
    finally:
        gc.enable()
