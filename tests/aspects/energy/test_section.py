# SPDX-License-Identifier: Apache-2.0
"""Joules per step and per phase, of runs whose energy is known."""

import numpy as np
import pytest

from pyinstrument_gpu.aspects.energy.aspect import EnergyAspect, GpuEnergyUse
from pyinstrument_gpu.aspects.energy.data import ENERGY_DTYPE, GpuEnergy
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps

SECOND = 1_000_000_000


def run_of(spans: list[tuple[str, int, int]], steps: list[tuple[int, int]], gpu: GpuEnergy) -> Run:
    """Spans of outermost phases, by name, begin and end; steps of 8 samples."""
    names = tuple(dict.fromkeys(name for name, _, _ in spans))
    table = np.zeros(len(spans), SPAN_DTYPE)
    table["path"] = [names.index(name) for name, _, _ in spans]
    table["phase"] = table["path"]
    table["host_begin_ns"] = [begin for _, begin, _ in spans]
    table["host_end_ns"] = [end for _, _, end in spans]
    for field in ("device_begin_ns", "device_end_ns", "blocked_ns", "device", "stream"):
        table[field] = -1
    closed = np.zeros(len(steps), STEP_DTYPE)
    closed["index"] = np.arange(len(steps))
    closed["begin_ns"] = [begin for begin, _ in steps]
    closed["end_ns"] = [end for _, end in steps]
    closed["samples"] = 8
    return Run(
        names=names,
        path_parents=[-1] * len(names),
        path_names=range(len(names)),
        spans=table,
        steps=Steps.with_open(closed, None),
        energy=[gpu],
    )


def counter(joules_at: dict[int, float]) -> GpuEnergy:
    samples = [(time, round(joules * 1e3)) for time, joules in sorted(joules_at.items())]
    return GpuEnergy(0, "GPU-1", np.array(samples, ENERGY_DTYPE))


def use_of(run: Run) -> GpuEnergyUse:
    (use,) = EnergyAspect().section(run)
    return use


def test_joules_per_step_and_sample() -> None:
    gpu = counter({0: 0, 10 * SECOND: 1000})
    steps = [(i * SECOND, (i + 1) * SECOND) for i in range(2, 7)]
    use = use_of(run_of([], steps, gpu))
    assert use.joules_per_step == pytest.approx(100)
    assert use.joules_per_sample == pytest.approx(12.5)


def test_steps_beyond_the_readings_are_left_out() -> None:
    gpu = counter({SECOND: 0, 3 * SECOND: 100})
    steps = [(i * SECOND, (i + 1) * SECOND) for i in range(5)]
    assert use_of(run_of([], steps, gpu)).joules_per_step == pytest.approx(50)
    assert use_of(run_of([], steps[3:], gpu)).joules_per_step is None


def test_a_long_phase_is_measured() -> None:
    gpu = counter({0: 0, 10 * SECOND: 500, 20 * SECOND: 2500})
    run = run_of([("evaluate", 12 * SECOND, 14 * SECOND)], [], gpu)
    (phase,) = use_of(run).phases
    assert phase.path == "evaluate"
    assert phase.is_measured
    assert phase.joules == pytest.approx(400)


def occasional(seed: int) -> Run:
    """Steps of 0.3 s at 100 W and 20 J, and now and then a checkpoint of 0.1 s and 55 J more."""
    random = np.random.default_rng(seed)
    spans, joules_at = [], {}
    time, joules = 0, 0.0
    joules_at[0] = 0.0
    for _ in range(600):
        spans.append(("forward", time, time + SECOND // 10))
        joules += 20 + 0.3 * 100 + random.normal(0, 0.5)
        time += 3 * SECOND // 10
        if random.random() < 0.1:
            spans.append(("checkpoint", time - SECOND // 10, time))
            joules += 55
        joules_at[time] = joules
    return run_of(spans, [], counter(joules_at))


def test_a_short_phase_that_comes_now_and_then_is_found_by_regression() -> None:
    (phase,) = (one for one in use_of(occasional(0)).phases if one.path == "checkpoint")
    assert not phase.is_measured
    assert phase.low < 55 < phase.high
    assert phase.high - phase.low < 10


def test_phases_that_always_come_together_stay_unknown() -> None:
    spans, joules_at = [], {0: 0.0}
    for i in range(200):
        begin = i * SECOND // 2
        spans += [("forward", begin, begin + 10), ("backward", begin + 10, begin + 20)]
        joules_at[begin + SECOND // 2] = 40.0 * (i + 1)
    assert use_of(run_of(spans, [], counter(joules_at))).phases == ()


def test_few_readings_tell_nothing_of_phases() -> None:
    gpu = counter({i * SECOND: 10.0 * i for i in range(20)})
    assert use_of(run_of([("a", 0, 100)], [], gpu)).phases == ()


def test_without_readings_nothing_is_known() -> None:
    use = use_of(run_of([("a", 0, 2 * SECOND)], [(0, SECOND)], GpuEnergy(0, "GPU-1")))
    assert (use.joules, use.joules_per_step, use.phases) == (None, None, ())
