# SPDX-License-Identifier: Apache-2.0
"""Where the driver's rules are easily broken: streams that stall, threads without a context,
captures, streams that are not ordered.

What is broken here may hang a process. A stream on hold goes on by itself after four seconds, so
each of these tests ends.
"""

import ctypes
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.metrics.kernels import wait
from pyinstrument_gpu.recording import device_timing
from tests.gpu.conftest import Timed
from tests.helpers.cuda_kernels import CudaKernels
from tests.helpers.spans import dropped_of

FLUSH_S = 5.0
HELD_S = 3.0
"""Whoever takes longer has waited for the hold to give up."""
PHASES = 1_500
LOGITS, TARGET = torch.eye(4), torch.arange(4)


def updated() -> pig.MetricAccumulator:
    """One whose next update the kernel makes."""
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(LOGITS.cuda(), TARGET.cuda())
    assert wait(timeout_s=300)
    return metrics


# --- a stream that is full ---


@pytest.mark.parametrize("inside", ["nothing", "a kernel"])
def test_another_thread_goes_on_while_phases_fill_a_stalled_stream(
    kernels: CudaKernels, timed: Timed, inside: str
) -> None:
    """The call that finds the stream full waits, and must not hold the interpreter's lock: the
    other thread ends the stall."""
    entered = 0
    turns = 0

    def watch() -> float:
        nonlocal turns
        before = -1
        # As long as phases are entered, the stream is not full.
        while before not in (entered, PHASES):
            before = entered
            for _ in range(100):
                turns += 1
                time.sleep(0.001)
        hold.release()
        return time.monotonic()

    with mock.patch.object(device_timing, "SHARE_BOUNDARIES_NS", 0), timed() as recording:
        with kernels.held() as hold, ThreadPoolExecutor(1) as pool:
            begin = time.monotonic()
            watching = pool.submit(watch)
            for _ in range(PHASES):
                with gpu_phase("stalled"):
                    entered += 1
                    if inside == "a kernel":
                        kernels.nothing()
            released = watching.result()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    assert released - begin < HELD_S
    assert turns >= 100
    run = recording.run
    assert len(run.spans) == PHASES
    # Phases beyond the ring of events have no device time, and are counted.
    known = int((run.span_device_ns >= 0).sum())
    assert known + sum(dropped_of(run).values()) == PHASES
    assert known > 0


def test_flush_and_stop_while_another_thread_is_stuck_in_a_launch(
    kernels: CudaKernels, timed: Timed
) -> None:
    launched = 0

    def launch() -> None:
        nonlocal launched
        torch.cuda.set_device(0)
        with torch.cuda.stream(stream):
            for _ in range(PHASES):
                with gpu_phase("stuck"):
                    kernels.nothing()
                launched += 1

    stream = torch.cuda.Stream()
    with ThreadPoolExecutor(1) as pool:
        with torch.cuda.stream(stream):
            hold = kernels.hold()
        begin = time.monotonic()
        recording = timed()
        with recording as started:
            stuck = pool.submit(launch)
            before = -1
            while before not in (launched, PHASES):
                before = launched
                time.sleep(0.1)
            assert not started.flush(0.1)
            assert started.snapshot().phases_recorded >= before
        stopped = time.monotonic()
        hold.release()
        stuck.result()
    torch.cuda.synchronize()
    assert stopped - begin < HELD_S
    assert started.run.complete


# --- a thread without a context ---


def test_phases_of_a_thread_without_a_context_are_timed(kernels: CudaKernels, timed: Timed) -> None:
    contexts = []

    def phases() -> None:
        context = ctypes.c_void_p()
        kernels.driver.call("cuCtxGetCurrent", ctypes.byref(context))
        contexts.append(context.value)
        for _ in range(10):
            with gpu_phase("fresh"):
                pass

    with timed() as recording:
        with gpu_phase("main"):
            kernels.spin(100_000)
        thread = threading.Thread(target=phases)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    assert contexts == [None]
    run = recording.run
    assert dropped_of(run) == {}
    assert len(run.spans) == 11
    assert (run.span_device_ns >= 0).all()


# --- captures ---


def test_a_first_update_inside_a_capture_is_lost_and_warned_of() -> None:
    logits, target = LOGITS.cuda(), TARGET.cuda()
    metrics = pig.MetricAccumulator(topk=1)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            metrics.update(logits, target)
            metrics.update(logits, target)
    assert len([w for w in caught if issubclass(w.category, RuntimeWarning)]) == 1
    for _ in range(3):
        metrics.update(logits, target)
        graph.replay()  # it neither counts nor resets what was counted
    values = metrics.compute()
    assert (values["count"], values["lost_updates"]) == (12, 2)


# --- streams that are not ordered ---


def test_updates_after_unordered_ones_are_counted() -> None:
    """What unordered updates count is not told; each one after them counts once."""
    metrics = updated()
    logits = torch.randn(4096, 1000).cuda()
    target = torch.zeros(4096, dtype=torch.int64).cuda()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                metrics.update(logits, target)
    torch.cuda.synchronize()
    before = metrics.compute()["count"]
    for number in range(1, 11):
        metrics.update(LOGITS.cuda(), TARGET.cuda())
        torch.cuda.synchronize()
        assert metrics.compute()["count"] == before + 4 * number
        reading = metrics.latest()
        assert reading is not None
        assert reading.values["count"] == before + 4 * number


def test_the_memory_of_an_accumulator_outlives_updates_on_other_streams(
    kernels: CudaKernels,
) -> None:
    logits, target = LOGITS.cuda(), TARGET.cuda()
    metrics = updated()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side), kernels.held():
        metrics.update(logits, target)
        del metrics
        with torch.cuda.stream(main):
            # Tensors of many sizes, so that one of them gets what has become free.
            others = [
                torch.zeros(size, dtype=torch.uint8, device="cuda")
                for size in (512, 4096, 65536)
                for _ in range(64)
            ]
            main.synchronize()
    torch.cuda.synchronize()
    assert not any(other.any().item() for other in others)
