# SPDX-License-Identifier: Apache-2.0
"""Joules per step and per sample, of runs whose energy is known."""

import numpy as np
import pytest

from pyinstrument_gpu.aspects.energy.aspect import EnergyAspect, GpuEnergyUse
from pyinstrument_gpu.aspects.energy.data import ENERGY_DTYPE, GpuEnergy
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps

SECOND = 1_000_000_000


def run_of(steps: list[tuple[int, int]], gpu: GpuEnergy) -> Run:
    """Steps of 8 samples, by begin and end."""
    closed = np.zeros(len(steps), STEP_DTYPE)
    closed["index"] = np.arange(len(steps))
    closed["begin_ns"] = [begin for begin, _ in steps]
    closed["end_ns"] = [end for _, end in steps]
    closed["samples"] = 8
    return Run(steps=Steps.with_open(closed, None), energy=[gpu])


def counter(joules_at: dict[int, float]) -> GpuEnergy:
    samples = [(time, round(joules * 1e3)) for time, joules in sorted(joules_at.items())]
    return GpuEnergy(0, "GPU-1", np.array(samples, ENERGY_DTYPE))


def use_of(run: Run) -> GpuEnergyUse:
    (use,) = EnergyAspect().section(run)
    return use


def test_joules_per_step_and_sample() -> None:
    gpu = counter({0: 0, 10 * SECOND: 1000})
    steps = [(i * SECOND, (i + 1) * SECOND) for i in range(2, 7)]
    use = use_of(run_of(steps, gpu))
    assert use.joules_per_step == pytest.approx(100)
    assert use.joules_per_sample == pytest.approx(12.5)


def test_steps_beyond_the_readings_are_left_out() -> None:
    gpu = counter({SECOND: 0, 3 * SECOND: 100})
    steps = [(i * SECOND, (i + 1) * SECOND) for i in range(5)]
    assert use_of(run_of(steps, gpu)).joules_per_step == pytest.approx(50)
    assert use_of(run_of(steps[3:], gpu)).joules_per_step is None


def test_without_readings_nothing_is_known() -> None:
    use = use_of(run_of([(0, SECOND)], GpuEnergy(0, "GPU-1")))
    assert (use.joules, use.joules_per_step) == (None, None)
