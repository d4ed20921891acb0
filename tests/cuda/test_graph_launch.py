# SPDX-License-Identifier: Apache-2.0
"""Graphs of the simulated driver: what was captured runs at each launch."""

import ctypes

import pytest

from tests.helpers.driver_calls import Kernels, OnThread, driver
from tests.helpers.simulated_cuda import Result, SimulatedCuda, SimulatedCudaError, SimulatedStream

torch = pytest.importorskip("torch")

from tests.helpers.metric_gpu import metric_gpu  # noqa: E402


def _add(addresses: list[int]) -> None:
    """A kernel: adds its second parameter to where its first one points."""
    target, amount = (ctypes.c_uint64.from_address(address).value for address in addresses)
    ctypes.c_uint64.from_address(target).value += amount


class Adder:
    """Adds 2 to a total, which begins at 40."""

    def __init__(self, cuda: SimulatedCuda) -> None:
        cuda.on_launch("add", _add, parameters=2)
        self._kernels = Kernels()
        self._kernel = self._kernels.find(b"add")
        self._total = ctypes.c_uint64(40)
        self.address = ctypes.addressof(self._total)

    def launch(self, stream: SimulatedStream) -> None:
        # The parameters are gone when this returns: a graph has copies.
        assert self._kernels.launch(self._kernel, stream, self.address, 2) == Result.SUCCESS

    @property
    def total(self) -> int:
        return self._total.value

    @total.setter
    def total(self, value: int) -> None:
        self._total.value = value


@pytest.fixture
def adder(cuda: SimulatedCuda) -> Adder:
    return Adder(cuda)


def test_memory_that_was_allocated_in_a_capture_holds_anything_at_each_launch(
    cuda: SimulatedCuda, stream: SimulatedStream, adder: Adder
) -> None:
    stream.begin_capture()
    stream.allocate(adder.address, 8)
    graph = stream.end_capture()
    anything = adder.total
    assert anything != 40
    adder.total = 7
    graph.launch(stream)
    assert adder.total == anything


def test_a_graph_is_one_entry_that_takes_as_long_as_its_nodes(
    cuda: SimulatedCuda, stream: SimulatedStream, adder: Adder
) -> None:
    cuda.set_kernel_duration("add", 30)
    stream.begin_capture()
    adder.launch(stream)
    stream.launch(70)
    driver.record(driver.event(), stream)
    graph = stream.end_capture()
    assert graph.entries == 3
    graph.launch(stream)
    cuda.advance(99)
    assert stream.pending == 1
    cuda.advance(1)
    assert stream.pending == 0


def test_a_graph_needs_room(cuda: SimulatedCuda, stream: SimulatedStream, adder: Adder) -> None:
    stream.begin_capture()
    adder.launch(stream)
    graph = stream.end_capture()
    cuda.devices[0].set_queue_depth(1)
    stream.hang()

    def launch() -> int:
        graph.launch(stream)
        return Result.SUCCESS

    stuck = OnThread(cuda, launch)
    cuda.wait_until_blocked()
    assert adder.total == 40
    stream.release()
    assert stuck.answer() == Result.SUCCESS
    assert adder.total == 42


def test_a_graph_belongs_to_its_context(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    stream.begin_capture()
    graph = stream.end_capture()
    foreign = cuda.devices[0].create_stream(context=cuda.devices[0].create_context())
    with pytest.raises(SimulatedCudaError, match="INVALID_HANDLE"):
        graph.launch(foreign)
    cuda.reset()
    with pytest.raises(SimulatedCudaError, match="INVALID_HANDLE"):
        graph.launch(cuda.default_stream)


def test_zeros_on_the_device_that_passes_for_a_gpu() -> None:
    with metric_gpu() as cuda:
        stream = cuda.devices[0].create_stream()
        with stream.as_current():
            assert not torch.cuda.is_current_stream_capturing()
            before = torch.zeros(4, device="cpu")
            stream.begin_capture()
            assert torch.cuda.is_current_stream_capturing()
            inside = torch.zeros(4, device="cpu")
            graph = stream.end_capture()
        assert graph.entries == 1
        for tensor in (before, inside):
            tensor.fill_(1)
        graph.launch(stream)
        assert (before.tolist(), inside.tolist()) == ([1] * 4, [0] * 4)
