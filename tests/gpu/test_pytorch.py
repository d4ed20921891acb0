# SPDX-License-Identifier: Apache-2.0
"""Device times beside what PyTorch does: streams, threads, CUDA graphs, autograd, processes."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from pyinstrument_gpu import gpu_phase, gpu_step
from tests.gpu.conftest import Timed
from tests.helpers.cuda_kernels import CudaKernels
from tests.helpers.script import run_script
from tests.helpers.spans import dropped_of

FLUSH_S = 5.0
# What a spin of one thread takes more than asked for, and the events around it.
SLACK_NS = 1_000_000


def test_side_streams_overlap(kernels: CudaKernels, timed: Timed) -> None:
    spin_ns = 20_000_000
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with timed() as recording:
        for stream in streams:
            with torch.cuda.stream(stream), gpu_phase("side"):
                kernels.spin(spin_ns)
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    assert dropped_of(run) == {}
    assert [run.streams[i].handle for i in run.spans["stream"]] == [s.cuda_stream for s in streams]
    assert (np.abs(run.span_device_ns - spin_ns) <= SLACK_NS).all()
    begin_ns, end_ns = run.spans["device_begin_ns"], run.spans["device_end_ns"]
    assert begin_ns.max() < end_ns.min()


def test_a_phase_that_changes_its_stream_has_no_device_time(
    kernels: CudaKernels, timed: Timed
) -> None:
    side = torch.cuda.Stream()
    with timed() as recording:
        phase = gpu_phase("across")
        phase.begin()
        with torch.cuda.stream(side):
            kernels.spin(1_000)
            phase.end()
        torch.cuda.synchronize()
        recording.flush(FLUSH_S)
    assert (recording.run.span_device_ns == -1).all()
    assert dropped_of(recording.run) == {"device_stream_changed": 1}


def test_threads_on_streams_of_their_own(kernels: CudaKernels, timed: Timed) -> None:
    threads, uses, spin_ns = 4, 100, 100_000
    ready = threading.Barrier(threads)

    def work(index: int) -> int:
        torch.cuda.set_device(0)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.zeros(1, device="cuda")
            ready.wait()
            for _ in range(uses):
                with gpu_phase(f"thread {index}"):
                    kernels.spin(spin_ns)
            stream.synchronize()
        return stream.cuda_stream

    with timed() as recording:
        with ThreadPoolExecutor(threads) as pool:
            handles = list(pool.map(work, range(threads)))
        assert recording.flush(FLUSH_S)
    run = recording.run
    assert dropped_of(run) == {}
    assert len(run.spans) == threads * uses
    for index, handle in enumerate(handles):
        spans = run.spans["path"] == run.paths.index(f"thread {index}")
        assert {run.streams[i].handle for i in run.spans["stream"][spans]} == {handle}
        assert (run.span_device_ns[spans] >= spin_ns).all()


def set_stream(side: torch.cuda.Stream) -> None:
    with torch.cuda.stream(torch.cuda.current_stream()):  # which it is again at the end
        torch.cuda.set_stream(side)


def set_stream_of_accelerator(side: torch.cuda.Stream) -> None:
    with torch.cuda.stream(torch.cuda.current_stream()):
        torch.accelerator.set_stream(side)


def enter(side: Any) -> None:
    with side:
        pass


USES: dict[str, Callable[[torch.cuda.Stream], object]] = {
    "made": lambda side: torch.cuda.Stream(),
    "another library's": lambda side: torch.cuda.ExternalStream(side.cuda_stream),
    "set": set_stream,
    "set for the accelerator": set_stream_of_accelerator,
    "entered": enter,
    "waits": lambda side: side.wait_stream(torch.cuda.current_stream()),
    "is waited for": lambda side: torch.cuda.current_stream().wait_stream(side),
    "waits for an event": lambda side: side.wait_event(torch.cuda.Event()),
    "event": lambda side: torch.cuda.Event().wait(),
}


@pytest.mark.parametrize("use", USES)
def test_a_stream_of_the_program_is_seen(use: str, timed: Timed) -> None:
    side = torch.cuda.Stream()
    with timed() as recording:
        torch.ones(8, device="cuda").add_(1)
        USES[use](side)
        assert recording.snapshot().program_facts.other_streams is True
    assert recording.run.program_facts.other_streams is True


def test_without_a_stream_of_the_program_there_is_none(timed: Timed) -> None:
    torch.cuda.Stream()  # nothing is put on it while there is a recording
    with timed() as recording:
        for _ in range(2):
            with gpu_step(), gpu_phase("work"), torch.cuda.device(0):
                value = torch.ones(8, device="cuda", requires_grad=True)
                begin = torch.cuda.Event(enable_timing=True)
                begin.record()
                value.sum().backward()
                torch.cuda.current_stream().synchronize()
        assert recording.flush(FLUSH_S)  # by then the recorder has counted the devices
    assert recording.run.program_facts.other_streams is False


def test_autograds_threads(kernels: CudaKernels, timed: Timed) -> None:
    spin_ns = 300_000

    class Timer(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
            with gpu_phase("in backward"):
                kernels.spin(spin_ns)
            return gradients[0]

    value = torch.ones(8, device="cuda", requires_grad=True)
    with timed() as recording:
        for _ in range(20):
            with gpu_step():
                loss = Timer.apply(value).sum()  # type: ignore[no-untyped-call]
                with gpu_phase("backward"):
                    loss.backward()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    assert dropped_of(run) == {}
    inside = run.spans["path"] == run.paths.index("in backward")
    around = run.spans["path"] == run.paths.index("backward")
    assert np.count_nonzero(inside) == np.count_nonzero(around) == 20
    assert set(run.spans["thread"][inside]).isdisjoint(run.spans["thread"][around])
    assert (run.span_device_ns[inside] >= spin_ns).all()
    # Autograd runs backward on the stream of forward, so the call is around it there.
    assert (run.span_device_ns[around] >= run.span_device_ns[inside]).all()


def test_a_capture_in_global_mode_goes_through_and_its_replay_is_timed(
    kernels: CudaKernels, timed: Timed
) -> None:
    spin_ns = 2_000_000
    x = torch.ones(1024, device="cuda")
    y = (x * 2).sum()  # loaded and allocated before
    with timed() as recording:
        with gpu_phase("before"):
            kernels.spin(spin_ns)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                with gpu_phase("captured"):
                    kernels.spin(spin_ns // 10)
                    y = (x * 2).sum()
                time.sleep(0.05)  # the harvester wakes every 20 ms
        for _ in range(10):
            with gpu_phase("replay"):
                graph.replay()
        with gpu_phase("after"):
            kernels.spin(spin_ns)
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    assert y.item() == 2048
    run = recording.run
    times_ns = {
        name: run.span_device_ns[run.spans["path"] == run.paths.index(name)]
        for name in ("before", "captured", "replay", "after")
    }
    assert (times_ns["captured"] == -1).all()
    assert dropped_of(run) == {}
    assert run.graph_phases is not None
    (captured,) = run.graph_phases.phases
    assert (captured.path, captured.count) == ("replay/captured", 50)
    assert captured.min_ns >= spin_ns // 10
    assert sorted(run.graph_phases.runs["run"]) == sorted(list(range(1, 11)) * 5)
    in_graphs = run.graph_phases.runs["device_begin_ns"]
    around = run.spans[run.spans["path"] == run.paths.index("replay")]
    assert in_graphs.min() >= around["device_begin_ns"].min() - 10_000
    assert run.graph_phases.runs["device_end_ns"].max() <= around["device_end_ns"].max() + 10_000
    assert len(times_ns["replay"]) == 10
    assert (times_ns["replay"] >= 5 * (spin_ns // 10)).all()
    assert (times_ns["before"] >= spin_ns).all()
    assert (times_ns["after"] >= spin_ns).all()


def test_phases_of_graphed_callables_are_timed_in_each_replay(timed: Timed) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with gpu_phase("layer"):
                y: torch.Tensor = self.layer(x)
                return y.relu()

    x = torch.ones(64, 256, device="cuda")
    with timed() as recording:
        model: Any = torch.cuda.make_graphed_callables(Model().cuda(), (x,))
        for _ in range(20):
            with gpu_step(), gpu_phase("forward"):
                model(x).sum().backward()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    assert run.graph_phases is not None
    (layer,) = run.graph_phases.phases
    assert (layer.path, layer.count, layer.lost) == ("forward/layer", 20, 0)
    assert run.graph_phases.runs["step"].tolist() == list(range(20))


@pytest.fixture
def no_synchronising() -> Iterator[None]:
    """PyTorch raises where it waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_package_never_synchronises(
    kernels: CudaKernels, timed: Timed, no_synchronising: None
) -> None:
    """While the stream is on hold, whatever waits for it would wait until the hold gives up."""
    x = torch.ones(16, device="cuda")
    x.add_(1).sum()  # loaded before
    with timed() as recording, kernels.held():
        begin = time.monotonic()
        for _ in range(50):
            with gpu_step(), gpu_phase("outer"), gpu_phase("inner"):
                x.add_(1)
        recording.flush(0)
        recording.snapshot()
        assert time.monotonic() - begin < 2
        with pytest.raises(RuntimeError, match="synchroniz"):
            x.sum().item()
    assert len(recording.run.spans) == 100


def test_a_warning_free_run_of_many_steps(kernels: CudaKernels, timed: Timed) -> None:
    """More events than there are at once, harvested as it goes."""
    steps = 4000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with timed() as recording:
            for step in range(steps):
                with gpu_step(), gpu_phase("a"):
                    kernels.nothing()
                if step % 100 == 0:
                    torch.cuda.synchronize()
            torch.cuda.synchronize()
            assert recording.flush(FLUSH_S)
    run = recording.run
    assert len(run.spans) == steps
    timed_spans = np.count_nonzero(run.span_device_ns >= 0)
    assert timed_spans + run.dropped["device_ring_full"] == steps
    assert timed_spans >= 4096 // 2


# --- in processes of their own ---

PREAMBLE = """
import math, os, sys, time, warnings
import torch
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
"""

TRAINING = (
    PREAMBLE
    + """
from tests.helpers.cuda_kernels import CudaKernels
kernels = CudaKernels()
with pig.record(device_timing_budget=math.inf) as recording:
    for _ in range(200):
        with gpu_step(), gpu_phase("work"):
            kernels.spin(500_000)
    torch.cuda.synchronize()
    assert recording.flush(5)
assert len(recording.run.spans) == 200
assert (recording.run.span_device_ns >= 500_000).all()
"""
)


def test_two_processes_at_once() -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run_script, TRAINING) for _ in range(2)]:
            done.result()


def test_device_times_begin_when_cuda_is_initialised_after_the_start() -> None:
    run_script(
        PREAMBLE
        + """
recording = pig.start(device_timing_budget=math.inf)
with gpu_phase("before"):
    pass
assert not torch.cuda.is_initialized()
x = torch.ones(1 << 20, device="cuda")
deadline = time.monotonic() + 20
while True:
    with gpu_step(), gpu_phase("after"):
        x.mul_(1.0)
    torch.cuda.synchronize()
    run = recording.snapshot()
    if (run.span_device_ns >= 0).any() or time.monotonic() > deadline:
        break
    time.sleep(0.01)
run = recording.stop()
before = run.spans["path"] == run.paths.index("before")
assert (run.span_device_ns[before] == -1).all()
assert (run.span_device_ns[~before] >= 0).any()
"""
    )


def test_a_fork_of_a_process_with_cuda() -> None:
    run_script(
        PREAMBLE
        + """
# Python 3.12 and later warn of every fork beside a thread, such as the recorder's own.
warnings.filterwarnings("ignore", category=DeprecationWarning)
x = torch.ones(1 << 20, device="cuda")
recording = pig.start(device_timing_budget=math.inf)
with gpu_step(), gpu_phase("parent"):
    x.mul_(1.0)
child = os.fork()
if child == 0:
    code = 1
    try:
        with gpu_phase("nobody's"):
            pass
        with pig.record() as own:
            with gpu_step(), gpu_phase("child"):
                pass
        assert len(own.run.spans) == 1 and own.run.span_device_ns[0] == -1
        code = 0
    finally:
        os._exit(code)
with gpu_step(), gpu_phase("parent"):
    x.mul_(1.0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
torch.cuda.synchronize()
assert recording.flush(5)
run = recording.stop()
assert len(run.spans) == 2 and (run.span_device_ns >= 0).all()
"""
    )


@pytest.mark.parametrize(("mode", "side_is_timed"), [("auto", False), ("force", True)])
def test_one_connection_keeps_device_timing_off_side_streams(
    mode: str, side_is_timed: bool
) -> None:
    run_script(
        PREAMBLE
        + """
mode, side_is_timed = sys.argv[1], sys.argv[2] == "True"
x = torch.ones(1 << 20, device="cuda")
side = torch.cuda.Stream()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with pig.record(device_timing=mode, device_timing_budget=math.inf) as recording:
        for _ in range(10):
            with gpu_phase("main"):
                x.mul_(1.0)
            with torch.cuda.stream(side), gpu_phase("side"):
                x.mul_(1.0)
            time.sleep(0.03)
        torch.cuda.synchronize()
        assert recording.flush(5)
        for _ in range(1000):
            pass  # where the interpreter runs what is pending, the warning among it
run = recording.run
on_side = run.spans["path"] == run.paths.index("side")
assert (run.span_device_ns[~on_side] >= 0).all()
assert (run.span_device_ns[on_side] >= 0).all() == side_is_timed
assert run.dropped["device_side_stream"] == (0 if side_is_timed else 10)
ours = [str(w.message) for w in caught if "CUDA_DEVICE_MAX_CONNECTIONS=1" in str(w.message)]
assert len(ours) == (0 if side_is_timed else 1), ours
""",
        mode,
        side_is_timed,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )
