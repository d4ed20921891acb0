# SPDX-License-Identifier: Apache-2.0
"""Device times on the simulated driver where they can't be measured: devices that hang, captures,
foreign contexts, and errors."""

import signal
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import (
    Program,
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
from tests.helpers.threads import on_thread

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


def test_streams_that_come_and_go_are_all_timed(program: Program) -> None:
    """torch makes one for each body of a conditional node; the table has room for 256."""
    cuda = program.cuda
    with program.recording() as recording, gpu_phase("around"):
        cuda.default_stream.launch(1_000)
        for i in range(600):
            stream = cuda.devices[0].create_stream()
            with gpu_step(), stream.as_current(), gpu_phase("work"):
                stream.launch(32 * (400 + i))
                cuda.advance(5_000)
            cuda.run_dry()
            recording.flush(600)
            stream.destroy()
            if i % 100 == 0:
                with gpu_phase("main"):
                    program.work(1_000)
    run = recording.run
    work = run.spans["path"] == run.paths.index("around/work")
    assert len({run.streams[i].handle for i in run.spans["stream"][work]}) == 600
    assert run.span_device_ns[work].tolist() == [32 * (400 + i) for i in range(600)]
    assert len(run.streams) == 601
    assert dropped_of(run) == {}


def test_streams_that_are_all_at_work_are_too_many_for_the_table(program: Program) -> None:
    with program.recording() as recording:
        for _ in range(300):
            stream = program.cuda.devices[0].create_stream()
            with stream.as_current(), gpu_phase("work"):
                stream.launch(1_000_000)
        program.cuda.run_dry()
    assert dropped_of(recording.run) == {"device_ring_full": 300 - 256}


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


def test_a_thread_without_a_context_is_timed_on_the_device_of_the_others(program: Program) -> None:
    def train() -> None:
        with gpu_phase("first in its thread"):
            program.cuda.make_current(context)
            program.work(7_000)
            program.cuda.make_current(0)
        assert program.cuda.current_context == 0

    context = program.cuda.current_context
    with program.recording() as recording:
        on_thread(train)
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
        on_thread(phase)
        cuda.run_dry()
    assert recording.run.dropped["device_no_context"] == 1


def test_a_thread_without_a_context_follows_its_current_device() -> None:
    source = """
import ctypes, sys
from pyinstrument_gpu import gpu_phase
torch = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
current_device = ctypes.c_int32.in_dll(torch, "inject_current_device")
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.threads import on_thread

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
    on_thread(train)
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


def test_a_stream_of_another_context_costs_its_own_phases_alone(program: Program) -> None:
    """As of a library that brings its own: torch.cuda.ExternalStream makes it the current one."""
    device = program.cuda.devices[0]
    foreign = device.create_stream(context=device.create_context())
    with program.recording() as recording:
        for _ in range(3):
            with foreign.as_current(), gpu_phase("foreign"):
                program.cuda.advance(1_000)
            with program.phase("own"):
                program.work(1_000)
        program.cuda.run_dry()
    own = recording.run.phases["own"].device
    assert own is not None
    assert own.count == 3
    assert dropped_of(recording.run) == {"device_no_context": 3}
    assert program.cuda.count("cuEventRecord", Result.INVALID_HANDLE) == 1


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
        on_thread(scope.__exit__, None, None, None)
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
