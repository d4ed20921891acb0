# SPDX-License-Identifier: Apache-2.0
"""Device times on the simulated driver, whose truth is known."""

import math
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import (
    RECORD_NS,
    Program,
    assert_exact,
    attached_cuda,
)
from tests.helpers.script import run_script
from tests.helpers.simulated_cuda import (
    LIBRARY,
    CaptureMode,
    Result,
    SimulatedCuda,
    exchange_api_capsule,
    simulated_cuda,
)
from tests.helpers.spans import dropped_of

TIMING_CALLS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuStreamCreate",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
)


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with attached_cuda() as cuda:
        yield cuda
        assert cuda.blocking_calls == 0
        assert cuda.violations == []


@pytest.fixture
def program(cuda: SimulatedCuda) -> Program:
    return Program(cuda)


# --- what is measured ---


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


# --- what it costs ---


@pytest.mark.parametrize("minutes", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_distances_as_coarse_as_documented(program: Program, minutes: int) -> None:
    """The documentation promises about half a microsecond."""
    program.cuda.devices[0].set_elapsed_resolution(500)
    with program.recording(share_boundaries_ns=1_000) as recording:
        with program.phase("epoch"):
            for i in range(minutes * 60 * 8):
                with gpu_step(), program.phase("forward"):
                    program.work(device_ns=1_000_003 * (i % 7 + 1))
                program.cuda.advance(125_000_000)
                recording.flush(0)
            program.cuda.run_dry()
        program.cuda.run_dry()
    run = recording.run
    for i, (begin, end) in enumerate(program.expected):
        first, last = program.cuda.record(begin), program.cuda.record(end)
        truth_ns = (last.stamp_ns or 0) - (first.stamp_ns or 0)
        assert abs(int(run.span_device_ns[i]) - truth_ns) <= 750 + 1e-7 * truth_ns


def test_adjacent_and_nested_phases_share_their_boundaries(program: Program) -> None:
    # The harvester's records move the one clock too.
    program.cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0) as recording:
        with program.phase("outer"), program.phase("inner"):
            program.work(1_000_000)
        for _ in range(5):
            with program.phase("adjacent"):
                program.work(1_000_000)
        program.cuda.run_dry()
    assert program.marks() == 6 + 1  # six stretches of work, and what lies around them
    assert_exact(recording.run, program)


def test_nothing_is_shared_across_a_longer_gap(program: Program) -> None:
    with program.recording(reading_ns=0):
        for _ in range(3):
            with program.phase("adjacent"):
                program.work(1_000_000)
            program.cuda.advance(device_timing.SHARE_BOUNDARIES_NS + 1)
        program.cuda.run_dry()
    assert program.marks() == 6


def test_a_wait_that_is_enqueued_quickly_counts_where_it_was_enqueued(program: Program) -> None:
    """The cheapest enqueue that was measured on a GPU takes 398 ns."""
    cuda = program.cuda
    cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0) as recording:
        with program.phase("before"):
            program.work(1_000)
        with program.phase("wait"):
            cuda.advance(398)
            cuda.default_stream.launch(3_000_000)
        with program.phase("after"):
            program.work(5_000)
        cuda.run_dry()
    assert recording.run.phases["wait"].device is not None
    assert recording.run.phases["wait"].device.total_ns >= 3_000_000
    assert_exact(recording.run, program)


def test_a_stream_that_two_threads_use_in_the_step_shares_nothing(program: Program) -> None:
    def other_thread() -> None:
        program.cuda.make_current(context)
        with gpu_phase("theirs"):
            pass

    context = program.cuda.current_context
    program.cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0):
        with gpu_step():
            thread = threading.Thread(target=other_thread)
            thread.start()
            thread.join()
            before = program.marks()
            for _ in range(3):
                with gpu_phase("mine"):
                    pass
            assert program.marks() == before + 6
        with gpu_step():  # the next step is another matter
            before = program.marks()
            for _ in range(3):
                with gpu_phase("mine"):
                    pass
            assert program.marks() <= before + 1


def test_short_steps_are_timed_every_kth(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        for _ in range(200):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(300_000)
        program.cuda.run_dry()
    run = recording.run
    assert run.device_timing is not None
    # A timed step takes 303 us, of which a thousandth pays for a tenth of its two records.
    assert run.device_timing.every == math.ceil(2 * RECORD_NS / 0.001 / 300_000)
    steps = run.spans["step"][run.span_device_ns >= 0]
    assert set(np.diff(steps)[1:].tolist()) == {run.device_timing.every}
    assert len(run.spans) == 200


def test_a_short_first_step_does_not_decide_for_the_next(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        with gpu_step(), program.phase("forward"):
            program.cuda.advance(2_000)
        for _ in range(50):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(50_000_000)
        program.cuda.run_dry()
    assert np.count_nonzero(recording.run.span_device_ns >= 0) >= 50


def test_the_end_of_an_epoch_takes_no_steps_turn(program: Program) -> None:
    """Every tenth step is timed, and every tenth that begins is the one that finds no batch."""
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        with gpu_step(), gpu_phase("forward"):
            program.cuda.advance(300_000)
        for _ in range(20):
            for _ in pig.gpu_steps(range(9)):
                with gpu_phase("forward"):
                    program.cuda.advance(300_000)
        program.cuda.run_dry()
    run = recording.run
    assert run.device_timing is not None
    assert run.device_timing.every == 10
    assert len(np.unique(run.spans["step"][run.span_device_ns >= 0])) >= 181 // 10


@pytest.mark.parametrize(("budget", "step_ns"), [(0.001, 50_000_000), (math.inf, 1_000)])
def test_long_steps_and_no_budget_are_timed_all(
    program: Program, budget: float, step_ns: int
) -> None:
    with program.recording(reading_ns=0, device_timing_budget=budget) as recording:
        for _ in range(20):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(step_ns)
        program.cuda.run_dry()
    assert np.count_nonzero(recording.run.span_device_ns >= 0) == 20


def test_outside_steps_the_budget_is_one_of_time(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        for _ in range(3_000):
            with gpu_phase("hot"):
                program.cuda.advance(2_000)
        program.cuda.run_dry()
    dropped = dropped_of(recording.run)
    assert dropped["device_budget"] == 3_000 - np.count_nonzero(recording.run.span_device_ns >= 0)
    assert 900 <= dropped["device_budget"] < 1_000  # some were saved up


def test_a_thread_that_is_not_timed_uses_up_no_budget(program: Program) -> None:
    context = program.cuda.devices[0].create_context()

    def load() -> None:
        program.cuda.make_current(context)
        for _ in range(5_000):
            with gpu_phase("load"):
                pass

    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        with gpu_phase("train"):
            program.work(1_000)
        program.cuda.run_dry()
    assert dropped_of(recording.run) == {"device_no_context": 5_000}
    assert recording.run.phases["train"].device is not None


def test_at_most_one_answer_not_ready_per_stream_and_harvest(program: Program) -> None:
    cuda = program.cuda
    streams = [cuda.devices[0].create_stream() for _ in range(5)]
    stream_of_event: dict[int, int] = {}
    with program.recording() as recording:
        for i in range(60):
            stream = streams[i % 5]
            with gpu_step(), stream.as_current(), gpu_phase("work"):
                cuda.advance(3_000)
                stream.launch(7_000_000)
            first = cuda.end_of_calls
            recording.flush(0)
            for record in cuda.records():
                stream_of_event[record.event] = record.stream
            here = threading.get_native_id()
            not_ready = [
                stream_of_event[call.arguments[0]]
                for call in cuda.calls("cuEventQuery", since=first)
                if call.result == Result.NOT_READY and call.thread == here
            ]
            assert len(not_ready) == len(set(not_ready))
        cuda.run_dry()
    assert cuda.count("cuEventQuery", Result.NOT_READY) > 30
    assert np.count_nonzero(recording.run.span_device_ns >= 0) == 60


@pytest.mark.parametrize("knows", [True, False])
def test_distances_are_asked_for_at_little_cost(program: Program, knows: bool) -> None:
    """By the call that does not look at the events' state, unless it does not know them yet."""
    cuda = program.cuda
    if not knows:
        cuda.fail("cuEventElapsedTime_v2", Result.NOT_READY, count=None)
    with program.recording() as recording:
        for _ in range(20):
            with gpu_step(), program.phase("work"):
                program.work(3_000_000)
            recording.flush(0)
        cuda.run_dry()
    assert_exact(recording.run, program)
    assert cuda.count("cuEventElapsedTime_v2") >= 40
    assert cuda.count("cuEventElapsedTime") == (
        0 if knows else cuda.count("cuEventElapsedTime_v2", Result.NOT_READY)
    )


def test_what_a_boundary_asks_of_the_driver(program: Program) -> None:
    """On the thread of the program; that the context is still there is seen once a step."""
    cuda = program.cuda
    boundary = ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord"]
    with program.recording(share_boundaries_ns=0):
        with gpu_phase("finds its stream"):
            pass
        here = threading.get_native_id()
        for _ in range(2):
            first = cuda.end_of_calls
            with gpu_step():
                for _ in range(5):
                    with gpu_phase("work"):
                        cuda.advance(5_000)
            calls = [call.function for call in cuda.calls(since=first) if call.thread == here]
            assert calls == ["cuCtxGetCurrent", "cuCtxGetId", *boundary[1:], *9 * boundary]


# --- when it can't be measured ---


def test_a_hung_device_holds_nothing_up(program: Program) -> None:
    with program.recording() as recording:
        with gpu_phase("done"):
            program.work(1_000_000)
        program.cuda.run_dry()
        assert recording.flush(timeout=600)
        with gpu_phase("stuck"):
            program.cuda.advance(5_000)
            program.cuda.default_stream.hang()
        program.cuda.advance(50_000_000)
        assert recording.flush(timeout=0.01) is False
        so_far = recording.snapshot()
    run = recording.run
    assert so_far.pending_device_work == run.pending_device_work == {"stuck": 1}
    assert run.span_device_ns[0] > 0
    assert run.span_device_ns[1] == -1
    assert run.spans["flags"][1] & SpanFlag.DEVICE_UNFINISHED
    assert dropped_of(run) == {"device_unfinished": 1}
    assert "stuck" in run.report(verbose=True)


def test_a_device_that_hangs_from_the_beginning(program: Program) -> None:
    """Nothing is then known of its streams."""
    with program.recording() as recording, gpu_phase("stuck"):
        program.cuda.advance(5_000)
        program.cuda.default_stream.hang()
    run = recording.run
    assert run.pending_device_work == {"stuck": 1}
    assert run.spans["flags"][0] & SpanFlag.DEVICE_UNFINISHED
    assert not run.streams
    assert not run.notes


def test_a_wait_for_a_hung_device_ends_with_ctrl_c(program: Program) -> None:
    with program.recording() as recording:
        with gpu_phase("stuck"):
            program.cuda.advance(5_000)
            program.cuda.default_stream.hang()
        program.cuda.advance(50_000_000)
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
            recording.flush(timeout=600)


def test_a_full_ring_costs_spans_their_device_time_alone(program: Program) -> None:
    cuda = program.cuda
    with program.recording(share_boundaries_ns=0) as recording:
        cuda.default_stream.hang()
        for _ in range(3_000):
            with gpu_step(), gpu_phase("work"):
                cuda.advance(5_000)
        cuda.default_stream.release()
        cuda.run_dry()
        recording.flush(timeout=600)
        with gpu_step(), gpu_phase("after"):
            cuda.advance(5_000)
        cuda.run_dry()
    run = recording.run
    timed = run.span_device_ns >= 0
    assert len(run.spans) == 3_001
    assert np.count_nonzero(~timed) == run.dropped["device_ring_full"]
    assert 900 <= run.dropped["device_ring_full"] <= 1_000
    assert timed[-1]


def test_looking_in_vain_counts_against_the_budget(program: Program) -> None:
    cuda = program.cuda
    with program.recording(
        reading_ns=0, share_boundaries_ns=0, device_timing_budget=0.001
    ) as recording:
        cuda.default_stream.hang()
        for _ in range(2_500):  # more than there are events for
            with gpu_phase("fills the ring"):
                cuda.advance(10_000_000)
        full = recording.snapshot().dropped["device_ring_full"]
        cuda.set_cost("cuCtxGetCurrent", 1_000)
        for _ in range(2_000):
            with gpu_step(), gpu_phase("work"):
                cuda.advance(100_000)
        cuda.default_stream.release()
        cuda.run_dry()
    # One look of a microsecond is the budget of ten such steps.
    assert 150 < recording.run.dropped["device_ring_full"] - full < 250


def test_a_hung_side_stream_costs_the_others_nothing(program: Program) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    with program.recording(share_boundaries_ns=0) as recording:
        with side.as_current(), gpu_phase("stuck"):
            side.hang()
        for i in range(3_000):  # more records than there are events
            with gpu_phase("work"):
                program.work(1_000)
            if i % 100 == 0:
                recording.flush(0)
        assert not recording.flush(0.05)
        so_far = recording.snapshot()
    assert so_far.pending_device_work == {"stuck": 1}
    assert np.count_nonzero(so_far.span_device_ns >= 0) == 3_000
    assert dropped_of(recording.run) == {"device_unfinished": 1}
    assert recording.run.spans["stream"][0] == -1  # not taken for the one that is known


def test_a_capture_that_begins_just_before_the_record_costs_one_span(program: Program) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    with program.recording() as recording:
        with side.as_current():
            phase = gpu_phase("captured")
            phase.begin()
            cuda.advance(5_000)
            with side.capture():
                cuda.fail("cuStreamIsCapturing", Result.SUCCESS)  # asked a moment too early
                phase.end()
            cuda.advance(5_000)
            with gpu_phase("after"):
                cuda.advance(5_000)
        cuda.run_dry()
        recording.flush(timeout=600)
    assert (recording.run.span_device_ns >= 0).tolist() == [False, True]
    assert dropped_of(recording.run) == {"device_capturing": 1}


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_a_capture_is_left_alone(program: Program, mode: CaptureMode) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    with program.recording() as recording:
        with program.phase("before"):
            program.work(3_000_000)
        with side.as_current():
            side.begin_capture(mode)
            with gpu_phase("captured"):
                side.launch(1_000_000)
                for _ in range(50):
                    recording.flush(0)
                    cuda.advance(100_000_000)
            assert side.end_capture().entries == 1
        program.cuda.run_dry()
    run = recording.run
    assert cuda.captures_invalidated == 0
    assert run.span_device_ns[0] > 0
    assert run.span_device_ns[1] == -1
    assert run.dropped["device_capturing"] == 1
    assert cuda.count("cuEventQuery", Result.CAPTURED_EVENT) == 0


def test_a_capture_of_a_blocking_stream_is_left_alone_by_phases_on_the_default_one(
    program: Program,
) -> None:
    """A record on the legacy stream would end it. PyTorch's streams are no blocking ones, but those
    that a program makes by the C API, and captures without PyTorch's knowledge, are."""
    cuda = program.cuda
    blocking = cuda.devices[0].create_stream(non_blocking=False)
    with program.recording() as recording:
        blocking.begin_capture(CaptureMode.RELAXED)
        with gpu_phase("captures"):
            blocking.launch(1_000_000)
        assert blocking.end_capture().entries == 1
        with program.phase("after"):
            program.work(1_000)
        cuda.run_dry()
    assert cuda.captures_invalidated == 0
    assert dropped_of(recording.run) == {"device_capturing": 1}


def test_a_stream_that_is_destroyed_is_not_asked_again(program: Program) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    with program.recording() as recording:
        with side.as_current(), gpu_phase("side"):
            cuda.advance(5_000)
        cuda.run_dry()
        recording.flush(timeout=600)
        side.destroy()
        for _ in range(100):
            with gpu_phase("main"):
                program.work(1_000_000)
            cuda.advance(200_000_000)
            recording.flush(0)
        cuda.run_dry()
    run = recording.run
    assert cuda.count("cuStreamIsCapturing", Result.INVALID_HANDLE) == 0
    assert len(run.device_clocks[0].device_ns) >= 4  # the clocks were still compared
    assert dropped_of(run) == {}


def test_a_stream_that_was_destroyed_after_its_capture_is_not_asked(program: Program) -> None:
    cuda = program.cuda
    side = cuda.devices[0].create_stream()
    with program.recording() as recording:
        with side.as_current(), side.capture(CaptureMode.RELAXED), gpu_phase("captured"):
            cuda.advance(5_000)
        side.destroy()
        for _ in range(20):
            with gpu_phase("main"):
                program.work(1_000_000)
            cuda.advance(200_000_000)
            recording.flush(0)
        cuda.run_dry()
    # The clocks were compared again once what was seen of the capture had expired.
    assert len(recording.run.device_clocks[0].device_ns) >= 3


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_without_a_context_is_timed_on_the_device_of_the_others(program: Program) -> None:
    def train() -> None:
        with gpu_phase("first in its thread"):
            program.cuda.make_current(context)
            program.work(7_000)
            program.cuda.make_current(0)
        assert program.cuda.current_context == 0

    context = program.cuda.current_context
    with program.recording() as recording:
        in_thread(train)
        program.cuda.run_dry()
    assert recording.run.phases["first in its thread"].device is not None
    assert recording.run.span_device_ns[0] >= 7_000
    assert dropped_of(recording.run) == {}


def test_of_several_devices_none_is_guessed() -> None:
    def phase() -> None:
        with gpu_phase("where?"):
            pass

    with attached_cuda(devices=2) as cuda, Program(cuda).recording() as recording:
        for device in cuda.devices:
            cuda.make_current(device.activate())
            with gpu_phase("here"):
                cuda.advance(1_000)
            recording.flush(0)
        in_thread(phase)
        cuda.run_dry()
    assert recording.run.dropped["device_no_context"] == 1


def test_a_thread_without_a_context_follows_its_current_device() -> None:
    source = """
import ctypes, sys, threading
from pyinstrument_gpu import gpu_phase
torch = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
current_device = ctypes.c_int32.in_dll(torch, "inject_current_device")
from tests.helpers.device_program import Program, attached_cuda

def train():
    for device in (0, 1, 0):
        current_device.value = device
        with gpu_phase("forward"):
            cuda.advance(5_000)

with attached_cuda(devices=2) as cuda, Program(cuda).recording() as recording:
    for device in cuda.devices:
        cuda.make_current(device.activate())
        with gpu_phase("main"):
            cuda.advance(5_000)
        recording.flush(0)
    before = cuda.record_count
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    cuda.run_dry()
run = recording.run
forward = run.spans["path"] == run.paths.index("forward")
print([run.streams[i].device for i in run.spans["stream"][forward]])
"""
    done = run_script(source, LIBRARY.with_name("inject_torch.so"), is_fresh=True)
    assert done.stdout == "[0, 1, 0]\n"


def test_a_context_that_is_not_the_primary_one_is_not_touched(program: Program) -> None:
    cuda = program.cuda
    cuda.make_current(cuda.devices[0].create_context())
    with program.recording() as recording, gpu_phase("foreign"):
        cuda.advance(1_000)
    assert dropped_of(recording.run) == {"device_no_context": 1}
    assert cuda.devices[0].retained == 0


def test_contexts_that_are_not_pytorchs_are_looked_at_once(program: Program) -> None:
    """A program may have many, as one for each green context."""
    cuda = program.cuda
    contexts = [cuda.devices[0].create_context() for _ in range(100)]
    with program.recording() as recording:
        looked_at = cuda.count("cuCtxGetDevice")
        for _ in range(3):
            for context in contexts:
                cuda.make_current(context)
                with gpu_phase("foreign"):
                    cuda.advance(1_000)
    assert dropped_of(recording.run) == {"device_no_context": 300}
    assert cuda.count("cuCtxGetDevice") - looked_at == 100


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("in_step", [True, False])
def test_a_device_that_is_reset_is_left_alone(program: Program, reuse: bool, in_step: bool) -> None:
    """Its events are gone, though the next context may have the same handle."""
    cuda = program.cuda
    device = cuda.devices[0]
    context = device.activate()
    cuda.reuse_handles(reuse)
    off = pytest.warns(RuntimeWarning, match="device timing is off for GPU 0: .*host timing")
    with off, program.recording() as recording:
        with gpu_step(), program.phase("before"):
            program.work(1_000)
        cuda.run_dry()
        assert recording.flush(600)
        with gpu_step(), gpu_phase("outstanding"):
            program.work(1_000)
        device.deactivate()
        assert (device.activate() == context) is reuse
        for _ in range(3):
            if not in_step:
                recording.flush(0)
            with gpu_step(), gpu_phase("after"):
                program.work(1_000)
            recording.flush(0)
        device_timing.warn()
    with program.recording() as second, gpu_phase("in the next recording"):
        program.work(1_000)
    for function in ("cuEventRecord", "cuEventQuery", "cuEventElapsedTime_v2"):
        assert cuda.count(function, Result.CONTEXT_IS_DESTROYED) == 0
        assert cuda.count(function, Result.INVALID_HANDLE) == 0
    assert recording.run.phases["before"].device is not None
    assert recording.run.phases["after"].count == 3
    assert dropped_of(recording.run) == {"device_failed": 4}
    assert dropped_of(second.run) == {"device_failed": 1}


def test_a_phase_that_changes_its_stream_has_no_device_time(program: Program) -> None:
    side = program.cuda.devices[0].create_stream()
    with program.recording() as recording:
        phase = gpu_phase("moving")
        phase.begin()
        with side.as_current():
            phase.end()
        program.cuda.run_dry()
    assert dropped_of(recording.run) == {"device_stream_changed": 1}


def test_a_phase_that_another_thread_ends_has_no_device_time(program: Program) -> None:
    with program.recording() as recording:
        scope = gpu_phase.scope("moved")
        scope.__enter__()
        thread = threading.Thread(target=scope.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        program.cuda.run_dry()
    assert recording.run.span_device_ns.tolist() == [-1]
    assert dropped_of(recording.run) == {"device_stream_changed": 1}


def train_with_a_failing_call(function: str, result: Result, position: int | None) -> int:
    """A program that makes all calls, one of which fails; it must not notice. Returns how often it
    made that call."""
    with attached_cuda() as cuda, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if function == "cuEventElapsedTime":  # as before CUDA 12.8
            cuda.fail("cuEventElapsedTime_v2", Result.NOT_READY, count=None)
        if position is not None:
            cuda.fail(function, result, after=position)
        with Program(cuda).recording() as recording:
            for _ in range(12):
                with gpu_step(), gpu_phase("outer"), gpu_phase("inner"):
                    cuda.advance(10_000)
                    cuda.default_stream.launch(1_000_000)
                cuda.advance(130_000_000)
                recording.flush(0)
            cuda.run_dry()
        run = recording.run
        assert run.phases["outer/inner"].count == 12
        assert len(run.spans) == 24
        assert run.complete
        texts = [str(warning.message) for warning in caught]
        assert len(texts) <= 1
        for text in texts:
            assert result is not Result.DEINITIALIZED
            assert f"device timing is off for GPU 0: {function} answered" in text
            assert "(700)" in text
        return cuda.count(function)


@pytest.mark.parametrize("function", TIMING_CALLS)
@pytest.mark.parametrize(
    "result",
    [Result.ILLEGAL_ADDRESS, pytest.param(Result.DEINITIALIZED, marks=pytest.mark.thorough)],
)
def test_any_failing_call_leaves_the_training_alone(function: str, result: Result) -> None:
    calls = train_with_a_failing_call(function, result, None)
    assert calls > 0
    for position in sorted({*range(min(calls, 4)), *range(0, calls, max(1, calls // 4))}):
        train_with_a_failing_call(function, result, position)


@pytest.mark.slow
@pytest.mark.parametrize("function", TIMING_CALLS)
def test_so_does_each_at_every_position(function: str) -> None:
    for position in range(train_with_a_failing_call(function, Result.ILLEGAL_ADDRESS, None)):
        train_with_a_failing_call(function, Result.ILLEGAL_ADDRESS, position)


@pytest.mark.parametrize("function", ["cuEventQuery", "cuEventRecord", "cuEventElapsedTime_v2"])
@pytest.mark.parametrize("result", [Result.NOT_READY, Result.CAPTURE_UNSUPPORTED])
def test_what_is_not_to_be_had_now_is_no_error_of_the_device(
    cuda: SimulatedCuda, function: str, result: Result
) -> None:
    program = Program(cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with program.recording() as recording:
            for _ in range(12):
                with gpu_step(), gpu_phase("work"):
                    program.work(1_000_000)
                cuda.advance(130_000_000)
                if function != "cuEventRecord" or result is not Result.NOT_READY:
                    cuda.fail(function, result, after=1)
                recording.flush(0)
            cuda.stop_failing()
            with gpu_step(), gpu_phase("after"):
                program.work(1_000_000)
            cuda.run_dry()
        device_timing.warn()
    assert recording.run.phases["after"].device is not None
    assert recording.run.dropped["device_failed"] == 0


def test_an_error_switches_off_one_device_and_says_so_once(program: Program) -> None:
    cuda = program.cuda
    with pytest.warns(RuntimeWarning, match="cuEventRecord answered .*700.*host timing goes on"):
        with program.recording() as recording:
            cuda.fail("cuEventRecord", Result.ILLEGAL_ADDRESS)
            for _ in range(10):
                with gpu_phase("work"):
                    cuda.advance(5_000)
            recording.flush(0)
        device_timing.warn()
    assert dropped_of(recording.run) == {"device_failed": 10}
    assert recording.run.phases["work"].count == 10


def test_side_streams_stay_untimed_with_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with attached_cuda() as cuda:
        check_side_streams(Program(cuda))


def check_side_streams(program: Program) -> None:
    side = program.cuda.devices[0].create_stream()

    def train(**options: Any) -> pig.Run:
        with program.recording(**options) as recording:
            with gpu_phase("main"):
                program.work(1_000)
            with side.as_current(), gpu_phase("side"):
                program.cuda.advance(5_000)
            program.cuda.run_dry()
            recording.flush(timeout=600)
        device_timing.warn()
        return recording.run

    with pytest.warns(RuntimeWarning, match="CUDA_DEVICE_MAX_CONNECTIONS=1"):
        run = train()
    assert dropped_of(run) == {"device_side_stream": 1}
    assert (run.span_device_ns >= 0).tolist() == [True, False]
    assert (train(device_timing="force").span_device_ns >= 0).tolist() == [True, True]


def test_one_connection_that_the_program_asks_for_after_the_recording_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a script under `run` does, in its first lines."""
    warns = pytest.warns(RuntimeWarning, match="CUDA_DEVICE_MAX_CONNECTIONS=1")
    with simulated_cuda() as cuda, warns:
        with Program(cuda).recording() as recording:
            monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
            native.attach_device(exchange_api_capsule())
            # CUDA has read it: what it is later has no effect.
            monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
            side = cuda.devices[0].create_stream()
            with side.as_current(), gpu_phase("side"):
                cuda.advance(5_000)
            cuda.run_dry()
            recording.flush(timeout=600)
        device_timing.warn()
        assert dropped_of(recording.run) == {"device_side_stream": 1}


@pytest.mark.parametrize(("connections", "streams"), [("1", 1), ("", 8), ("4", 4)])
def test_streams_that_share_queues_get_next_to_no_records_of_the_clock(
    monkeypatch: pytest.MonkeyPatch, connections: str, streams: int
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    with attached_cuda() as cuda:
        check_records_of_the_clock(Program(cuda), connections, streams)


def test_a_client_of_mps_has_no_known_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    with attached_cuda() as cuda:
        cuda.devices[0].set_attribute(133, 1)  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        check_records_of_the_clock(Program(cuda), "1", 1)


def check_records_of_the_clock(program: Program, connections: str, streams: int) -> None:
    cuda = program.cuda
    cuda.devices[0].set_hardware_queues(int(connections or "8"))
    sides = [cuda.devices[0].create_stream() for _ in range(streams)]
    with program.recording(device_timing="force") as recording:
        cuda.advance(1_000_000)
        recording.flush(0)
        prepared = cuda.record_count
        for side in sides[1:]:
            with side.as_current(), gpu_phase("side"):
                cuda.advance(5_000)
        program.streams |= {side.handle for side in sides}
        for _ in range(60):  # a correlation goes on for some turns
            cuda.advance(1_000_000)
            recording.flush(0)
        before = cuda.record_count
        for _ in range(600):
            with gpu_phase("main"):
                program.work(1_000_000)
            cuda.advance(100_000_000)
            recording.flush(0)
        own = [
            record
            for record in map(cuda.record, range(before, cuda.record_count))
            if record.stream not in program.streams
        ]
        assert len(own) <= 6  # one in ten seconds, of a minute
    run = recording.run
    clock = run.device_clocks[0]
    assert len(clock.device_ns) == 2  # at the begin and at the end
    assert (run.span_device_ns >= 0).all()
    if connections == "1":
        assert prepared < 100


def test_a_correlation_that_sharing_interrupts_is_made_again_at_the_end(program: Program) -> None:
    cuda = program.cuda

    def records_of_the_clock() -> int:
        return sum(record.stream not in program.streams for record in cuda.records())

    sides = [cuda.devices[0].create_stream() for _ in range(8)]
    with program.recording() as recording:
        for _ in range(60):
            cuda.advance(1_000_000)
            recording.flush(0)
        before = records_of_the_clock()
        cuda.advance(500_000_000)
        while records_of_the_clock() < before + 3:  # the second correlation has begun
            recording.flush(0)
        program.streams |= {side.handle for side in sides}
        for side in sides:
            with side.as_current(), gpu_phase("side"):
                cuda.advance(5_000)
        for _ in range(36):
            cuda.advance(100_000_000_000)
            recording.flush(0)
    run = recording.run
    assert run.device_clocks[0].run_ns[-1] > run.duration_ns - 1_000_000_000


# --- when it begins ---


def test_off_means_no_call_after_a_recording_that_was_timed_too(program: Program) -> None:
    cuda = program.cuda
    with program.recording() as recording:
        with gpu_phase("timed"):
            program.work(1_000)
        cuda.run_dry()
        recording.flush(timeout=600)
    before = cuda.end_of_calls
    with pig.record(device_timing=False) as second:
        with gpu_phase("host only"):
            pass
        for _ in range(20):
            cuda.advance(1_000_000_000)
            second.flush(0)
    assert cuda.calls(since=before) == []
    assert second.run.device_clocks == ()


def test_off_means_no_call_at_all(program: Program) -> None:
    with program.recording(device_timing=False) as recording:
        with gpu_phase("work"):
            program.cuda.advance(1_000)
        recording.flush(0)
    assert recording.run.device_timing is None
    assert program.cuda.count("cuCtxGetCurrent") == 0
    assert program.cuda.count("cuEventRecord") == 0


class FakeCuda:
    def __init__(self) -> None:
        self.initialized = False

    def is_initialized(self) -> bool:
        return self.initialized


def fake_torch(cuda_version: str | None) -> Any:
    tensor = type("Tensor", (), {"__dlpack_c_exchange_api__": exchange_api_capsule()})
    return types.SimpleNamespace(
        __version__="2.13.0",
        version=types.SimpleNamespace(cuda=cuda_version),
        cuda=FakeCuda(),
        Tensor=tensor,
    )


def test_device_times_begin_when_pytorch_initialises_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = fake_torch("13.0")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda:
        with pig.record() as recording:
            with gpu_phase("before"):
                cuda.advance(1_000)
            device_timing.attach_if_initialized()
            assert cuda.count("cuCtxGetCurrent") == 0
            torch.cuda.initialized = True
            device_timing.attach_if_initialized()
            with gpu_phase("after"):
                cuda.advance(1_000)
            cuda.run_dry()
        assert (recording.run.span_device_ns >= 0).tolist() == [False, True]


def test_a_cpu_build_of_pytorch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(None)
    torch.cuda.initialized = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda:
        with pig.record():
            with gpu_phase("work"):
                cuda.advance(1_000)
            device_timing.attach_if_initialized()
        assert cuda.count("cuCtxGetCurrent") == 0


def test_rocm_is_not_asked_for_a_cuda_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(None)
    torch.version.hip = "7.0"
    torch.cuda.initialized = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pig.record() as recording:
            device_timing.attach_if_initialized()
            with gpu_phase("work"):
                cuda.advance(1_000)
        device_timing.warn()
        assert cuda.end_of_calls == 0
    assert dropped_of(recording.run) == {}


def test_a_second_recording_starts_anew(program: Program) -> None:
    for _ in range(3):
        program.expected.clear()
        with program.recording() as recording:
            with program.phase("work"):
                program.work(1_000_000)
            program.cuda.run_dry()
        assert_exact(recording.run, program)
    assert program.cuda.count("cuStreamCreate") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_timing": "on"}, "device_timing must be"),
        ({"device_timing_budget": 0}, "device_timing_budget must be more than 0, got 0"),
        ({"device_timing_budget": math.nan}, "device_timing_budget must be more than 0, got nan"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pig.record(**options)


def test_a_bad_timeout() -> None:
    with pig.record() as recording, pytest.raises(ValueError, match="timeout must be"):
        recording.flush(-1)
