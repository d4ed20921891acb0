# SPDX-License-Identifier: Apache-2.0
"""The looks at a growing comparison, and what their intervals say."""

import dataclasses

import pytest

from pyinstrument_gpu.analysis.compare import Slowdown, Verdict, compare, slowdown
from pyinstrument_gpu.analysis.inference import looks, t_quantile
from tests.helpers.timed_runs import runs_of


def test_error_is_spent_over_the_looks_and_no_more() -> None:
    plan = looks(5, 15, 0.95)
    assert [look.runs for look in plan] == [5, 7, 10, 15]
    errors = [1 - look.confidence for look in plan]
    assert sum(errors) == pytest.approx(0.05)
    # (n / N)**2 of it is spent by then.
    assert sum(errors[:3]) == pytest.approx(0.05 * (10 / 15) ** 2)
    assert errors[0] == pytest.approx(0.05 / 9)


@pytest.mark.parametrize(("runs", "max_runs"), [(3, 3), (3, 4), (5, 6), (5, 500), (40, 41)])
def test_any_plan_begins_and_ends_where_it_should(runs: int, max_runs: int) -> None:
    plan = looks(runs, max_runs, 0.95)
    sizes = [look.runs for look in plan]
    assert sizes == sorted({*sizes}) and (sizes[0], sizes[-1]) == (runs, max_runs)
    assert sum(1 - look.confidence for look in plan) == pytest.approx(0.05)


def test_single_look_is_an_ordinary_comparison() -> None:
    (look,) = looks(8, 8, 0.95)
    assert look.confidence == pytest.approx(0.95)


@pytest.mark.parametrize(("runs", "max_runs"), [(0, 3), (5, 4)])
def test_no_plan(runs: int, max_runs: int) -> None:
    with pytest.raises(ValueError, match="runs must be 1 to max_runs"):
        looks(runs, max_runs, 0.95)


def test_more_confidence_is_a_wider_interval_everywhere() -> None:
    before, after = runs_of(100.0, 104.0, 101.0), runs_of(107.0, 108.0, 105.0)
    usual, sure = (compare(before, after, confidence=c) for c in (0.95, 0.99))
    assert (usual.confidence, sure.confidence) == (0.95, 0.99)
    for narrow, wide in (
        (usual.elapsed.interval, sure.elapsed.interval),
        (usual.inside.interval, sure.inside.interval),
        (usual.phases[0].interval_ns, sure.phases[0].interval_ns),
    ):
        assert narrow is not None and wide is not None
        assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert (sure.elapsed.smallest_effect or 0) > (usual.elapsed.smallest_effect or 1)
    assert usual.verdict is Verdict.SLOWER and sure.verdict is Verdict.AMBIGUOUS


def test_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(0.975, 4) == pytest.approx(2.776445)
    assert t_quantile(0.9, 1) == pytest.approx(3.077684)
    assert t_quantile(0.975, float("inf")) == pytest.approx(1.959964)


@pytest.mark.parametrize(
    ("interval", "limit", "margin", "found"),
    [
        ((0.02, 0.04), 0.0, 0.01, Slowdown.SLOWER),
        ((0.002, 0.008), 0.0, 0.01, Slowdown.NOT_SLOWER),  # certain, but too small to count
        ((0.002, 0.008), 0.0, 0.0, Slowdown.SLOWER),
        ((-0.05, 0.009), 0.0, 0.01, Slowdown.NOT_SLOWER),
        ((-0.05, 0.02), 0.0, 0.01, Slowdown.UNCLEAR),
        ((0.02, 0.04), 0.05, 0.01, Slowdown.NOT_SLOWER),
        ((0.02, 0.06), 0.05, 0.01, Slowdown.UNCLEAR),
        ((0.051, 0.06), 0.05, 0.01, Slowdown.SLOWER),
        ((0.006, 0.03), 0.005, 0.01, Slowdown.SLOWER),
        (None, 0.0, 0.01, Slowdown.UNCLEAR),
    ],
)
def test_what_an_interval_says(
    interval: tuple[float, float] | None, limit: float, margin: float, found: Slowdown
) -> None:
    comparison = compare(runs_of(100, 101, 102), runs_of(100, 101, 102))
    elapsed = dataclasses.replace(comparison.elapsed, interval=interval)
    comparison = dataclasses.replace(comparison, elapsed=elapsed, margin=margin)
    assert slowdown(comparison, limit) is found
