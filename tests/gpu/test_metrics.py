# SPDX-License-Identifier: Apache-2.0
"""Metrics on a GPU: the values, what an update asks of the driver, streams, CUDA graphs, and the
time until the kernel is ready."""

import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.metrics.kernels import wait
from tests.gpu.conftest import why_not
from tests.helpers import element_updates
from tests.helpers.metric_cases import Case, assert_same, computed, expected, random_case
from tests.helpers.script import run_script

DEVICE = "cuda"
LOGITS, TARGET = torch.eye(4), torch.arange(4)


@pytest.fixture(autouse=True, scope="module")
def kernels_are_ready() -> None:
    if why_not() is None:
        pig.MetricAccumulator().update(LOGITS.to(DEVICE), TARGET.to(DEVICE))
        assert wait(timeout_s=300)


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """A warning that metrics are updated without the kernel would be one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def on_device(value: Any) -> Any:
    return None if value is None else value.to(DEVICE)


def updated(case: Case) -> pig.MetricAccumulator:
    metrics = pig.MetricAccumulator(**case.options)
    metrics.update(*map(on_device, (case.logits, case.target, case.loss, case.weight)))
    return metrics


def arrived(metrics: pig.MetricAccumulator) -> pig.Reading:
    """What `latest` gives once the device is done."""
    torch.cuda.synchronize()
    reading = metrics.latest()
    assert reading is not None
    return reading


# --- values ---


@pytest.mark.parametrize("part", range(4))
def test_random_updates_against_plain_python(part: int) -> None:
    for seed in range(part * 250, (part + 1) * 250):
        case = random_case(torch.Generator().manual_seed(seed), cross_entropy=True)
        metrics = updated(case)
        assert_same(metrics.compute(), expected([case]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("rows", "classes"),
    [(3000, 2), (3000, 10), (700, 1000), (300, 2047), (300, 2048), (65, 50_257), (5, 256_000)],
)
def test_every_layout_of_threads_against_the_cpu(dtype: Any, rows: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, generator=generator).to(dtype)
    target = torch.randint(-1, classes + 1, (rows,), generator=generator)
    logits[0, -1] = math.nan
    logits[1] = 0
    weight = torch.randint(0, 9, (rows,), generator=generator) / 8
    options: dict[str, Any] = {"topk": (1, 5, 100)}
    if classes <= 1000:
        options |= {"num_classes": classes, "confusion": True}
    on_cpu, on_gpu = pig.MetricAccumulator(**options), pig.MetricAccumulator(**options)
    for offset in (0, 1):  # rows that begin at 16 bytes and rows that don't
        views = logits[:, offset:] if "num_classes" not in options else logits
        on_cpu.update(views, target, weight, weight)
        moved = logits.to(DEVICE)
        moved = moved[:, offset:] if "num_classes" not in options else moved
        on_gpu.update(moved, *map(on_device, (target, weight, weight)))
    got, wanted = on_gpu.compute(), on_cpu.compute()
    assert_same(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("rows", "classes"), [(3000, 3), (700, 1000), (300, 2048), (65, 50_257), (5, 128_256)]
)
@pytest.mark.parametrize("smoothed", [False, True])
def test_the_loss_from_the_logits_against_the_cpu(
    dtype: Any, rows: int, classes: int, smoothed: bool
) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = (torch.randn(rows, classes, generator=generator) * 5).to(dtype)
    logits[1, 1::2] = -math.inf
    logits[2, -1] = 200
    logits[3] -= 300
    target = torch.randint(-1, classes + 1, (rows,), generator=generator)
    target[:5] = 0
    options: dict[str, Any] = {"topk": (1, 2), "num_classes": classes}
    if smoothed:
        class_weight = torch.rand(classes, generator=generator)
        options |= {"label_smoothing": 0.1, "class_weight": class_weight}
    on_cpu, on_gpu = pig.MetricAccumulator(**options), pig.MetricAccumulator(**options)
    on_cpu.update(logits, target)
    on_gpu.update(logits.to(DEVICE), target.to(DEVICE))
    assert on_gpu.reference_updates == 0
    assert_same(on_gpu.compute(), computed(on_cpu.compute(), 1e-5))


@pytest.mark.parametrize(("kernel", "make", "add"), element_updates.CASES)
def test_updates_without_logits_against_the_cpu(kernel: str, make: Any, add: Any) -> None:
    for seed in range(20):
        metrics = make()
        got = add(metrics, seed, DEVICE)
        assert metrics.reference_updates == 0
        assert_same(got, add(make(), seed, "cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_numbers_against_the_cpu(dtype: torch.dtype) -> None:
    """As many as fill the device."""
    numbers, others = (torch.randint(-40, 41, (3_000_001,)).to(dtype) / 8 for _ in range(2))
    values = []
    for device in ("cpu", DEVICE):
        x, y = numbers.to(device), others.to(device)
        metrics = pig.MetricAccumulator()
        metrics.update_scalar("x", x)
        metrics.update_scalar("x", x, y.abs())
        metrics.update_rows(loss=x, rank=y.abs().int())
        values.append(metrics.compute())
    assert_same(*values)


def test_first_non_finite_update() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    for value in (1.0, math.inf, math.nan):
        metrics.update(LOGITS.to(DEVICE), TARGET.to(DEVICE), torch.tensor(value, device=DEVICE))
    reading = arrived(metrics)
    assert reading.values["first_nonfinite_update"] == 2
    assert (reading.values["nonfinite"], reading.values["loss"]) == (2, 1)
    assert reading.update == 3


def test_a_reading_is_what_compute_gives() -> None:
    metrics = pig.MetricAccumulator(topk=(1, 2), num_classes=4, confusion=True)
    for _ in range(20):
        metrics.update(LOGITS.to(DEVICE), TARGET.to(DEVICE), torch.tensor(2.0, device=DEVICE))
        metrics.update_scalar("tokens", 4)
        metrics.update_scalar("grad_norm", torch.tensor(0.5, device=DEVICE))
    reading = arrived(metrics)
    assert reading.update == 20
    assert_same(reading.values, metrics.compute())


# --- waiting ---


def test_nothing_waits_for_the_device(kernels: Any) -> None:
    """While the stream is on hold, whatever waits for it would wait until the hold gives up."""
    metrics = pig.MetricAccumulator()
    logits, target, loss = map(on_device, (LOGITS, TARGET, torch.tensor(1.0)))
    metrics.update(logits, target, loss)
    metrics.update_scalar("tokens", 1)
    torch.cuda.synchronize()
    with kernels.held():
        begin = time.monotonic()
        for _ in range(100):
            metrics.update(logits, target, loss)
            metrics.update_scalar("tokens", 1)
            metrics.update_scalar("lr", torch.tensor(0.1))  # a number on the host
            reading = metrics.latest()
            assert reading is not None and reading.update == 1
        metrics.reset()
        assert metrics.latest() is None
        assert time.monotonic() - begin < 2


def test_nothing_that_logs_or_saves_waits_for_the_device(kernels: Any) -> None:
    metrics = pig.MetricAccumulator()
    logits, target = map(on_device, (LOGITS, TARGET))
    parameter = torch.ones(3, device=DEVICE, requires_grad=True)
    parameter.grad = torch.ones(3, device=DEVICE)
    window = metrics.window()

    def step() -> tuple[dict[str, Any], Any]:
        metrics.update(logits, target)
        metrics.grad_norm([parameter])
        window.latest()
        return metrics.state_dict(), metrics.compute_async()

    step()  # PyTorch loads its kernels, which may wait
    torch.cuda.synchronize()
    with kernels.held():
        begin = time.monotonic()
        saved, pending = step()
        assert not pending.done()
        assert time.monotonic() - begin < 2
    metrics.update(logits, target)
    resumed = pig.MetricAccumulator()
    resumed.load_state_dict(saved)
    for values in (pending.result(), resumed.compute()):
        assert (values["count"], values["grad_norm"]) == (8, pytest.approx(math.sqrt(3)))
    resumed.update(logits, target)
    assert (arrived(resumed).update, arrived(resumed).values["count"]) == (3, 12)
    assert pending.done()


LOG_SCRIPT = """
import torch
from tests.helpers.driver_log import calls_since, driver_calls
import pyinstrument_gpu as pig
from pyinstrument_gpu.metrics.kernels import wait

logits, target = torch.eye(4, device=DEVICE), torch.arange(4, device=DEVICE)
loss = torch.tensor(2.0, device=DEVICE)
metrics = pig.MetricAccumulator()
metrics.update(logits, target, loss)
assert wait(timeout_s=300)
before, memory = driver_calls(), torch.cuda.memory_stats().get("allocation.all.allocated")
for _ in range(100):
    metrics.update(logits, target, loss)
    metrics.update_scalar("tokens", 3)
    metrics.latest()
print(calls_since(before))
assert torch.cuda.memory_stats().get("allocation.all.allocated") == memory
assert metrics.compute()["count"] == 404
"""


def test_an_update_is_one_launch_and_no_other_call_that_does_anything() -> None:
    printed = run_script(LOG_SCRIPT.replace("DEVICE", repr(DEVICE))).stdout.strip()
    assert printed == str({"cuCtxGetCurrent": 200, "cuLaunchKernel": 200})


# --- until the kernel is ready ---

SWITCH_SCRIPT = """
import torch
import pyinstrument_gpu as pig
from pyinstrument_gpu.metrics.kernels import wait

logits, target = torch.eye(4, device=DEVICE), torch.arange(4, device=DEVICE)
loss = torch.tensor(0.0, device=DEVICE)
metrics = pig.MetricAccumulator(topk=1, num_classes=4, confusion=True)

def update():
    loss.add_(1)
    metrics.update(logits, target, loss)
    metrics.update_scalar("tokens", 3)

for _ in range(3):
    update()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # in the mode in which other threads' calls could break it
    update()
    assert wait(timeout_s=300)
by_torch = metrics.reference_updates
for _ in range(5):
    graph.replay()
    update()
assert metrics.reference_updates == by_torch
torch.cuda.synchronize()
values, reading = metrics.compute(), metrics.latest()
assert (values["count"], values["accuracy@1"], values["lost_updates"]) == (52, 1, 0), values
assert (values["loss"], values["loss_min"], values["loss_max"]) == (7, 1, 13), values
assert (values["tokens"], values["tokens_sum"]) == (3, 39), values
assert (values["confusion_matrix"] == 13 * torch.eye(4).numpy()).all(), values
assert reading.update == 13 and str(reading.values) == str(values)
print(by_torch)
"""


def test_nothing_is_lost_or_counted_twice_where_the_kernel_takes_over(tmp_path: Path) -> None:
    """Of a process in which it is compiled, and of one that finds it on disk."""
    for _ in range(2):
        done = run_script(
            SWITCH_SCRIPT.replace("DEVICE", repr(DEVICE)),
            environment={"PYINSTRUMENT_GPU_CACHE_DIR": str(tmp_path / "cache")},
        )
        assert 1 <= int(done.stdout) <= 8
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("milliseconds", [0, 1, 10, 100, 1000])
def test_a_program_may_end_at_any_time(milliseconds: int, tmp_path: Path) -> None:
    """While the compiler runs, and while its code is loaded."""
    source = """
import sys, time, torch
import pyinstrument_gpu as pig
metrics = pig.MetricAccumulator()
metrics.update(torch.eye(4, device=DEVICE), torch.arange(4, device=DEVICE))
time.sleep(int(sys.argv[1]) / 1000)
"""
    done = run_script(
        source.replace("DEVICE", repr(DEVICE)),
        milliseconds,
        environment={"PYINSTRUMENT_GPU_CACHE_DIR": str(tmp_path)},
    )
    assert done.stderr == ""


# --- streams and graphs ---


def test_on_side_streams() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    logits, target = LOGITS.to(DEVICE), TARGET.to(DEVICE)
    metrics.update(logits, target)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for number in range(50):
        stream, last = streams[number % 2], torch.cuda.current_stream()
        stream.wait_stream(last)
        with torch.cuda.stream(stream):
            metrics.update(logits, target)
        last.wait_stream(stream)
    assert arrived(metrics).values["count"] == 204
    assert metrics.compute()["count"] == 204


def test_replays_of_a_graph() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    logits, target = LOGITS.to(DEVICE), TARGET.to(DEVICE)
    loss = torch.tensor(0.0, device=DEVICE)
    metrics.update(logits, target, loss)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss.add_(1)
        metrics.update(logits, target, loss)
    for replay in range(1, 11):
        graph.replay()
        reading = arrived(metrics)
        assert (reading.update, reading.step) == (1 + replay, None)
        assert reading.values["loss_last"] == replay
    metrics.reset()
    torch.cuda.synchronize()
    assert metrics.latest() is None
    graph.replay()
    reading = arrived(metrics)
    assert (reading.update, reading.values["count"]) == (12, 4)


def test_in_a_new_thread() -> None:
    """Where no context is current yet."""
    from concurrent.futures import ThreadPoolExecutor

    metrics = pig.MetricAccumulator(topk=1)
    logits, target = LOGITS.to(DEVICE), TARGET.to(DEVICE)
    metrics.update(logits, target)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: metrics.update(logits, target), range(40)))
    assert arrived(metrics).values["count"] == 164


@pytest.mark.skipif(why_not() is None and torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_device_that_is_not_current() -> None:
    second = torch.device("cuda", 1)
    metrics = pig.MetricAccumulator(topk=1)
    for _ in range(3):
        metrics.update(LOGITS.to(second), TARGET.to(second))
    assert metrics.compute()["count"] == 12
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="make an accumulator for each device"):
        metrics.update(LOGITS.to("cuda:0"), TARGET.to("cuda:0"))


def test_compiled() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    model = torch.nn.Linear(4, 4).to(DEVICE)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        metrics.update(logits, y, loss)
        return loss

    for _ in range(3):
        step(LOGITS.to(DEVICE), TARGET.to(DEVICE)).backward()
    assert arrived(metrics).values["count"] == 12
