# SPDX-License-Identifier: Apache-2.0
"""A driver that does not return: a stream is full because it hangs, and what needs the driver's
lock blocks behind the call that wants to enqueue more. The program must stay able to end the hang.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.simulated_cuda import LIBRARY, SimulatedCuda
from tests.helpers.spans import dropped_of

QUEUE_DEPTH = 1024


@pytest.fixture
def program() -> Iterator[Program]:
    with attached_cuda() as cuda:
        cuda.devices[0].set_queue_depth(QUEUE_DEPTH)
        yield Program(cuda)
        assert cuda.blocking_calls == 0
        assert cuda.violations == []


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
        cuda.wait_until_blocked()

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


def test_other_threads_go_on_while_one_is_stuck_behind_a_stalled_stream(program: Program) -> None:
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(program.cuda, phases(1_500))
        # This is the second thread, and here it is at work.
        side = program.cuda.devices[0].create_stream()
        with side.as_current(), gpu_phase("beside"):
            program.cuda.advance(5_000)
        training.release()
        assert recording.flush(10)
    run = recording.run
    assert run.phases["work"].count == 1_500
    assert run.phases["beside"].count == 1
    assert np.count_nonzero(run.span_device_ns >= 0) == 1_501
    assert dropped_of(run) == {}


def test_one_that_is_stuck_costs_the_others_no_device_times(program: Program) -> None:
    side = program.cuda.devices[0].create_stream()
    with program.recording(share_boundaries_ns=0) as recording:
        training = Training(program.cuda, phases(1_500))
        with side.as_current():
            for _ in range(100):
                with gpu_phase("beside"):
                    program.cuda.advance(5_000)
        for _ in range(3):  # the clock's first anchor comes first
            program.cuda.advance(100_000)
            recording.flush(0)
        so_far = recording.snapshot()
        training.release()
    assert timed(so_far, "beside") == 100
    assert so_far.pending_device_work["work"] >= QUEUE_DEPTH // 2 - 1


@pytest.mark.parametrize("lock", [False, True], ids=["", "one lock in the driver"])
def test_flush_and_stop_come_back_while_a_thread_is_stuck(program: Program, lock: bool) -> None:
    cuda = program.cuda
    with program.recording(share_boundaries_ns=0) as recording:
        with gpu_phase("before"):
            program.work(1_000)
        cuda.run_dry()
        assert recording.flush(10)
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


def test_the_next_recording_begins_while_the_driver_holds_the_last_ones_harvester(
    program: Program,
) -> None:
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
        assert third.flush(10)
    assert timed(third.run, "again") == 1
    assert dropped_of(third.run) == {}


def test_a_recording_that_is_stopped_around_a_stuck_phase_leaves_the_next_one_whole(
    program: Program,
) -> None:
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
            second.flush(10)
    names = set(second.run.phases)
    assert names == {"beside", "after", "work"}
    # What was stuck belongs to neither; what came after it to the second.
    assert first.run.phases["work"].count + second.run.phases["work"].count == 1_499
    assert dropped_of(second.run) == {}


def test_what_comes_back_late_is_counted_in_no_other_recording(program: Program) -> None:
    with program.recording(share_boundaries_ns=0) as first:
        training = Training(program.cuda, phases(1_500))
        first.stop()
    with pig.record(device_timing=False) as second:
        training.release()
    assert dropped_of(second.run) == {}
    assert "per event" not in second.run.report()


def test_a_record_that_the_driver_makes_late_keeps_its_time(program: Program) -> None:
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
        assert recording.flush(10)
    assert dropped_of(recording.run) == {}
