# SPDX-License-Identifier: Apache-2.0
"""Device times of modules, on the simulated driver."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import pyinstrument_gpu as pig
from tests.helpers.device_program import Program, unharmed_cuda
from tests.helpers.simulated_cuda import SimulatedCuda
from tests.helpers.spans import dropped_of
from tests.helpers.timed_modules import Work

MS = 1_000_000
ENQUEUE_NS = 40_000
"""By as much, boundaries may lie beside the work: events and kernels are enqueued one by one."""


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with unharmed_cuda() as cuda:
        yield cuda


def device_work(program: Program, forward_ns: int, backward_ns: int) -> Work:
    """A module whose work is a kernel of so many ns."""
    return Work(functools.partial(program.work), forward_ns, backward_ns)


def test_modules_have_the_time_of_their_work_on_the_device(cuda: SimulatedCuda) -> None:
    program = Program(cuda)
    model = nn.Sequential(
        device_work(program, 2 * MS, 5 * MS), device_work(program, 3 * MS, 7 * MS)
    )
    with pig.watch_modules(model, "all"), program.recording() as recording:
        for _ in range(3):
            with pig.gpu_step():
                with pig.gpu_phase("forward"):
                    loss = model(torch.ones(4)).sum()
                with pig.gpu_phase("backward"):
                    loss.backward()
            cuda.run_dry()
            recording.flush(60)
    run = recording.run
    for name, forward_ns, backward_ns in (("0", 2 * MS, 5 * MS), ("1", 3 * MS, 7 * MS)):
        times = run.modules[name]
        assert times.device_forward is not None
        assert times.device_backward is not None
        assert times.device_forward.count == times.device_backward.count == 3
        assert times.device_forward.mean_ns == pytest.approx(forward_ns, abs=ENQUEUE_NS)
        assert times.device_backward.mean_ns == pytest.approx(backward_ns, abs=ENQUEUE_NS)
    backward = run.phases["backward"].device
    assert backward is not None
    assert backward.mean_ns == pytest.approx(12 * MS, abs=ENQUEUE_NS)
    placed = run.module_spans["device_begin_ns"] >= 0
    assert placed.all()
    assert dropped_of(run) == {}


def test_steps_that_are_not_timed_have_host_times_alone(cuda: SimulatedCuda) -> None:
    program = Program(cuda)
    model = nn.Sequential(device_work(program, 10_000, 10_000))
    with (
        pig.watch_modules(model, "all", every=1),
        program.recording(device_timing_budget=0.01) as recording,
    ):
        for _ in range(50):
            with pig.gpu_step():
                model(torch.ones(4)).sum().backward()
            cuda.run_dry()
            recording.flush(60)
    times = recording.run.modules["0"]
    assert times.forward is not None
    assert times.forward.count == 50
    assert times.device_forward is not None
    assert 0 < times.device_forward.count < 50
    assert dropped_of(recording.run) == {}


def test_steps_that_are_timed_on_the_device_are_those_in_which_modules_are(
    cuda: SimulatedCuda,
) -> None:
    program = Program(cuda)
    model = nn.Sequential(device_work(program, MS, MS))
    with (
        pig.watch_modules(model, "all"),
        program.recording(device_timing_budget=0.02) as recording,
    ):
        for _ in range(60):
            with pig.gpu_step():
                model(torch.ones(4)).sum().backward()
            cuda.run_dry()
            recording.flush(60)
    run = recording.run
    assert run.module_step_weights is not None
    weights = run.module_step_weights.tolist()
    later = [step for step, weight in enumerate(weights) if weight and step >= 3]
    assert 0 < len(later) < 57
    on_device = run.module_spans[run.module_spans["device_begin_ns"] >= 0]
    assert set(later) <= set(on_device["step"].tolist())
    assert sum(weights) == later[-1] + 1
    assert dropped_of(run) == {}


def test_what_modules_cost_the_device_counts_as_well(cuda: SimulatedCuda) -> None:
    """The four records of a step cost the host 0.16 % of it, which may be, and as much the device,
    which together may not."""
    program = Program(cuda)
    work = functools.partial(program.work, host_ns=10 * MS)
    model = nn.Sequential(Work(work, MS, MS))
    cuda.set_cost("cuEventRecord", 8_000)
    with pig.watch_modules(model, "all"), program.recording() as recording:
        for _ in range(23):
            with pig.gpu_step():
                model(torch.ones(4)).sum().backward()
    run = recording.run
    assert run.module_step_weights is not None
    assert sorted(run.module_step_weights.tolist()[3:]) == [0] * 10 + [2] * 10
