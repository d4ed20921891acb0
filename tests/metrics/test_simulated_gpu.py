# SPDX-License-Identifier: Apache-2.0
"""MetricAccumulator on a GPU that is simulated: what the driver is asked, and what comes of its
failures. From Python down to the driver's calls it is the code that runs on a GPU."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native
from tests.helpers.script import run_script

torch = pytest.importorskip("torch")

import _simulated_cuda as simulated  # type: ignore[import-not-found] # noqa: E402

from pyinstrument_gpu.metrics import accumulator, kernels  # noqa: E402
from pyinstrument_gpu.patching import device_memory  # noqa: E402
from tests.helpers.metric_cases import assert_same, at_once  # noqa: E402
from tests.helpers.metric_gpu import (  # noqa: E402
    BLOCKING_OR_ALLOCATING,
    metric_gpu,
    set_device_of_tensors,
    streams_recorded,
    wait_for_kernels,
)
from tests.helpers.simulated_cuda import Result, SimulatedCuda  # noqa: E402

LOGITS, TARGET = torch.eye(4), torch.arange(4)


@pytest.fixture
def gpu() -> Iterator[SimulatedCuda]:
    with metric_gpu() as cuda:
        yield cuda


def started(**options: Any) -> pig.MetricAccumulator:
    """An accumulator that has made its first update."""
    metrics = pig.MetricAccumulator(**options)
    metrics.update(LOGITS, TARGET, torch.tensor(1.0))
    return metrics


# --- what the driver is asked ---


def test_one_kernel_for_each_update_and_nothing_that_waits(gpu: SimulatedCuda) -> None:
    metrics = started(topk=(1, 2), num_classes=4, confusion=True)
    begin, launches = gpu.end_of_calls, len(gpu.launches())
    for _ in range(10):
        metrics.update(LOGITS, TARGET, torch.tensor(3.0), torch.ones(4))
        metrics.update_scalar("tokens", 2)
        metrics.update_scalar("grad_norm", torch.tensor(0.5))
        assert metrics.latest() is not None

    assert len(gpu.launches()) - launches == 30
    calls = {call.function for call in gpu.calls(since=begin)}
    assert calls == {"cuCtxGetCurrent", "cuLaunchKernel"}
    assert not calls & set(BLOCKING_OR_ALLOCATING)
    assert gpu.blocking_calls == 0
    assert gpu.violations == []
    reading = metrics.latest()
    assert reading is not None
    assert reading.update == 11
    assert_same(reading.values, metrics.compute())
    assert (reading.values["count"], reading.values["accuracy@1"]) == (44, 1)
    assert (reading.values["loss"], reading.values["tokens_sum"]) == (31 / 11, 20)
    assert reading.values["confusion_matrix"].tolist() == [
        [11.0 * (i == j) for j in range(4)] for i in range(4)
    ]


def test_on_the_current_stream(gpu: SimulatedCuda) -> None:
    metrics = started()
    side = gpu.devices[0].create_stream()
    simulated.set_current_stream(0, side.handle)
    metrics.update(LOGITS, TARGET)
    simulated.set_current_stream(0, 0)
    metrics.update(LOGITS, TARGET)

    assert [launch.stream for launch in gpu.launches()] == [0, side.handle, 0]


def test_on_the_device_of_the_tensors_whichever_is_current() -> None:
    """The default stream of every device has the number 0: the context says which it is."""
    with metric_gpu(devices=2) as gpu:
        second = gpu.devices[1].activate()
        contexts: list[int] = []
        first = gpu.devices[0].activate()
        set_device_of_tensors(1)
        metrics = pig.MetricAccumulator()
        gpu.make_current(first)
        metrics.update(LOGITS, TARGET)
        gpu.make_current(0)  # as in a new thread
        metrics.update(LOGITS, TARGET)

        assert gpu.current_context == 0
        for index, call in enumerate(gpu.calls()):
            if call.function == "cuLaunchKernel":
                before = [c for c in gpu.calls()[:index] if c.function == "cuCtxSetCurrent"]
                contexts.append(before[-1].arguments[0])
        assert contexts == [second, second]
        assert metrics.compute()["count"] == 8


def test_in_a_green_context_by_torch_operations(gpu: SimulatedCuda) -> None:
    """The kernel would go to another stream: the number 0 is the default one of each context."""
    metrics = started()
    primary = gpu.current_context
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpu.make_current(gpu.devices[0].create_context())
        metrics.update(LOGITS, TARGET)
        gpu.make_current(primary)
        metrics.update(LOGITS, TARGET)
    assert (len(gpu.launches()), metrics.reference_updates) == (2, 1)
    assert metrics.compute()["count"] == 12


def test_rocm_has_no_kernels(fresh_gpu: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = started()
    assert metrics.reference_updates == 1
    assert kernels._threads == {}


def test_the_matrix_of_many_classes_is_not_in_a_snapshot(gpu: SimulatedCuda) -> None:
    for classes, there in ((16, True), (17, False)):
        metrics = pig.MetricAccumulator(num_classes=classes, confusion=True)
        metrics.update(torch.eye(classes), torch.arange(classes))
        reading = metrics.latest()
        assert reading is not None
        assert ("confusion_matrix" in reading.values) == there
        assert metrics.compute()["recall_macro"] == 1


def test_pytorchs_allocator_knows_of_each_stream(gpu: SimulatedCuda) -> None:
    """It would give the memory of an accumulator that is gone to others, while a side stream still
    has updates to make."""
    side = gpu.devices[0].create_stream()
    metrics = started(topk=1)
    assert metrics._scratch is not None
    memory = [metrics._state.data_ptr(), metrics._scratch.data_ptr()]
    assert streams_recorded == []  # it gave the memory to this stream itself
    with side.as_current():
        for _ in range(3):
            metrics.update(LOGITS, TARGET)
        metrics.update_scalar("tokens", 2)
    metrics.update(LOGITS, TARGET)
    assert streams_recorded == [(address, side.handle) for address in memory]


def test_another_stream_waits_until_the_memory_is_made(gpu: SimulatedCuda) -> None:
    first, other = (gpu.devices[0].create_stream() for _ in range(2))
    first.hang()
    with first.as_current():
        metrics = started(topk=1)
    with other.as_current():
        metrics.update(LOGITS, TARGET)
    gpu.advance(1_000_000)
    assert other.pending == 3  # two waits, and the kernel behind them
    first.release()
    gpu.run_dry()
    assert other.pending == 0


@pytest.mark.parametrize("in_torch", [False, True])
def test_what_a_graph_writes_outlives_its_accumulator(in_torch: bool) -> None:
    with metric_gpu(ready=not in_torch) as gpu:
        stream = gpu.devices[0].create_stream()
        with stream.as_current():
            metrics = started(topk=1)
            with stream.capture():
                metrics.update(LOGITS, TARGET)
        state = weakref.ref(metrics._state)
        del metrics
        gc.collect()
        assert state() is not None
        other = weakref.ref(started(topk=1)._state)
        gc.collect()
        assert other() is None


def test_accumulators_that_are_gone_leave_no_memory_behind(gpu: SimulatedCuda) -> None:
    started(topk=1)
    host_bytes = gpu.host_bytes
    for _ in range(100):
        assert started(topk=1).latest() is not None

    assert gpu.host_bytes == host_bytes
    assert gpu.devices[0].retained == 1


# --- latest ---


def test_latest_is_what_has_arrived(gpu: SimulatedCuda) -> None:
    metrics = started(topk=1)
    gpu.run_nothing_on_launch(
        "pig_metric_cross_entropy_float32_thread"
    )  # this kernel is not done yet
    metrics.update(LOGITS, TARGET)

    reading = metrics.latest()
    assert reading is not None and (reading.update, reading.values["count"]) == (1, 4)


def test_update_and_step_of_a_reading(gpu: SimulatedCuda) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record(device_timing=False) as recording:
        for number in pig.gpu_steps(range(5)):
            metrics.update(LOGITS, TARGET, torch.tensor(float(number)))
            if number == 2:
                gpu.run_nothing_on_launch("pig_metric_update_float32_thread")
        reading = metrics.latest()
    assert reading is not None
    assert (reading.update, reading.step, reading.values["loss_last"]) == (3, 2, 2)
    run = recording.run
    last = run.metrics[run.metrics["name"] == run.metric_names.index("loss_last")][-1]
    assert (last["update"], last["step"], last["value"]) == (3, 2, 2)


def test_after_another_stream_steps_are_not_known(gpu: SimulatedCuda) -> None:
    """The host does not see in which order two streams are done."""
    metrics = started(topk=1)
    stream = gpu.devices[0].create_stream()
    with pig.record(device_timing=False) as recording:
        for number in pig.gpu_steps(range(2)):
            with stream.as_current() if number else contextlib.nullcontext():
                metrics.update(LOGITS, TARGET)
                metrics.update_scalar("norm", 1.0)
            reading = metrics.latest()
            assert reading is not None
            assert reading.step == (None if number else 0)
    assert recording.run.metrics[-1]["step"] == -1


def test_another_threads_default_stream_is_another_stream(gpu: SimulatedCuda) -> None:
    """Where each thread has one of its own, all have the same number."""
    context = gpu.current_context

    def update() -> None:
        gpu.make_current(context)
        with gpu.thread_stream.as_current():
            metrics.update(LOGITS, TARGET)

    with pig.record(device_timing=False), gpu.thread_stream.as_current():
        metrics = started()
        for number in pig.gpu_steps(range(3)):
            metrics.update(LOGITS, TARGET) if number < 2 else at_once(update)
            reading = metrics.latest()
            assert reading is not None
            assert reading.step == (None if number == 2 else number)


def test_reset_after_updates_that_the_host_has_not_seen(gpu: SimulatedCuda) -> None:
    """As replays of a graph: the device has counted further than the host."""
    metrics = started(topk=1)
    assert metrics._state is not None
    metrics._state.view(torch.int64)[0] += 10
    metrics.update(LOGITS, TARGET)
    reading = metrics.latest()
    assert reading is not None and (reading.update, reading.step) == (12, None)
    metrics.reset()

    assert metrics.latest() is None
    metrics.update(LOGITS, TARGET)
    reading = metrics.latest()
    assert reading is not None and (reading.update, reading.values["count"]) == (13, 4)


def test_a_copy_goes_on_by_itself(gpu: SimulatedCuda) -> None:
    metrics = started(topk=1)
    other = copy.deepcopy(metrics)
    other.update(LOGITS, TARGET)

    assert (metrics.compute()["count"], other.compute()["count"]) == (4, 8)
    reading = other.latest()
    assert reading is not None and (reading.update, reading.values["count"]) == (2, 8)
    other.reset()
    assert other.latest() is None


# --- captures ---


def test_a_first_update_during_a_capture_is_lost(
    gpu: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state would be made inside the graph, and each replay would make it anew."""
    stream = gpu.devices[0].create_stream()
    metrics = pig.MetricAccumulator(topk=1)
    monkeypatch.setattr(accumulator, "_HOST", torch.device("meta"))  # no tensor is on the host
    with stream.as_current():
        stream.begin_capture()
        with pytest.warns(RuntimeWarning, match="was lost.*make one update before") as caught:
            metrics.update(LOGITS, TARGET)
            metrics.update_scalar("grad_norm", torch.tensor(1.0))
        graph = stream.end_capture()
    assert graph.entries == 0
    assert [warning.filename for warning in caught] == [__file__]
    assert (metrics.compute()["count"], metrics.compute()["lost_updates"]) == (0, 2)

    metrics.update(LOGITS, TARGET)
    graph.launch(stream)
    assert (metrics.compute()["count"], metrics.compute()["lost_updates"]) == (4, 2)
    assert (gpu.captures_invalidated, len(gpu.launches())) == (0, 1)


@pytest.mark.parametrize("transform", ["functionalize", "grad", "vmap"])
def test_a_first_update_inside_a_transform(transform: str) -> None:
    """What is made there would mean nothing afterwards."""
    import torch._dynamo  # torch.func imports it, and it must see PyTorch's own functions

    metrics = pig.MetricAccumulator(topk=1)

    def step(x: Any) -> Any:
        metrics.update(torch.stack([x] * 4) if transform == "vmap" else x, TARGET)
        return x.sum()

    with metric_gpu() as gpu:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # only grad knows the numbers
            getattr(torch.func, transform)(step)(LOGITS)
        values = metrics.compute()
        assert values["lost_updates"] == (transform != "grad")
        assert values["count"] == (4 if transform == "grad" else 0)
        metrics.update(LOGITS, TARGET)
        reading = metrics.latest()
        assert reading is not None and reading.values["count"] == values["count"] + 4
        assert len(gpu.launches()) == 1


def test_values_that_are_not_waited_for(gpu: SimulatedCuda) -> None:
    stream = gpu.devices[0].create_stream()
    with stream.as_current():
        metrics = started(topk=1)
        metrics.update_scalar("tokens", 3)
        stream.hang()
        blocking = gpu.blocking_calls
        pending = metrics.compute_async()
        assert not pending.done()
        assert gpu.blocking_calls == blocking
        metrics.update(LOGITS, TARGET)
        stream.release()
        gpu.run_dry()
        assert pending.done()
        assert (pending.result()["count"], pending.result()["tokens"]) == (4, 3)
        assert metrics.compute()["count"] == 8


def test_nothing_is_read_in_a_capture(gpu: SimulatedCuda) -> None:
    stream = gpu.devices[0].create_stream()
    with stream.as_current():
        metrics = started(topk=1)
        stream.begin_capture()
        for read in (metrics.compute, metrics.compute_async, metrics.state_dict):
            with pytest.raises(RuntimeError, match="can't be part of a CUDA graph"):
                read()
        assert stream.end_capture().entries == 0
    assert metrics.compute()["count"] == 4


def test_each_replay_of_a_captured_update_counts(gpu: SimulatedCuda) -> None:
    stream = gpu.devices[0].create_stream()
    loss = torch.tensor(3.0)
    with stream.as_current():
        metrics = started(topk=1)
        begin = gpu.end_of_calls
        stream.begin_capture()
        metrics.update(LOGITS, TARGET, loss)
        graph = stream.end_capture()
    functions = {call.function for call in gpu.calls(since=begin)}
    assert functions == {"cuCtxGetCurrent", "cuStreamIsCapturing", "cuLaunchKernel"}
    assert (graph.entries, gpu.captures_invalidated) == (1, 0)
    for _ in range(3):
        graph.launch(stream)

    reading = metrics.latest()
    assert reading is not None and reading.update == 4
    assert_same(reading.values, metrics.compute())
    assert (reading.values["count"], reading.values["loss"]) == (16, 2.5)


def test_the_kernels_own_memory_is_not_made_during_a_capture(gpu: SimulatedCuda) -> None:
    """A copy has a state, but has not made an update yet. Torch operations are captured."""
    stream = gpu.devices[0].create_stream()
    metrics = copy.deepcopy(started(topk=1))
    with stream.as_current(), warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.begin_capture()
        metrics.update(LOGITS, TARGET)
        assert stream.end_capture().entries == 0  # no torch.zeros: nothing is made
        metrics.update(LOGITS, TARGET)

    assert (metrics.reference_updates, gpu.captures_invalidated) == (1, 0)
    assert len(gpu.launches()) == 2


@pytest.mark.parametrize("replays", [0, 2])
def test_after_a_capture_steps_are_not_known(gpu: SimulatedCuda, replays: int) -> None:
    """The host does not see replays, so it can't say which of the device's updates is whose."""
    metrics = pig.MetricAccumulator(topk=1)
    stream = gpu.devices[0].create_stream()
    with pig.record(device_timing=False), stream.as_current():
        for number in pig.gpu_steps(range(4)):
            if number == 1:
                stream.begin_capture()
            metrics.update(LOGITS, TARGET)
            if number == 1:
                graph = stream.end_capture()
                for _ in range(replays):
                    graph.launch(stream)
            reading = metrics.latest()
            assert reading is not None
            known = number == 0 or (number == 1 and replays == 0)  # that is still the first one
            assert (reading.step == 0) if known else (reading.step is None)
    assert reading is not None and reading.update == 3 + replays


def test_another_threads_capture_is_not_disturbed(gpu: SimulatedCuda) -> None:
    captured = gpu.devices[0].create_stream()
    captured.begin_capture()
    side = gpu.devices[0].create_stream()
    context = gpu.current_context

    def work() -> None:
        gpu.make_current(context)
        simulated.set_current_stream(0, side.handle)
        started()

    at_once(work)
    assert gpu.captures_invalidated == 0
    assert [launch.stream for launch in gpu.launches()] == [side.handle]
    captured.end_capture()


# --- torch.compile ---


def test_a_compiled_functions_first_update_takes_the_kernel(gpu: SimulatedCuda) -> None:
    torch._dynamo.reset()
    metrics = pig.MetricAccumulator(topk=1)

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def evaluate(logits: Any) -> Any:
        metrics.update(logits * 2, TARGET)
        return logits.sum()

    for _ in range(3):
        evaluate(LOGITS)
    torch._dynamo.reset()

    assert (len(gpu.launches()), metrics.reference_updates) == (3, 0)
    assert metrics.compute()["count"] == 12


# --- what fails ---

PREPARING = (
    "cuDevicePrimaryCtxRetain",
    "cuDeviceGetAttribute",
    "cuCtxSetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
)


@pytest.mark.parametrize("function", PREPARING)
def test_a_failure_before_the_first_launch_loses_nothing(
    fresh_gpu: SimulatedCuda, function: str
) -> None:
    gpu = fresh_gpu
    gpu.fail(function, Result.OUT_OF_MEMORY)
    metrics = pig.MetricAccumulator(topk=1)
    with pytest.warns(
        RuntimeWarning, match=rf"which is slower.*[:;] {function}: CUDA_ERROR_OUT"
    ) as caught:
        for _ in range(3):
            metrics.update(LOGITS, TARGET, torch.tensor(2.0))
            metrics.update_scalar("tokens", 5)

    assert len(caught) == 1
    values = metrics.compute()
    assert (values["count"], values["loss"], values["tokens_sum"]) == (12, 2, 15)
    assert values["lost_updates"] == 0
    assert metrics.latest() is None
    assert gpu.launches() == []


def test_a_launch_that_fails_is_done_otherwise(gpu: SimulatedCuda) -> None:
    metrics = started(topk=1)
    gpu.fail("cuLaunchKernel", Result.LAUNCH_FAILED)
    with pytest.warns(
        RuntimeWarning, match="which is slower.*: cuLaunchKernel: CUDA_ERROR_LAUNCH"
    ) as caught:
        for _ in range(3):
            metrics.update(LOGITS, TARGET, torch.tensor(2.0))

    assert len(caught) == 1
    assert len(gpu.launches()) == 1
    values = metrics.compute()
    assert (values["count"], values["lost_updates"]) == (16, 0)
    assert metrics.latest() is None  # what the kernel had written is old


def test_where_the_device_is_lost_so_are_updates_and_the_values_say_so(
    gpu: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyinstrument_gpu.metrics import accumulator, reference

    def fails(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    metrics = started(topk=1)
    monkeypatch.setattr(accumulator._BATCH, "reference", fails)
    monkeypatch.setattr(reference, "add_values", fails)
    gpu.fail("cuLaunchKernel", Result.ILLEGAL_ADDRESS)
    with pytest.warns(
        RuntimeWarning, match="was lost.*cuLaunchKernel.*; RuntimeError: CUDA error"
    ) as caught:
        for _ in range(3):
            metrics.update(LOGITS, TARGET, torch.tensor(2.0))
        metrics.update_scalar("tokens", 5)

    assert len(caught) == 1
    values = metrics.compute()
    # What there was before stays, and is said not to be all.
    assert (values["count"], values["loss"], values["lost_updates"]) == (4, 1, 4)
    assert math.isnan(values["tokens"])
    metrics.reset()
    assert metrics.compute()["lost_updates"] == 0


def test_what_the_device_has_lost_is_counted(gpu: SimulatedCuda) -> None:
    """Updates on streams that the program has not ordered may meet."""
    metrics = started(topk=1)
    assert metrics._scratch is not None
    metrics._scratch.view(torch.int64)[native.METRIC_SCRATCH_LOST_WORD] += 2
    metrics.update(LOGITS, TARGET)

    reading = metrics.latest()
    assert reading is not None and reading.values["lost_updates"] == 2
    assert metrics.compute()["lost_updates"] == 2
    assert copy.deepcopy(metrics).compute()["lost_updates"] == 2
    metrics.reset()
    metrics.update(LOGITS, TARGET)
    assert metrics.compute()["lost_updates"] == 0


@pytest.mark.parametrize("what", ["state", "scratch"])
def test_no_memory_on_the_device(
    gpu: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nAnd so on")

    metrics = pig.MetricAccumulator(topk=1)
    with monkeypatch.context() as while_full, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while_full.setattr(device_memory, "zeros", fails)
        if what == "state":
            while_full.setattr(metrics, "_state", torch.zeros(1, device="meta"))
        for _ in range(2):
            metrics.update(LOGITS, TARGET)
    metrics.update(LOGITS, TARGET)

    values = metrics.compute()
    assert len(gpu.launches()) == 1
    if what == "state":
        (warning,) = caught
        assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB." in str(
            warning.message
        )
        assert (values["count"], values["lost_updates"]) == (4, 2)
    else:
        assert (values["count"], values["lost_updates"], caught) == (12, 0, [])
        assert metrics.reference_updates == 2


def test_no_stream_to_be_had(gpu: SimulatedCuda) -> None:
    gpu.fail_current_stream()
    metrics = started(topk=1)

    assert gpu.launches() == []
    assert metrics.compute()["count"] == 4


# --- until the kernel is ready ---


def wait_for_compiler(latch: Path) -> None:
    """Until it is held by the latch."""
    Path(f"{latch}.reached").open("w").close()


def release(latch: Path) -> None:
    """Let the compiler go on that is held by a latch."""
    latch.open("w").close()


@pytest.fixture
def latch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the fake NVRTC until it is released, which each test has to do."""
    path = tmp_path / "latch"
    os.mkfifo(path)
    os.mkfifo(f"{path}.reached")
    monkeypatch.setenv("FAKE_NVRTC_LATCH", str(path))
    return path


@pytest.fixture
def fresh_gpu() -> Iterator[SimulatedCuda]:
    """One whose kernels have not been compiled."""
    with metric_gpu(ready=False) as cuda:
        yield cuda


def test_no_update_is_lost_or_counted_twice_where_the_kernel_takes_over(
    fresh_gpu: SimulatedCuda, latch: Path
) -> None:
    metrics = pig.MetricAccumulator(topk=(1, 2), num_classes=4, confusion=True)
    generator = torch.Generator().manual_seed(5)
    cases = [torch.randn(6, 4, generator=generator) for _ in range(12)]
    target = torch.tensor([0, 1, 2, 3, 0, -100])

    def update(number: int) -> None:
        metrics.update(cases[number], target, torch.tensor(float(number)))
        metrics.update_scalar("tokens", number)

    for number in range(5):
        update(number)
    wait_for_compiler(latch)
    assert (fresh_gpu.launches(), metrics.latest()) == ([], None)
    assert metrics.reference_updates == 10

    release(latch)
    wait_for_kernels()
    begin = fresh_gpu.end_of_calls
    for number in range(5, 12):
        update(number)
    assert len(fresh_gpu.launches()) == 14
    # What takes long or allocates is done: the switch is a launch like any other.
    calls = {call.function for call in fresh_gpu.calls(since=begin)}
    assert calls == {"cuCtxGetCurrent", "cuLaunchKernel"}
    assert metrics.reference_updates == 10

    wanted = pig.MetricAccumulator(topk=(1, 2), num_classes=4, confusion=True)
    wanted._native = None  # all by the reference
    for number in range(12):
        wanted.update(cases[number], target, torch.tensor(float(number)))
        wanted.update_scalar("tokens", number)
    assert_same(metrics.compute(), wanted.compute())
    reading = metrics.latest()
    assert reading is not None and reading.update == 12
    assert_same(reading.values, metrics.compute())


def test_threads_that_update_while_the_kernel_takes_over(
    fresh_gpu: SimulatedCuda, latch: Path
) -> None:
    """An update is by the one way or the other: with many torch operations under way, no kernel
    comes in between."""
    metrics = pig.MetricAccumulator(topk=1, num_classes=4, confusion=True)
    context = fresh_gpu.current_context
    half_done = threading.Barrier(4)

    def work(thread: int) -> None:
        fresh_gpu.make_current(context)
        for number in range(200):
            if number == 100:
                half_done.wait()
                if thread == 0:
                    wait_for_compiler(latch)
                    release(latch)
            metrics.update(LOGITS, TARGET, torch.tensor(float(thread * 200 + number)))

    at_once(*(partial(work, number) for number in range(4)))
    wait_for_kernels()
    metrics.update(LOGITS, TARGET, torch.tensor(800.0))

    assert 400 <= metrics.reference_updates <= 800
    assert len(fresh_gpu.launches()) == 801 - metrics.reference_updates
    values = metrics.compute()
    assert (values["count"], values["accuracy@1"], values["lost_updates"]) == (4 * 801, 1, 0)
    assert (values["loss_min"], values["loss_max"], values["loss"]) == (0, 800, 400)
    assert values["confusion_matrix"].tolist() == [
        [801.0 * (i == j) for j in range(4)] for i in range(4)
    ]


def test_a_graph_captured_before_holds_the_torch_operations(
    fresh_gpu: SimulatedCuda, latch: Path
) -> None:
    stream = fresh_gpu.devices[0].create_stream()
    simulated.set_current_stream(0, stream.handle)
    metrics = started(topk=1)
    stream.begin_capture()
    metrics.update(LOGITS, TARGET)
    wait_for_compiler(latch)
    release(latch)
    wait_for_kernels()  # loaded while the capture goes on
    metrics.update(LOGITS, TARGET)

    assert stream.end_capture().entries == 1  # the kernel
    assert fresh_gpu.captures_invalidated == 0
    assert metrics.reference_updates == 2
    assert metrics.compute()["count"] == 8  # the kernel is in the graph, which nothing has run


def test_a_kernel_that_does_not_compile(
    fresh_gpu: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVRTC_FAILS", "1")
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(LOGITS, TARGET)  # without a warning: nothing is known yet
    wait_for_kernels()
    with pytest.warns(
        RuntimeWarning, match="which is slower.*: nvrtcCompileProgram: NVRTC_ERR"
    ) as caught:
        for _ in range(3):
            metrics.update(LOGITS, TARGET)

    assert len(caught) == 1
    assert (metrics.compute()["count"], metrics.reference_updates) == (16, 4)
    assert fresh_gpu.launches() == []


@pytest.mark.parametrize(
    "function",
    [
        "cuThreadExchangeStreamCaptureMode",
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelGetFunction",
    ],
)
def test_a_kernel_that_does_not_load(fresh_gpu: SimulatedCuda, latch: Path, function: str) -> None:
    metrics = started(topk=1)
    fresh_gpu.fail(function, Result.NO_BINARY)
    wait_for_compiler(latch)
    release(latch)
    wait_for_kernels()
    with pytest.warns(
        RuntimeWarning, match=rf"which is slower.*: {function}.*: CUDA_ERROR_NO_BINARY"
    ):
        metrics.update(LOGITS, TARGET)

    assert (metrics.compute()["count"], metrics.reference_updates) == (8, 2)


def test_one_compilation_for_all_accumulators(fresh_gpu: SimulatedCuda) -> None:
    for _ in range(3):
        started()
    wait_for_kernels()
    for _ in range(3):
        started()

    assert fresh_gpu.count("cuLibraryLoadData") == 1
    assert len(fresh_gpu.launches()) == 3


def test_a_recording_says_how_many_took_the_other_way(
    fresh_gpu: SimulatedCuda, latch: Path
) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record(device_timing=False) as recording:
        metrics.update(LOGITS, TARGET)
        metrics.update(LOGITS, TARGET)
        wait_for_compiler(latch)
        release(latch)
        wait_for_kernels()
        metrics.update(LOGITS, TARGET)

    run = recording.run
    rows = run.metrics[run.metrics["name"] == run.metric_names.index("reference_updates")]
    assert rows["value"].tolist()[-1:] == [2]


SCRIPT = """
import os
import torch
import pyinstrument_gpu as pig
from tests.helpers.metric_gpu import metric_gpu, wait_for_kernels

latch = os.environ["FAKE_NVRTC_LATCH"]
gpu = metric_gpu(ready=False)
cuda = gpu.__enter__()
metrics = pig.MetricAccumulator(topk=1)
metrics.update(torch.eye(4), torch.arange(4))
open(latch + ".reached", "w").close()
"""


def test_a_program_may_end_while_its_kernel_is_compiled(latch: Path) -> None:
    done = run_script(SCRIPT + "print(metrics.compute()['count'])")

    assert (done.stdout.strip(), done.stderr) == ("4", "")
    release(latch)  # the compiler is still there


def test_a_program_may_fork_while_its_kernel_is_compiled(latch: Path) -> None:
    done = run_script(
        SCRIPT
        + """
child = os.fork()
metrics.update(torch.eye(4), torch.arange(4))
if child == 0:
    print(metrics.compute()["count"], metrics.reference_updates, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
open(latch, "w").close()
wait_for_kernels()
metrics.update(torch.eye(4), torch.arange(4))
print(metrics.compute()["count"], metrics.reference_updates, len(cuda.launches()))
"""
    )
    assert done.stdout.split() == ["8", "2", "12", "2", "1"]


# --- what the tests on a GPU rest on ---


def test_a_driver_that_counts_and_hands_on() -> None:
    """tests/gpu sees by it what an update asks of the real driver."""
    done = run_script(
        """
import os
import torch
import pyinstrument_gpu as pig
from tests.helpers.metric_gpu import metric_gpu
from tests.helpers.simulated_cuda import LIBRARY
os.environ["FORWARD_TO"] = str(LIBRARY)
from tests.helpers.driver_log import calls_since, driver_calls

with metric_gpu() as gpu:
    metrics = pig.MetricAccumulator()
    metrics.update(torch.eye(4), torch.arange(4))
    before = driver_calls()
    for _ in range(5):
        metrics.update(torch.eye(4), torch.arange(4))
    print(calls_since(before), len(gpu.launches()), before["cuLibraryLoadData"])
"""
    )
    calls = {"cuCtxGetCurrent": 5, "cuLaunchKernel": 5}
    assert done.stdout.strip() == f"{calls} 6 1"
