# SPDX-License-Identifier: Apache-2.0
"""A GPU that hangs or fails, by the simulated driver.

A driver does not return if a stream is full because it hangs, and what needs the driver's lock
blocks behind the call that wants to enqueue more. The program must stay able to end the hang.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing
from tests.faults.fault import Check, FaultGroup, Trial
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.simulated_cuda import LIBRARY, Result, SimulatedCuda
from tests.helpers.spans import dropped_of

FAULTS = FaultGroup("hung GPU")

# Only a recorder that hangs takes as long.
HANGS_AFTER_S = 600

QUEUE_DEPTH = 1024
STEPS_BEFORE, STEPS_AFTER = 40, 60


def on_simulated_gpu(check: Callable[[Program], None]) -> Check:
    """A check that gets a program on a GPU whose streams hold QUEUE_DEPTH entries. Whatever it
    does, the recorder makes no call that waits for the device, and breaks no rule of the driver."""

    @functools.wraps(check)
    def run(trial: Trial) -> None:
        with attached_cuda() as cuda:
            cuda.devices[0].set_queue_depth(QUEUE_DEPTH)
            check(Program(cuda))
            assert cuda.blocking_calls == 0
            assert cuda.violations == []

    return run


class Training:
    """A training thread that is stuck in the driver, behind a stream that hangs."""

    def __init__(self, cuda: SimulatedCuda, train: Callable[[], None]) -> None:
        context = cuda.current_context

        def run() -> None:
            cuda.make_current(context)
            train()

        self._cuda = cuda
        cuda.default_stream.hang()
        self._thread = threading.Thread(target=run)
        self._thread.start()
        cuda.wait_until_blocked(or_more=True)

    def release(self) -> None:
        """The hang ends, and so does the training."""
        self._cuda.default_stream.release()
        self.finish()

    def finish(self) -> None:
        """The training comes to its end."""
        while self._thread.is_alive():
            self._cuda.run_dry()
            self._thread.join(0.001)
        self._cuda.run_dry()


def timed(run: pig.Run, phase: str) -> int:
    """How many of its spans have device times."""
    device = run.phases[phase].device
    return 0 if device is None else device.count


def phases(count: int, name: str = "work") -> Callable[[], None]:
    def train() -> None:
        for _ in range(count):
            with gpu_phase(name):
                pass

    return train


@FAULTS.fault(
    done="A stream hangs until it is full, and the training thread is stuck in the driver.",
    holds="Other threads go on, and can end the hang. Once it has ended, every span has its device "
    "times.",
)
@on_simulated_gpu
def other_threads(program: Program) -> None:
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(program.cuda, phases(1_500))
        # This is the second thread, and here it is at work.
        side = program.cuda.devices[0].create_stream()
        with side.as_current(), gpu_phase("beside"):
            program.cuda.advance(5_000)
        training.release()
        assert recording.flush(HANGS_AFTER_S)
    run = recording.run
    assert run.phases["work"].count == 1_500
    assert run.phases["beside"].count == 1
    assert np.count_nonzero(run.span_device_ns >= 0) == 1_501
    assert dropped_of(run) == {}


@FAULTS.fault(
    done="A stream hangs while another thread works on a stream of its own.",
    holds="The other thread's spans get their device times meanwhile.",
)
@on_simulated_gpu
def other_streams(program: Program) -> None:
    side = program.cuda.devices[0].create_stream()
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(program.cuda, phases(1_500))
        with side.as_current():
            for _ in range(100):
                with gpu_phase("beside"):
                    program.cuda.advance(5_000)
        deadline = time.monotonic() + HANGS_AFTER_S
        while timed(so_far := recording.snapshot(), "beside") < 100:
            assert time.monotonic() < deadline, "device times are missing"
            program.cuda.advance(100_000)
        training.release()
    assert so_far.pending_device_work["work"] >= QUEUE_DEPTH // 2 - 1


@FAULTS.fault(
    done="One of two GPUs hangs, and the driver lets no other call about it return.",
    holds="Spans on the other one get their device times meanwhile. `stop` says that the rest is "
    "missing, and a recording during the hang that it has no device times.",
)
def other_gpu(_trial: Trial) -> None:
    with attached_cuda(2) as cuda:
        program = Program(cuda)
        here, there = [device.activate() for device in cuda.devices]
        with program.recording(share_boundaries_ns=0) as recording:
            for context in (there, here):
                cuda.make_current(context)
                with gpu_phase("before"):
                    cuda.advance(5_000)
                cuda.run_dry()
                assert recording.flush(HANGS_AFTER_S)
            cuda.devices[0].set_queue_depth(QUEUE_DEPTH)
            cuda.set_driver_lock(of_device=True)
            training = Training(cuda, phases(1_500))
            cuda.make_current(there)
            for _ in range(100):
                with gpu_phase("beside"):
                    cuda.advance(5_000)
            deadline = time.monotonic() + HANGS_AFTER_S
            while timed(recording.snapshot(), "beside") < 100:
                assert time.monotonic() < deadline, "device times are missing"
                cuda.advance(100_000)
            with pytest.warns(RuntimeWarning, match="did not answer for a second"):
                run = recording.stop()
                device_timing.warn()
        with pytest.warns(RuntimeWarning, match="has not answered a call of the last one"):
            with program.recording() as second, gpu_phase("host only"):
                pass
            device_timing.warn()
        cuda.make_current(here)
        training.release()
        assert timed(run, "beside") == 100
        assert run.dropped["device_unfinished"] == run.phases["work"].count
        assert second.run.phases["host only"].device is None
        assert cuda.blocking_calls == 0
        assert cuda.violations == []


@FAULTS.fault(
    done="`flush` and `stop` are called while a thread is stuck in the driver.",
    holds="Both come back. The run has the device times that were known, and counts the rest.",
)
@on_simulated_gpu
def flush_and_stop(program: Program) -> None:
    check_flush_and_stop(program, lock=False)


@FAULTS.fault(
    done="The same with a driver that lets no other call return meanwhile.",
    holds="Both come back, after a second at most and with a warning.",
)
@on_simulated_gpu
def flush_and_stop_behind_a_lock(program: Program) -> None:
    check_flush_and_stop(program, lock=True)


def check_flush_and_stop(program: Program, lock: bool) -> None:
    cuda = program.cuda
    with program.recording(share_boundaries_ns=0) as recording:
        with gpu_phase("before"):
            program.work(1_000)
        cuda.run_dry()
        assert recording.flush(HANGS_AFTER_S)
        cuda.set_driver_lock(lock)
        training = Training(cuda, phases(1_500))
        assert not recording.flush(0.05)
        assert recording.snapshot().phases["before"].count == 1
        if lock:
            with pytest.warns(RuntimeWarning, match="did not answer for a second"):
                run = recording.stop()
                device_timing.warn()
        else:
            run = recording.stop()
        training.release()
    assert timed(run, "before") == 1
    assert QUEUE_DEPTH // 2 - 2 <= run.phases["work"].count < 1_500
    assert run.dropped["device_unfinished"] == run.phases["work"].count


@FAULTS.fault(
    done="A recording ends while the driver lets no call return, and the next one begins.",
    holds="The next one has host times, and a warning says why it has no device times. The one "
    "after the hang has both.",
)
@on_simulated_gpu
def next_recording(program: Program) -> None:
    cuda = program.cuda
    cuda.set_driver_lock()
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(cuda, phases(1_500))
        cuda.wait_until_blocked(2)  # the harvester too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recording.stop()
            device_timing.warn()
    with pytest.warns(RuntimeWarning, match="has not answered a call of the last one"):
        with pig.record() as second, gpu_phase("host only"):
            pass
        device_timing.warn()
    training.release()
    cuda.wait_until_blocked(0)
    assert second.run.phases["host only"].count == 1
    assert second.run.phases["host only"].device is None
    with program.recording() as third:
        with gpu_phase("again"):
            program.work(1_000)
        cuda.run_dry()
        assert third.flush(HANGS_AFTER_S)
    assert timed(third.run, "again") == 1
    assert dropped_of(third.run) == {}


@FAULTS.fault(
    done="A recording stops while a phase is stuck in the driver, and the hang ends in the next "
    "recording.",
    holds="What was stuck belongs to neither; the next one has all its own spans and device times.",
)
@on_simulated_gpu
def stopped_around_a_stuck_phase(program: Program) -> None:
    cuda = program.cuda
    with program.recording(share_boundaries_ns=0) as first:
        training = Training(cuda, phases(1_500))
        assert first.stop().phases["work"].count < 1_500
        side = cuda.devices[0].create_stream()
        with program.recording() as second:
            with side.as_current(), gpu_step(), gpu_phase("beside"):
                cuda.advance(5_000)
            training.release()
            with gpu_phase("after"):
                cuda.advance(5_000)
            cuda.run_dry()
            second.flush(HANGS_AFTER_S)
    names = set(second.run.phases)
    assert names == {"beside", "after", "work"}
    # What was stuck belongs to neither; what came after it to the second.
    assert first.run.phases["work"].count + second.run.phases["work"].count == 1_499
    assert dropped_of(second.run) == {}


@FAULTS.fault(
    done="The hang ends in a later recording without device timing.",
    holds="That one counts nothing of it.",
)
@on_simulated_gpu
def late_in_the_next(program: Program) -> None:
    with program.recording(share_boundaries_ns=0) as first:
        training = Training(program.cuda, phases(1_500))
        first.stop()
    with pig.record(device_timing=False) as second:
        training.release()
    assert dropped_of(second.run) == {}
    assert "per event" not in second.run.report(verbose=True)


@FAULTS.fault(
    done="The driver makes the record of an event late, when its time is long known.",
    holds="The span keeps its device times.",
)
@on_simulated_gpu
def late_record(program: Program) -> None:
    """Its time is known long before the thread can note which event it was."""
    cuda = program.cuda
    library = ctypes.PyDLL(str(LIBRARY))  # its calls keep the GIL
    library.sim_release.argtypes = [ctypes.c_uint64]
    side = cuda.devices[0].create_stream()
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(cuda, phases(600))
        with side.as_current():
            for i in range(3_900):  # more than two rings of events
                with gpu_phase("beside"):
                    cuda.advance(5_000)
                if i % 100 == 0:
                    recording.flush(0)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(100)
        try:
            library.sim_release(cuda.default_stream.handle)
            queries = ctypes.c_uint64()
            seen = cuda.count("cuCtxSetCurrent")
            while queries.value < seen + 20:  # two in a turn of the harvester
                library.sim_run_dry()
                library.sim_count(b"cuCtxSetCurrent", 0, 1, ctypes.byref(queries))
        finally:
            sys.setswitchinterval(interval_s)
        training.finish()
        assert recording.flush(HANGS_AFTER_S)
    assert dropped_of(recording.run) == {}


@FAULTS.fault(
    done="A kernel of the program fails, so that every call of the driver answers the same error: "
    "one of two errors, with and without work that has not ended.",
    holds="Device timing ends with one warning that names the error. Host times go on, each span "
    "without device times is counted, and the driver is hardly asked again.",
    times=4,
)
def failed_kernel(trial: Trial) -> None:
    result = (Result.ILLEGAL_ADDRESS, Result.LAUNCH_FAILED)[trial.number // 2]
    pending = bool(trial.number % 2)
    on_simulated_gpu(lambda program: check_failed_kernel(program, result, pending))(trial)


def check_failed_kernel(program: Program, result: Result, pending: bool) -> None:
    cuda = program.cuda
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with program.recording() as recording:
            for _ in range(STEPS_BEFORE):
                with gpu_step(), gpu_phase("work"):
                    program.work(1_000_000, host_ns=500_000)
                recording.flush(0)
            if not pending:
                cuda.run_dry()
                recording.flush(HANGS_AFTER_S)
            cuda.poison(cuda.current_context, result)
            since = cuda.end_of_calls
            for _ in range(STEPS_AFTER):
                with gpu_step(), gpu_phase("work"):
                    cuda.advance(10_000)
                recording.flush(0)
        device_timing.warn()

    (warning,) = caught
    text = str(warning.message)
    assert f"answered CUDA_ERROR_{result.name} ({int(result)})" in text
    assert "device timing is off for GPU 0" in text
    assert "host timing goes on" in text

    run = recording.run
    assert run.phases["work"].count == STEPS_BEFORE + STEPS_AFTER
    timed = int((run.span_device_ns >= 0).sum())
    assert timed == STEPS_BEFORE if not pending else 0 < timed < STEPS_BEFORE
    assert dropped_of(run) == {"device_failed": STEPS_BEFORE + STEPS_AFTER - timed}
    left_out = f"{STEPS_BEFORE + STEPS_AFTER - timed} spans without device time: switched off after"
    assert left_out in " ".join(run.report(verbose=True, width=200).split())

    # The first that fails is the last: then a phase asks for no more than its thread's context.
    calls = cuda.calls(since=since)
    assert [call.result for call in calls if call.result != Result.SUCCESS] == [result]
    assert len([call for call in calls if call.function != "cuCtxGetCurrent"]) <= 10
    assert len(calls) <= 2 * STEPS_AFTER + 10
