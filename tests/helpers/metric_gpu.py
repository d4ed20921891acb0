# SPDX-License-Identifier: Apache-2.0
"""Accumulators on a GPU that is simulated: tensors in host memory pass for the device's, and the
kernels are the same arithmetic on the CPU, run at their launch. All between the two is real.

During a capture, a kernel and the zeros of a new tensor are nodes of the graph, as on a GPU: they
run at each launch of it. Other torch operations run once, at the capture, and the zeros are there
for them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import _simulated_cuda as simulated  # type: ignore[import-not-found]
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import disk_cache
from pyinstrument_gpu.metrics import kernels
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import device_memory
from tests.helpers.driver_calls import driver
from tests.helpers.simulated_cuda import (
    LEGACY_STREAM,
    Result,
    SimulatedCuda,
    SimulatedStream,
    simulated_cuda,
)

FAKE_NVRTC = Path(simulated.__file__).with_name("inject_nvrtc.so")
"""It compiles for the simulated GPU, whose driver takes any code."""

BLOCKING_OR_ALLOCATING = (
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuMemHostAlloc",
    "cuLibraryLoadData",
)


@contextlib.contextmanager
def metric_gpu(devices: int = 1, *, ready: bool = True) -> Iterator[SimulatedCuda]:
    """All tensors are on device 0 of it, unless `set_device_of_tensors` says otherwise.

    Args:
        devices: how many it has.
        ready: the kernels are loaded before anything else happens. Otherwise the first update has
            the fake NVRTC compile them, and the test waits for them.
    """
    api = torch.Tensor.__dlpack_c_exchange_api__
    pig.MetricAccumulator()  # the first one hands over torch's own
    with simulated_cuda(devices) as cuda, contextlib.ExitStack() as patches:
        simulated.run_metric_kernels()
        streams_recorded.clear()
        on_device, threads = simulated.device_api_capsule(api), torch.get_num_threads
        native.set_torch(torch.Tensor, on_device, threads, device_memory.record_stream)
        patches.callback(native.set_torch, torch.Tensor, api, threads, device_memory.record_stream)
        request = kernels.request
        replacements: list[Any] = [
            mock.patch.dict(os.environ, {"PYINSTRUMENT_GPU_LIBNVRTC": str(FAKE_NVRTC)}),
            mock.patch.object(device_memory, "on_cuda", lambda device: True),
            mock.patch.object(kernels, "_threads", {}),
            mock.patch.object(kernels, "request", lambda _: request(_device_of_tensors)),
            mock.patch.object(disk_cache, "cache_directory", lambda: Path(os.devnull, "none")),
            mock.patch.object(
                torch.cuda, "current_stream", lambda device: _current_stream().handle
            ),
            mock.patch.object(torch.cuda, "Event", _Event),
            mock.patch.object(torch.Tensor, "record_stream", _record_stream),
            mock.patch.object(torch.cuda, "is_current_stream_capturing", _is_capturing),
            mock.patch.object(torch.cuda, "device", contextlib.nullcontext),
            mock.patch.object(torch, "zeros", _zeros_of(torch.zeros)),
        ]
        for each in replacements:
            patches.enter_context(each)
        set_device_of_tensors(0)
        if ready:
            with mock.patch.object(kernels, "compiled", lambda capability: b"code"):
                for device in range(devices):
                    request(device)
                wait_for_kernels()
        patches.callback(wait_for_kernels)
        yield cuda


def _current_stream() -> SimulatedStream:
    return SimulatedStream(simulated.current_stream(_device_of_tensors))


class _Event:
    def __init__(self) -> None:
        self._event = driver.event()

    def record(self, stream: int) -> None:
        assert driver.record(self._event, SimulatedStream(stream)) == Result.SUCCESS

    def query(self) -> bool:
        return driver.query(self._event) == Result.SUCCESS

    def wait(self, stream: int) -> None:
        SimulatedStream(stream).wait_event(self._event)


def _is_capturing() -> bool:
    stream = _current_stream()
    return stream.handle != LEGACY_STREAM and stream.is_capturing


def _zeros_of(zeros: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    captured = []

    def replacement(*size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        tensor = zeros(*size, device=device, **options)
        # The tests' own tensors name no device. They are there before anything runs on it.
        if device is not None and _is_capturing():
            captured.append(tensor)  # a graph keeps the memory that was allocated for it
            _current_stream().memset(tensor.data_ptr(), tensor.nbytes)
        return tensor

    return replacement


def wait_for_kernels() -> None:
    """Until those that were requested are loaded, or known not to come."""
    assert kernels.wait(timeout_s=600)


streams_recorded: list[tuple[int, int]] = []
"""The tensors, by their addresses, and streams that were recorded with PyTorch's allocator."""


def _record_stream(tensor: torch.Tensor, stream: int) -> None:
    streams_recorded.append((tensor.data_ptr(), stream))


_device_of_tensors = 0


def set_device_of_tensors(device: int) -> None:
    """On which device all tensors are from now on."""
    global _device_of_tensors
    _device_of_tensors = device
    simulated.set_device_of_tensors(device)
