# SPDX-License-Identifier: Apache-2.0
"""Updates that are stuck in the driver, as when a collective hangs and the stream is full: nobody
else has to wait for them, or nobody could end the hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import pyinstrument_gpu as pig
from tests.helpers.script import run_script

torch = pytest.importorskip("torch")

from tests.helpers.driver_calls import OnThread  # noqa: E402
from tests.helpers.metric_gpu import metric_gpu  # noqa: E402
from tests.helpers.simulated_cuda import SimulatedCuda, SimulatedStream  # noqa: E402

LOGITS, TARGET = torch.eye(4), torch.arange(4)


@pytest.fixture
def gpu() -> Iterator[SimulatedCuda]:
    with metric_gpu() as cuda:
        yield cuda
        assert cuda.violations == []  # one of them: a call was stuck until a time limit


@pytest.fixture
def stream(gpu: SimulatedCuda) -> SimulatedStream:
    """It is full after five entries, and does not go on. The second and third stand behind what an
    accumulator makes at its first update."""
    gpu.devices[0].set_queue_depth(5)
    stream = gpu.devices[0].create_stream()
    stream.hang()
    return stream


def on_thread(gpu: SimulatedCuda, stream: SimulatedStream, work: Callable[[], None]) -> OnThread:
    def on_stream() -> int:
        with stream.as_current():
            work()
        return 0

    return OnThread(gpu, on_stream)


@pytest.mark.parametrize("one_lock", [False, True])
def test_nobody_else_waits(gpu: SimulatedCuda, stream: SimulatedStream, one_lock: bool) -> None:
    gpu.set_driver_lock(one_lock)
    metrics = pig.MetricAccumulator(topk=1, cross_entropy=False)
    elsewhere = pig.MetricAccumulator(topk=1)

    def updates() -> None:
        for number in range(1, 11):
            metrics.update(LOGITS, TARGET, torch.tensor(float(number)))
            metrics.update_scalar("tokens", 2)

    with pig.record(device_timing=False) as recording:
        stuck = on_thread(gpu, stream, updates)
        gpu.wait_until_blocked()
        # By the second one: the first one and its number are in the queue.
        reading = metrics.latest()
        assert reading is not None and reading.update == 1
        metrics.record_reading()
        # Only other ways of updating the same accumulator do, and without the interpreter.
        strange = torch.Tensor._make_subclass(type("Strange", (torch.Tensor,), {}), LOGITS)
        other_way = on_thread(gpu, gpu.default_stream, lambda: metrics.update(strange, TARGET))
        if one_lock:
            late = on_thread(gpu, stream, lambda: elsewhere.update(LOGITS, TARGET))
            gpu.wait_until_blocked(3)  # the other way at its first call of the driver
            assert elsewhere.latest() is None
        else:
            elsewhere.update(LOGITS, TARGET)
            assert elsewhere.compute()["count"] == 4
            # Nor has another thread's update of the same one, on a stream that has room.
            with gpu.devices[0].create_stream().as_current():
                metrics.update(LOGITS, TARGET, torch.tensor(5.0))
            reading = metrics.latest()
            assert reading is not None and (reading.update, reading.step) == (2, None)
        assert (metrics.reference_updates, stuck.returned, other_way.returned) == (0, False, False)

    run = recording.run
    rows = run.metrics[run.metrics["name"] == run.metric_names.index("count")]
    assert 4 in rows["value"]
    stream.release()
    gpu.run_dry()
    assert (stuck.answer(), other_way.answer()) == (0, 0)
    if one_lock:
        assert late.answer() == 0
    assert elsewhere.compute()["count"] == 4
    values = metrics.compute()
    count = 44 if one_lock else 48
    assert (values["count"], values["tokens_sum"], values["lost_updates"]) == (count, 20, 0)
    assert (values["loss_min"], values["loss_max"]) == (1, 10)
    # One of the others may have come while the other way was under way.
    assert metrics.reference_updates >= 1


def test_of_updates_that_are_launched_at_once_the_steps_are_not_known(
    gpu: SimulatedCuda, stream: SimulatedStream
) -> None:
    """The host does not know in which order the driver has taken them."""
    metrics = pig.MetricAccumulator(topk=1)

    def update() -> None:
        metrics.update(LOGITS, TARGET)

    def newest() -> tuple[int, int | None]:
        reading = metrics.latest()
        assert reading is not None
        return reading.update, reading.step

    with pig.record(device_timing=False):
        for step in pig.gpu_steps(range(3)):
            if step != 1:
                with stream.as_current():
                    update()
                assert newest() == (step + 1 + step // 2, step)
                continue
            while stream.pending < 5:
                stream.launch(0)
            threads = [on_thread(gpu, stream, update) for _ in range(2)]
            gpu.wait_until_blocked(2)
            stream.release()
            gpu.run_dry()
            assert [thread.answer() for thread in threads] == [0, 0]
            assert newest() == (3, None)


@pytest.mark.thorough
def test_a_program_may_end_while_a_daemon_thread_is_stuck() -> None:
    """The thread gets out of the driver when the interpreter is ending and wants it back."""
    done = run_script(
        """
import os
import sys
import threading
import torch
import pyinstrument_gpu as pig
import _simulated_cuda as simulated
from tests.helpers.metric_gpu import metric_gpu

gpu = metric_gpu()
cuda = gpu.__enter__()
metrics = pig.MetricAccumulator()
stream = cuda.devices[0].create_stream()
cuda.devices[0].set_queue_depth(1)
stream.hang()
context = cuda.current_context

class Daemon(threading.Thread):
    def run(self, make_current=cuda.make_current):
        make_current(context)
        simulated.set_current_stream(0, stream.handle)
        metrics.update(torch.eye(4), torch.arange(4))

daemon = Daemon(daemon=True)
daemon.start()
cuda.wait_until_blocked()

class AtTheEnd:
    # What modules hold is gone by then.
    def __del__(
        self,
        release=simulated.release,
        wait_until_blocked=simulated.wait_until_blocked,
        stream=stream.handle,
        open=os.open,
        read=os.read,
        write=os.write,
        tasks=os.listdir,
        task=str(daemon.native_id),
        gone=OSError,
    ):
        release(stream)
        wait_until_blocked(0, 0, 600.0)
        # Until the thread has ended or sleeps. Where it aborts, the program does.
        while task in tasks("/proc/self/task"):
            try:
                if b") S" in read(open(f"/proc/self/task/{task}/stat", 0), 1000):
                    break
            except gone:  # it has ended between the two looks
                break
        write(1, b"released at the end")

sys.at_the_end = AtTheEnd()
""",
        is_fresh=True,  # its end takes all modules apart
    )
    assert (done.stdout, done.stderr) == ("released at the end", "")
