# SPDX-License-Identifier: Apache-2.0
"""Steps that torch.profiler has slowed are in no time that a run says of a step or a phase."""

import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.compare import Verdict, compare
from pyinstrument_gpu.analysis.run_sample import run_samples
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_script import Script

MS = 1_000_000
STEPS = 30
STEP_MS, DATA_MS, FORWARD_MS = 10.0, 2.0, 5.0
SLOWER = 4
STARTS_MS, STOPS_MS = 300.0, 70.0


def made(*windows: tuple[int, int], scale: float = 1.0) -> Run:
    """A run whose steps last 10 ms each, or 40 if they were profiled, one behind the other. Before
    and after a window the profiler takes its time."""
    script = Script()
    for step in range(STEPS):
        slower = scale * (SLOWER if any(a <= step <= b for a, b in windows) else 1)
        script.work(int(MS * STARTS_MS) * any(step == first for first, _ in windows))
        with script.step(samples=8):
            for name, length_ms in (("data", DATA_MS), ("forward", FORWARD_MS)):
                script.leaf(name, int(MS * slower * length_ms))
            script.work(int(MS * slower * (STEP_MS - DATA_MS - FORWARD_MS)))
        script.work(int(MS * STOPS_MS) * any(step == last for _, last in windows))
    return script.run(operations=Operations(profiled=windows) if windows else None, environment={})


@pytest.mark.parametrize("windows", [[(3, 5)], [(25, 27)], [(2, 2), (20, 21)], [(0, 1)]])
def test_means_totals_and_shares(windows: list[tuple[int, int]]) -> None:
    run = made(*windows)
    count = sum(last - first + 1 for first, last in windows)
    others = STEPS - count
    assert (run.step_totals.count, run.profiled_totals.count) == (others, count)
    assert run.step_totals.duration.mean_ns == run.step_totals.duration.max_ns == STEP_MS * MS
    assert run.profiled_totals.duration.mean_ns == SLOWER * STEP_MS * MS
    assert run.step_totals.samples_per_second == 8 / STEP_MS * 1000
    forward = run.phases["forward"]
    assert forward.host is not None
    assert (forward.count, forward.host.mean_ns) == (others, FORWARD_MS * MS)
    assert forward.host.max_ns == FORWARD_MS * MS
    assert run.statistics[1, Scope.PROFILED_STEP].count == count

    found = analysis.of(run).attribution
    assert found.phases_ns == others * (DATA_MS + FORWARD_MS) * MS
    assert found.outside_phases_ns == others * (STEP_MS - DATA_MS - FORWARD_MS) * MS
    assert found.crossing == 0
    report = run.report(verbose=True, width=200)
    assert (
        f"All times leave out {count} profiled steps, which took 40.0 ms on average, 30.0 ms "
        "more than others"
    ).replace("1 profiled steps", "1 profiled step") in report
    for text in (report, run.report(width=200)):
        assert f"30 steps ({count} of them profiled) in " in text
    steps = document_of(run).steps
    assert steps is not None
    assert (steps.profiled, steps.profiled_mean_ns, steps.mean_ns) == (count, 40 * MS, 10 * MS)


def test_time_budget_and_savings_are_those_of_the_most_other_steps_in_a_row() -> None:
    run = made((3, 5), (20, 21))
    time_budget = analysis.of(run).time_budget
    assert time_budget.steps["index"].tolist() == list(range(6, 20))
    assert set(time_budget.entries["step"].tolist()) == set(range(6, 20))
    _, means = time_budget.means()
    assert {path: entry.time_ns for path, entry in means.items()} == {
        0: DATA_MS * MS,
        1: FORWARD_MS * MS,
        -1: (STEP_MS - DATA_MS - FORWARD_MS) * MS,
    }
    savings = analysis.of(run).savings
    assert savings.steps == 14
    assert savings.step_ns == savings.elapsed_ns == STEP_MS * MS


@pytest.mark.parametrize("windows", [[(3, 5)], [(25, 27)], [(10, 11), (20, 21)]])
def test_compare_sees_no_difference(windows: list[tuple[int, int]]) -> None:
    profiled, plain = run_samples([made(*windows), made()])
    for sample in (profiled, plain):
        assert sample.elapsed_ns == sample.step_ns == STEP_MS * MS
        assert sample.phase_ns["forward"] == FORWARD_MS * MS
    # Both are observed over the same steps, in which neither was profiled.
    assert profiled.steps == plain.steps < STEPS

    scales = (1.0, 1.001, 0.999)
    before = [made(scale=scale) for scale in scales]
    same = compare(before, [made(*windows, scale=scale) for scale in scales])
    assert same.verdict is Verdict.SAME
    assert same.elapsed.change == 0
    slower = compare(before, [made(*windows, scale=1.1 * scale) for scale in scales])
    assert slower.verdict is Verdict.SLOWER
    assert slower.elapsed.change == pytest.approx(0.1, abs=1e-6)


def test_where_all_steps_were_profiled_they_are_all_there_is() -> None:
    run = made((0, STEPS - 1))
    assert (run.step_totals.count, run.profiled_totals.count) == (STEPS, 0)
    assert run.step_totals.duration.mean_ns == SLOWER * STEP_MS * MS
    assert run.phases["forward"].count == STEPS
    assert {scope for _, scope in run.statistics} == {Scope.STEP}
    assert analysis.of(run).step_quantiles.steps == STEPS
    assert analysis.of(run).savings.steps == STEPS
    assert "All times leave out" not in run.report(verbose=True, width=200)
