# SPDX-License-Identifier: Apache-2.0
"""What a step takes where nothing disturbs it, and what is said by that under CPU contention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.rules.case import Case
from pyinstrument_gpu.analysis.undisturbed import MIN_STEPS, OUTSIDE
from pyinstrument_gpu.aspects.loader.data import Loader, Loaders, WorkerTimes
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.core.step_values import TOKENS
from pyinstrument_gpu.report.document import document_of
from tests.helpers.timed_runs import MS, made_run, with_waits

_STEPS = 40
_QUIET = 6
"""Steps that nothing disturbs, more than a tenth."""


def contended_run(steps: int = _STEPS, busy: float = 0.8, workers: int | None = None) -> Run:
    """Steps of 10 ms: 6 of data, 3 of backward and 1 of neither. In most of them backward takes
    100 ms more, as it waits for its threads."""
    more_ns = np.where(np.arange(steps) % (steps // _QUIET) == 0, 0, 100 * MS)
    steps_ns: NDArray[np.int64] = 10 * MS + more_ns
    phases = {"data": 6 * MS / steps_ns, "backward": (3 * MS + more_ns) / steps_ns}
    facts: dict[str, Any] = {} if workers is None else {KEY: {"loader_workers": workers}}
    return with_waits(made_run(steps_ns, phases, gpus=[], **facts), busy)


def test_operators_count_with_their_fastest_tenth_and_the_rest_without_its_waits() -> None:
    found = analysis.of(contended_run()).undisturbed
    assert found is not None
    assert found.by_path == pytest.approx({0: 6 * MS, 1: 3 * MS, OUTSIDE: MS}, abs=10)
    assert found.share(0) == pytest.approx(0.6, abs=1e-4)


def test_the_verdict_names_the_largest_part_of_an_undisturbed_step() -> None:
    document = document_of(contended_run())
    assert document.verdict.startswith(
        "A step takes 92.5 ms, and 10.0 ms where nothing disturbs it, of which the host spends 60% "
        "in data"
    )
    # Without contention it is the slow steps that matter.
    quiet = document_of(contended_run(busy=0.0))
    assert "where nothing disturbs it" not in quiet.verdict
    assert "in backward" in quiet.verdict


def test_rules_price_computing_by_its_share_of_an_undisturbed_step() -> None:
    run = contended_run()
    case = Case(run, analysis.of(run))
    assert case.step_ns == pytest.approx(92.5 * MS)
    assert case.computing_ns(1) == pytest.approx(0.3 * 92.5 * MS, rel=1e-4)
    assert case.all_computing_ns == pytest.approx(case.step_ns)


def found_in(work_ns: dict[str, NDArray[np.float64]], waited: float) -> dict[str, float] | None:
    """The undisturbed times of phases in milliseconds, in a run in which each takes so long."""
    steps_ns = np.sum([*work_ns.values()], axis=0).astype(np.int64)
    phases = {name: ns / steps_ns for name, ns in work_ns.items()}
    run = with_waits(made_run(steps_ns, phases, gpus=[]), waited)
    found = analysis.of(run).undisturbed
    if found is None:
        return None
    return {run.paths[path]: ns / MS for path, ns in found.by_path.items() if path != OUTSIDE}


def test_work_that_comes_each_few_steps_is_no_disturbance() -> None:
    """As that of an optimizer with accumulated gradients, and of a logging handler."""
    place = np.arange(80)
    disturbed = np.where(place % 7 == 0, 10 * MS, 90 * MS).astype(np.float64)
    optimizer = np.where(place % 4 == 3, 120.0 * MS, 0.1 * MS)
    found = found_in({"forward": disturbed, "optimizer": optimizer}, 0.6)
    assert found is not None
    assert found["optimizer"] == pytest.approx(120.3 / 4, rel=0.01)
    assert found["forward"] == pytest.approx(10, rel=0.01)


def test_what_is_no_operator_keeps_what_its_waits_leave_of_its_mean() -> None:
    """As a slow sample that comes at random: it does not count as if it were not there."""
    drawn = np.random.default_rng(3).permutation(80)
    disturbed = np.where(drawn % 5 == 0, 10 * MS, 90 * MS).astype(np.float64)
    found = found_in({"load": np.where(drawn < 20, 80.0 * MS, MS), "forward": disturbed}, 0.5)
    assert found is not None
    assert found["load"] == pytest.approx((20 * 80 + 60) / 80 / 2, rel=0.01)


def test_it_is_unknown_where_the_means_say_enough_or_work_varies() -> None:
    assert analysis.of(contended_run(steps=MIN_STEPS - 2)).undisturbed is None
    for little in (0.0, 0.2):
        assert analysis.of(contended_run(busy=little)).undisturbed is None
    equal = with_waits(made_run([10 * MS] * _STEPS, gpus=[]), 0.8)
    assert analysis.of(equal).undisturbed is None
    sizes = contended_run()
    readings = np.zeros(_STEPS, METRIC_DTYPE)
    readings["step"], readings["value"] = np.arange(_STEPS), np.arange(_STEPS) % 4 + 1
    readings["name"] = 1
    sizes.metric_names = (*sizes.metric_names, TOKENS)
    sizes.metrics = np.concatenate([sizes.metrics, readings])
    assert analysis.of(sizes).undisturbed is None


def test_beside_a_gpu_nothing_is_said() -> None:
    more_ns = np.where(np.arange(_STEPS) % 6 == 0, 0, 100 * MS)
    run = with_waits(made_run(10 * MS + more_ns, gpus=["a GPU"]), 0.8)
    assert analysis.of(run).undisturbed is None


@pytest.mark.parametrize("making_ms", [40, 2])
def test_a_wait_for_workers_is_what_these_need_beyond_the_rest_of_the_step(making_ms: int) -> None:
    """By their own clocks: that they had to wait for processors is contention."""
    steps_ns = np.full(_STEPS, 110 * MS)
    is_late = np.arange(_STEPS) % 2 == 0
    data_ns = np.where(is_late, 60 * MS, MS)
    backward_ns = np.where(np.arange(_STEPS) < _QUIET, 3 * MS, 40 * MS)
    phases = {"data": data_ns / steps_ns, "backward": backward_ns / steps_ns}
    facts: dict[str, Any] = {KEY: {"loader_workers": 2}}
    run = with_waits(made_run(steps_ns, phases, gpus=[], **facts), 0.99)
    times = dict.fromkeys(("longest_ns", "waiting_ns", "starting_ns", "cpu_ns", "other_cpu_ns"), 1)
    row = WorkerTimes(
        worker=0,
        processes=1,
        batches=40,
        making_ns=40 * 4 * making_ms * MS,
        queued_ns=40 * 2 * making_ms * MS,
        **times,
    )
    run.loader = Loaders((Loader(dataset="Rows", workers=2, iterators=1, rows=(row,)),))
    found = analysis.of(run).undisturbed
    assert found is not None
    # Outside of phases there are 1 % of 9 to 106 ms, at least the fastest tenth.
    rest_ns = found.step_ns - found.by_path[0]
    expected_ns = max(MS, making_ms * MS - rest_ns)
    assert found.by_path[0] == pytest.approx(expected_ns, abs=10)
