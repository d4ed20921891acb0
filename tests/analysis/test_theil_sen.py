# SPDX-License-Identifier: Apache-2.0
"""Slopes of lines through points, and when growth is claimed."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.inference import theil_sen
from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE, Memory
from pyinstrument_gpu.aspects.memory.growth import FEWEST_POINTS, memory_growth


def memory_of(allocated: NDArray[np.int64]) -> Memory:
    points = np.zeros(len(allocated), MEMORY_POINT_DTYPE)
    points["step"] = 50 * np.arange(len(allocated))
    points["allocated_bytes"] = allocated
    return Memory(steps=len(points), points=points)


@pytest.mark.parametrize(
    ("count", "has_ties", "expected"),
    [
        (8, False, ("413/130", "-2", "51/8")),
        (8, True, ("25/312", "0", "1/7")),
        (21, False, ("271/90", "17/7", "24/7")),
        (21, True, ("1/13", "4/63", "4/45")),
        (60, False, ("14111/4636", "56/19", "413/132")),
        (60, True, ("5/66", "8/109", "17/218")),
    ],
)
def test_it_is_the_slope_that_scipy_gives(
    count: int, has_ties: bool, expected: tuple[str, ...]
) -> None:
    """What `scipy.stats.theilslopes(y, x, alpha=0.99)` gave, as fractions."""
    i = np.arange(count)
    x = np.cumsum(1 + i * i * 5 % 8 + i % 3)
    y = 3 * x + (37 * i**3 + 11 * i) % 83 - 41
    found = theil_sen(x.astype(float), (y // 40 if has_ties else y).astype(float))
    assert found == pytest.approx([float(Fraction(each)) for each in expected])


def test_some_points_may_lie_far_off() -> None:
    x = np.arange(40.0)
    y = 5 * x
    y[::10] += 1e9
    found = theil_sen(x, y)
    assert found is not None
    assert found.slope == 5


def test_too_few_points_have_no_slope() -> None:
    assert theil_sen(np.arange(7.0), np.arange(7.0)) is None


def test_growth_takes_enough_steps() -> None:
    growing = 512 * np.arange(FEWEST_POINTS)
    assert memory_growth(memory_of(growing[:-1])) is None
    growth = memory_growth(memory_of(growing))
    assert growth is not None
    assert growth.step_bytes == 512 / 50


STEPS = np.arange(100)


@pytest.mark.parametrize(
    "allocated",
    [
        pytest.param(1e9 * (1 - np.exp(-STEPS / 20)), id="a cache that fills"),
        pytest.param(1e5 * (STEPS % 20), id="a garbage collector's saw"),
        pytest.param(1e8 * np.searchsorted([10, 45, 80], STEPS), id="a few jumps"),
        pytest.param(1e6 * np.minimum(STEPS, 60), id="a long warm-up"),
        pytest.param(1e3 * np.minimum(STEPS, 42), id="the first half alone"),
        pytest.param(1e3 * STEPS[::-1], id="what shrinks"),
    ],
)
def test_what_does_not_go_on_growing_is_no_leak(allocated: NDArray[np.float64]) -> None:
    assert memory_growth(memory_of(np.round(allocated).astype(np.int64))) is None


def test_a_leak_is_found_below_a_saw() -> None:
    growth = memory_growth(memory_of(1000 * STEPS + 3000 * (STEPS % 10)))
    assert growth is not None


def test_noise_is_hardly_ever_called_a_leak() -> None:
    random = np.random.default_rng(1)
    claimed = sum(
        memory_growth(memory_of(random.integers(0, 1 << 30, 40))) is not None for _ in range(300)
    )
    assert claimed <= 3
