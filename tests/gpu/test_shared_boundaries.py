# SPDX-License-Identifier: Apache-2.0
"""What sharing a boundary rests on: nothing can be enqueued in the time in which one is shared."""

from collections.abc import Callable
from time import perf_counter_ns

import _call_loop  # type: ignore[import-not-found]
import pytest
import torch

from pyinstrument_gpu.recording.device_timing import SHARE_BOUNDARIES_NS
from tests.helpers.cuda_kernels import CudaKernels

BATCHES, CALLS = 100, 100  # the queue holds about a thousand


def fastest_ns(batch: Callable[[], list[int]]) -> int:
    fastest = min(batch())
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        fastest = min(fastest, *batch())
    return fastest


@pytest.mark.parametrize("enqueue", ["cuLaunchKernel", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"])
def test_no_enqueue_of_the_driver_is_as_fast(kernels: CudaKernels, enqueue: str) -> None:
    memory = torch.zeros(64, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    arguments = {
        "cuLaunchKernel": kernels.launch_arguments("nothing"),
        "cuMemsetD8Async": [memory.data_ptr(), 0, 4, stream],
        "cuMemcpyDtoDAsync_v2": [memory.data_ptr(), memory.data_ptr() + 32, 4, stream],
    }[enqueue]
    address = kernels.driver.address(enqueue)
    assert _call_loop.answer(address, arguments) == 0
    assert fastest_ns(lambda: _call_loop.each_ns(address, arguments, CALLS)) > SHARE_BOUNDARIES_NS


def test_no_enqueue_of_pytorch_is_as_fast(gpu: None) -> None:
    x = torch.zeros(1, device="cuda")
    add_, one = torch.ops.aten.add_.Scalar, 1

    def batch() -> list[int]:
        durations_ns = []
        for _ in range(CALLS):
            begin_ns = perf_counter_ns()
            add_(x, one)
            durations_ns.append(perf_counter_ns() - begin_ns)
        return durations_ns

    assert fastest_ns(batch) > SHARE_BOUNDARIES_NS


def test_a_graphs_replay_is_not_as_fast(kernels: CudaKernels) -> None:
    """One launch of a whole graph, by the driver's own call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.nothing()

    def batch() -> list[int]:
        durations_ns = []
        for _ in range(CALLS):
            begin_ns = perf_counter_ns()
            graph.replay()
            durations_ns.append(perf_counter_ns() - begin_ns)
        return durations_ns

    assert fastest_ns(batch) > SHARE_BOUNDARIES_NS
