# SPDX-License-Identifier: Apache-2.0
"""Which changes of the step over a run are told, and which are the machine's."""

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.analysis.trend import OUTSIDE, Trend
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from tests.helpers.timed_runs import MS, made_run

STEPS = 400
PHASES = ("data", "forward", "backward")


def run_of(times_ns: NDArray[np.float64], names: tuple[str, ...] = PHASES) -> Run:
    """A run with the time of each phase and last outside of all (rows) in each step (columns)."""
    steps_ns = times_ns.sum(axis=0)
    return made_run(steps_ns, dict(zip(names, times_ns / steps_ns, strict=False)))


def even(steps: int = STEPS, *of_phases_ms: float) -> NDArray[np.float64]:
    return np.repeat(np.array(of_phases_ms or (1, 3, 5, 1))[:, None] * 1.0 * MS, steps, axis=1)


def trend_of(times_ns: NDArray[np.float64]) -> Trend | None:
    return analysis.of(run_of(times_ns)).trend


def correlated(
    rng: np.random.Generator, steps: int, spread: float, length: float
) -> NDArray[np.float64]:
    """Factors around 1, of which neighbours are alike over about so many steps."""
    decay = np.exp(-1 / length)
    values = rng.normal(size=steps)
    for place in range(1, steps):
        values[place] = decay * values[place - 1] + np.sqrt(1 - decay**2) * values[place]
    return np.exp(spread * values)


def shared_machine(rng: np.random.Generator, steps: int, most: float = 3.0) -> NDArray[np.float64]:
    """The times of a program that does the same in each step, on a machine that others use too: it
    wavers, is slower up to `most` times for up to a fifth of the run, and some steps are slow."""
    machine = correlated(rng, steps, rng.uniform(0.01, 0.05 * most), rng.uniform(2, steps / 8))
    for _ in range(rng.integers(0, 5)):
        begin, length = rng.uniform(-0.1, 1) * steps, rng.uniform(0.02, 0.2) * steps
        machine[max(0, int(begin)) : int(begin + length)] *= rng.uniform(1, most)
    usual_ns = np.array([1.0, 3.0, 5.0, 2.0]) * MS * rng.uniform(0.3, 2, size=4)
    times_ns: NDArray[np.float64] = usual_ns[:, None] * machine
    times_ns *= np.exp(0.05 * rng.normal(size=times_ns.shape))
    times_ns[0] *= correlated(rng, steps, 0.2, rng.uniform(2, steps / 20))
    times_ns[rng.integers(4)] *= np.where(rng.random(steps) < 0.02, 10, 1)
    return times_ns


@pytest.mark.parametrize("steps", [150, 600])
def test_a_shared_machine_makes_no_trend(steps: int) -> None:
    named = [trend_of(shared_machine(np.random.default_rng(seed), steps)) for seed in range(200)]
    assert sum(one is not None for one in named) <= 1


@pytest.mark.parametrize(("most", "named"), [(1.3, 200), (3.0, 180)])
def test_a_growth_by_half_is_named_on_a_shared_machine_too(most: float, named: int) -> None:
    right = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        times_ns = shared_machine(rng, STEPS, most)
        row = int(rng.integers(1, 4))
        whole_ns = np.median(times_ns.sum(axis=0))
        slowness = times_ns[row] / np.median(times_ns[row])
        times_ns[row] += np.linspace(0, 0.5 * whole_ns, STEPS) * slowness
        found = trend_of(times_ns)
        if found is not None:
            assert found.shape == "growth"
            place = OUTSIDE if row == 3 else row
            right += found.place is not None and found.place.path == place
    assert right >= named


@pytest.mark.parametrize("row", [1, 3])
def test_a_growth_has_its_place_its_slope_and_its_cost(row: int) -> None:
    times_ns = even()
    times_ns[row] += 0.02 * MS * np.arange(STEPS)
    found = trend_of(times_ns)
    assert found is not None and found.place is not None
    assert (found.shape, found.since, found.is_epoch) == ("growth", None, False)
    assert found.place.path == (OUTSIDE if row == 3 else row)
    assert found.place.share == pytest.approx(1)
    assert found.per_step_ns == pytest.approx(0.02 * MS, rel=0.01)
    # The first twentieth is a warm-up, and each fifth of the rest has 76 steps.
    assert found.early_ns == pytest.approx((10 + 0.02 * (20 + 37.5)) * MS, rel=0.01)
    assert found.late_ns == pytest.approx((10 + 0.02 * (400 - 38.5)) * MS, rel=0.01)
    assert found.of_ns == pytest.approx((10 + 0.02 * 209.5) * MS, rel=0.01)
    # The mean above the first of the blocks.
    assert found.more_ns == pytest.approx(0.02 * MS * (209.5 - 29), rel=0.02)
    if row == 3:
        gap = found.place.gap
        assert gap is not None
        assert (gap.before, gap.behind) == (2, -1)


def test_a_step_that_gets_shorter_falls() -> None:
    times_ns = even()
    times_ns[1] += 0.02 * MS * np.arange(STEPS)[::-1]
    found = trend_of(times_ns)
    assert found is not None and found.place is not None
    assert (found.shape, found.place.path) == ("fall", 1)
    assert found.per_step_ns == pytest.approx(-0.02 * MS, rel=0.01)


@pytest.mark.parametrize(("shape", "later"), [("jump", True), ("drop", False)])
def test_a_level_that_changes_once_says_from_which_step_on(shape: str, later: bool) -> None:
    times_ns = even()
    times_ns[2] += np.where((np.arange(STEPS) >= 233) == later, 4.0 * MS, 0)
    found = trend_of(times_ns)
    assert found is not None and found.place is not None
    assert (found.shape, found.since, found.place.path) == (shape, 233, 2)
    assert sorted([found.early_ns, found.late_ns]) == pytest.approx([10 * MS, 14 * MS], rel=1e-6)
    assert not found.is_epoch


def test_a_level_of_all_phases_alike_is_the_machines() -> None:
    times_ns = even()
    times_ns[:, 200:] *= 2
    assert trend_of(times_ns) is None


def test_a_large_growth_of_all_phases_alike_is_named() -> None:
    found = trend_of(even() * np.linspace(1, 2, STEPS))
    assert found is not None
    assert found.shape == "growth"
    assert trend_of(even() * np.linspace(1, 1.3, STEPS)) is None


def test_steps_that_waited_for_a_processor_make_no_trend() -> None:
    times_ns = even()
    more_ns = 0.05 * MS * np.arange(STEPS)
    times_ns[1] += more_ns
    assert trend_of(times_ns) is not None
    waited = run_of(times_ns)
    waits = np.zeros(STEPS, METRIC_DTYPE)
    waits["step"], waits["value"] = np.arange(STEPS), more_ns
    waited.metric_names, waited.metrics = (READING,), waits
    assert analysis.of(waited).trend is None


def test_few_steps_and_small_changes_have_no_trend() -> None:
    growing = even(40)
    growing[1] += 0.2 * MS * np.arange(40)
    assert trend_of(growing) is None
    small = even()
    small[1] += np.linspace(0, 1.5 * MS, STEPS)
    assert trend_of(small) is None


def test_a_slow_warm_up_is_no_trend() -> None:
    times_ns = even()
    times_ns[1, :15] += 50 * MS
    assert trend_of(times_ns) is None


def test_the_first_epoch_is_told_as_such() -> None:
    # The phase "data start" is there where an epoch begins: in steps 0 and 200.
    times_ns = even(STEPS, 0.0, 3, 5, 2)
    times_ns[1, :200] += 4 * MS
    run = run_of(times_ns, ("data start", "data", "forward"))
    kept = (run.spans["path"] != 0) | (run.spans["step"] % 200 == 0)
    for name in ("spans", "span_self_ns", "span_device_ns", "span_device_clock_ns"):
        setattr(run, name, getattr(run, name)[kept])
    run.phases_recorded = len(run.spans)
    found = analysis.of(run).trend
    assert found is not None and found.place is not None
    assert (found.shape, found.since, found.is_epoch) == ("drop", 200, True)
    assert run.paths[found.place.path] == "data"


def test_what_other_programs_do_to_half_of_the_steps_hides_no_growth() -> None:
    times_ns = even()
    disturbed = np.random.default_rng(0).random(STEPS) < 0.5
    times_ns[1:3, disturbed] *= 30
    assert trend_of(times_ns) is None
    times_ns[3] += 0.02 * MS * np.arange(STEPS)
    found = trend_of(times_ns)
    assert found is not None and found.place is not None
    assert (found.shape, found.place.path) == ("growth", OUTSIDE)
    assert found.per_step_ns == pytest.approx(0.02 * MS, rel=0.01)


def test_a_place_that_stays_as_it_is_hides_no_jump_of_another() -> None:
    times_ns = even(100, 10, 5)
    times_ns[1, 50:] += 10 * MS
    found = analysis.of(run_of(times_ns, ("forward",))).trend
    assert found is not None and found.place is not None
    assert (found.shape, found.since, found.place.path) == ("jump", 50, OUTSIDE)
