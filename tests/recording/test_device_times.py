# SPDX-License-Identifier: Apache-2.0
"""Device times on the simulated driver, whose truth is known: what is measured."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.patching import tensor_device
from tests.helpers.device_program import (
    Program,
    assert_exact,
    attached_cuda,
)
from tests.helpers.spans import dropped_of


def test_a_phase_has_the_time_of_its_work_on_the_device(program: Program) -> None:
    with program.recording() as recording:
        with program.phase("forward"):
            program.work(device_ns=2_000_000)
        program.cuda.run_dry()
    run = recording.run

    assert_exact(run, program)
    assert run.phases["forward"].device is not None
    # From the begin's stamp: the host was 10 us late with the work.
    assert 2_000_000 <= run.phases["forward"].device.total_ns <= 2_012_000
    assert [(s.device, s.name) for s in run.streams] == [(0, "default stream")]
    assert dropped_of(run) == {}


def test_times_come_late_and_find_their_spans(program: Program) -> None:
    with program.recording() as recording:
        for _ in range(50):
            with gpu_step(), program.phase("forward"):
                program.work(device_ns=5_000_000)
            recording.flush(0)
        early = recording.snapshot()
        program.cuda.run_dry()
        assert recording.flush(60)
        late = recording.snapshot()
    assert np.count_nonzero(early.span_device_ns >= 0) < 50
    assert np.count_nonzero(late.span_device_ns >= 0) == 50
    assert_exact(recording.run, program)


def test_events_take_the_device_time_themselves(program: Program) -> None:
    """Which is the least that a phase can have."""
    record_ns = 1_250
    program.cuda.devices[0].set_record_duration(record_ns)
    with program.settled(share_boundaries_ns=0) as recording:
        with program.phase("outer"), program.phase("inner"):
            pass
        for _ in range(20):
            with program.phase("work"):
                program.work(1_000_000)
            program.cuda.advance(95_000_000)
            recording.flush(0)
    assert_exact(recording.run, program)
    inner_ns, outer_ns = recording.run.span_device_ns[:2]
    assert inner_ns > record_ns - 32
    assert outer_ns > 3 * record_ns - 32
    assert len(recording.run.device_clocks[0].device_ns) >= 2


def test_streams_complete_out_of_order(program: Program) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    program.streams.add(side.handle)
    with program.recording() as recording:
        with program.phase("slow"):
            program.work(device_ns=900_000_000)
        with side.as_current(), program.phase("quick"):
            cuda.advance(5_000)
            side.launch(1_000_000)
        for _ in range(10):
            cuda.advance(10_000_000)
            recording.flush(0)
        so_far = recording.snapshot()
        for _ in range(10):
            cuda.advance(100_000_000)
            recording.flush(0)
    quick = so_far.paths.index("quick")
    assert so_far.spans["path"][so_far.span_device_ns >= 0].tolist() == [quick]
    assert so_far.pending_device_work == {"slow": 1}
    assert [stream.name for stream in recording.run.streams] == ["stream 1", "default stream"]
    assert_exact(recording.run, program)


def test_two_devices_each_have_their_own_clock() -> None:
    with attached_cuda(2) as cuda:
        program = Program(cuda)
        for ordinal, (offset_ns, drift_ppm) in enumerate(((10**15, 100), (-(10**12), -80))):
            cuda.devices[ordinal].set_clock(offset_ns=offset_ns, drift_ppm=drift_ppm)
        with program.recording() as recording:
            for _ in range(100):
                for device_ in cuda.devices:
                    device_.activate()
                    with program.phase(f"on {device_.ordinal}"):
                        program.work(device_ns=3_000_000)
                cuda.advance(20_000_000)
                recording.flush(0)
            cuda.run_dry()
        run = recording.run
        # The second device was new to a recording under way: its events had to be made first.
        preparing = run.dropped["device_preparing"]
        assert preparing <= 2
        timed = run.span_device_ns >= 0
        assert np.count_nonzero(timed) == 200 - preparing
        assert {clock.device for clock in run.device_clocks} == {0, 1}
        for clock, drift_ppm in zip(run.device_clocks, (100, -80), strict=True):
            assert clock.drift_ppm == pytest.approx(-drift_ppm, abs=30)


def test_the_devices_that_the_process_uses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_device, "accelerator_type", lambda: "cuda")
    with attached_cuda(2) as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            with program.phase("work"):
                program.work(device_ns=1_000)
            assert recording.flush(60)
            assert recording.snapshot().program_facts.other_streams is False
            cuda.devices[1].activate()
            cuda.advance(2_000_000_000)
            recording.flush(60)
        assert recording.run.program_facts.other_streams is True


def test_a_phase_around_everything_keeps_its_begin(program: Program) -> None:
    with program.recording() as recording:
        with program.phase("epoch"):
            for _ in range(6_000):  # more records than there are events
                with program.phase("step"):
                    program.work(device_ns=100_000, host_ns=150_000)
                if program.cuda.record_count % 500 == 0:
                    recording.flush(0)
        program.cuda.run_dry()
    assert_exact(recording.run, program)


@pytest.mark.parametrize("tick_ns", [32, 500, 1000, 1024])
def test_any_tick_of_the_device(program: Program, tick_ns: int) -> None:
    program.cuda.devices[0].set_tick(tick_ns)
    # Records at distances that are all the same multiple of the tick would not tell the tick.
    program.cuda.set_cost("cuEventRecord", 1_437)
    with program.recording() as recording:
        for i in range(100):
            with gpu_step(), program.phase("forward"):
                program.work(device_ns=1_000_003 * (i % 7 + 1))
            program.cuda.advance(30_000_000)
            recording.flush(0)
        program.cuda.run_dry()
    assert_exact(recording.run, program, tick_ns)


Phases = st.recursive(
    st.tuples(st.integers(0, 40_000), st.integers(1_000, 30_000_000)),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(
    steps=st.lists(Phases, min_size=1, max_size=6),
    drift_ppm=st.integers(-100, 100),
    offset_ns=st.integers(-(10**17), 10**17),
    latency_ns=st.integers(500, 30_000),
    pause_ns=st.integers(0, 400_000_000),
)
@settings(max_examples=25)
def test_generated_programs_have_exact_times(
    steps: list[Any], drift_ppm: int, offset_ns: int, latency_ns: int, pause_ns: int
) -> None:
    def run_phases(program: Program, phases: Any, depth: int) -> None:
        with program.phase(f"depth {depth}"):
            if isinstance(phases, tuple):
                host_ns, device_ns = phases
                program.work(device_ns, host_ns + 2_000)
            else:
                for inner in phases:
                    run_phases(program, inner, depth + 1)

    with attached_cuda() as cuda:
        cuda.devices[0].set_clock(offset_ns=offset_ns, drift_ppm=drift_ppm)
        cuda.devices[0].set_record_latency(latency_ns)
        program = Program(cuda)
        with program.recording() as recording:
            for phases in steps:
                with gpu_step():
                    run_phases(program, phases, 0)
                cuda.advance(pause_ns)
                recording.flush(0)
            cuda.run_dry()
        assert_exact(recording.run, program)
        assert cuda.blocking_calls == 0


def train_for(program: Program, hours: float) -> pig.Run:
    """A step every 0.4 s, which the harvester sees."""
    with program.recording() as recording:
        for _ in range(int(hours * 9_000)):
            with gpu_step(), program.phase("forward"):
                program.work(device_ns=123_456_789)
            program.cuda.advance(400_000_000)
            recording.flush(0)
        program.cuda.run_dry()
    return recording.run


@pytest.mark.parametrize("hours", [0.25, pytest.param(24, marks=pytest.mark.slow)])
def test_no_error_grows_over_hours_of_drift(program: Program, hours: float) -> None:
    program.cuda.devices[0].set_clock(offset_ns=10**16, drift_ppm=100)
    run = train_for(program, hours)
    assert_exact(run, program)
    (clock,) = run.device_clocks
    assert clock.drift_ppm == pytest.approx(-100, abs=1)
    assert clock.uncertainty_ns < 50_000
