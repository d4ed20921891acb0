# SPDX-License-Identifier: Apache-2.0
"""How often a gate is wrong, on a made-up machine that is as unpleasant as real ones."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from pyinstrument_gpu.analysis.compare import Slowdown
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate.gate import Gate, GateResult, Plan
from tests.helpers.scripted_side import ScriptedSide
from tests.helpers.timed_runs import MS, made_run

pytestmark = pytest.mark.usefixtures("verdicts_alone")

Noise = Callable[[np.random.Generator, int], np.ndarray]
"""The relative times of so many runs in the order in which they are made."""


def drift(random: np.random.Generator, runs: int) -> np.ndarray:
    return 1 + random.uniform(-0.004, 0.004) * np.arange(runs) + random.normal(0, 0.003, runs)


def bimodal(random: np.random.Generator, runs: int) -> np.ndarray:
    share = random.uniform(0.1, 0.9)
    return 1 + 0.05 * (random.random(runs) < share) + random.normal(0, 0.002, runs)


def stalls(random: np.random.Generator, runs: int) -> np.ndarray:
    return 1 + 0.01 * random.pareto(1.5, runs) + random.normal(0, 0.005, runs)


def other_programs(random: np.random.Generator, runs: int) -> np.ndarray:
    """They come and go, and stay for several runs."""
    load = np.zeros(runs)
    for i in range(1, runs):
        load[i] = 0.8 * load[i - 1] + random.normal(0, 0.02)
    return np.exp(load)


def gaussian(random: np.random.Generator, runs: int) -> np.ndarray:
    return np.exp(random.normal(0, np.exp(random.uniform(np.log(0.003), np.log(0.05))), runs))


def repeating(period: int) -> Noise:
    """Each run takes what the one took that was made a period before, apart from little."""

    def noise(random: np.random.Generator, runs: int) -> np.ndarray:
        levels = 1 + 0.05 * random.random(period)
        return np.resize(levels, runs) + random.normal(0, 0.002, runs)

    return noise


NOISES = (drift, bimodal, stalls, other_programs, gaussian)


def simulated_gate(random: np.random.Generator, noise: Noise, effect: float) -> GateResult:
    plan = Plan()
    times_ns = iter(20 * MS * noise(random, 2 * plan.most_runs))

    def side(factor: float) -> ScriptedSide:
        def make(_name: str) -> Run:
            return made_run([factor * next(times_ns)] * 2)

        return ScriptedSide(make)

    order = Random(int(random.integers(1 << 32)))
    return Gate((side(1.0), side(1 + effect)), plan, Path(), random=order).result()


def share_called_slower(gates: int, seed: int, noise: Noise) -> float:
    random = np.random.default_rng(seed)
    return sum(simulated_gate(random, noise, 0.0).is_slower for _ in range(gates)) / gates


def test_same_program_is_rarely_called_slower() -> None:
    assert share_called_slower(10, 30, bimodal) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_same_program_is_called_slower_in_at_most_three_percent(noise: Noise) -> None:
    share = share_called_slower(400, 31, noise)
    print(f"{noise.__name__}: called slower {share:.4f}")
    assert share <= 0.03


@pytest.mark.parametrize(
    "gates", [20, pytest.param(400, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("period", [2, 3, 4])
def test_what_repeats_every_few_runs_is_no_slowdown(period: int, gates: int) -> None:
    assert share_called_slower(gates, 33, repeating(period)) <= max(0.025, 1 / gates)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_what_a_gate_can_show_it_shows(noise: Noise) -> None:
    random = np.random.default_rng(32)
    results = [simulated_gate(random, noise, 0.05) for _ in range(100)]
    able = [
        result
        for result in results
        if (result.comparison.elapsed.smallest_effect or np.inf) <= 0.05
    ]
    found = sum(result.is_slower for result in able)
    print(f"{noise.__name__}: found {found} of {len(able)}")
    assert found >= 0.8 * len(able)
    assert sum(result.slowdown is Slowdown.NOT_SLOWER for result in results) <= 0.03 * 100
