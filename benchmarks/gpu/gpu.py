# SPDX-License-Identifier: Apache-2.0
"""The GPU as the benchmarks use it. Tests give them another, which has no device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from tests.helpers.cuda_kernels import CudaKernels

_FREE = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0
"""With a null pointer, a host function that does nothing, as C has it."""

# Of cuda.h: CUdevResource is of 144 bytes or a little more; CU_DEV_RESOURCE_TYPE_SM;
# CU_GREEN_CTX_DEFAULT_STREAM; CU_STREAM_NON_BLOCKING.
_RESOURCE_BYTES = 1024
_PROCESSORS = _DEFAULT_STREAM = _NON_BLOCKING = 1


class Gpu(Protocol):
    """What the benchmarks need of a GPU."""

    device: str
    """As torch names it."""

    def synchronize(self) -> None: ...
    def spin(self, duration_ns: int) -> None:
        """Enqueues a kernel that takes so long."""

    def nothing(self) -> None:
        """Enqueues a kernel that does nothing."""

    def held(self) -> AbstractContextManager[object]:
        """What is enqueued in the block on the current stream waits for its end."""

    def event(self) -> Any:
        """A timing event, as torch's: record(), elapsed_time(other) in ms."""

    def distance_ms(self, begin: Any, end: Any) -> float:
        """Between two events, by the call that the recorder makes.

        Raises CudaError where the driver refuses.
        """

    def distance_without_query(self, begin: Any, end: Any) -> int | None:
        """What cuEventElapsedTime_v2 answers, as a number; None where the driver has none."""

    def record_call(self) -> tuple[int, list[int]]:
        """Address and arguments of the driver's bare record of a timing event on the current
        stream."""

    def capturing_call(self) -> tuple[int, list[int]]:
        """The same of the driver's question whether the stream is being captured."""

    def enqueue_calls(self) -> dict[str, tuple[int, list[int]]]:
        """The same of what the driver enqueues at little cost, by name."""

    def busy_side_stream(self) -> None:
        """A side stream gets a kernel of some milliseconds, and behind it the event for which the
        cuStreamWaitEvent among the `enqueue_calls` waits. For one that is complete nothing might
        be enqueued."""

    def replay_call(self) -> Callable[[], object]:
        """Launches a CUDA graph of one kernel that does nothing."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], object]:
        """Captures what is enqueued into a CUDA graph, and returns what replays it."""

    def begin_capture(self) -> None:
        """Begins a capture on the current stream, and nothing else."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in memory from which the device can copy on its own."""

    def side_stream(self) -> AbstractContextManager[Any]:
        """A stream of its own, current in the block, which is handed out."""

    def stream(self) -> Any:
        """A stream, as torch's."""

    def green_stream(self) -> Any:
        """A stream of a green context on a part of the device, as torch's.

        Raises CudaError where the driver has no green contexts.
        """

    def current_stream(self) -> Any:
        """The current one, as torch's."""

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        """Such a stream, current in the block again."""


class CudaGpu:
    """The first GPU."""

    device = "cuda"

    def __init__(self) -> None:
        self._kernels = CudaKernels()
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()
        self._awaited = torch.cuda.Event()
        self._awaited.record()
        self._side = torch.cuda.Stream()
        self._status = torch.zeros(1, dtype=torch.int64)
        self._memory = torch.zeros(64, dtype=torch.uint8, device="cuda")
        self.synchronize: Callable[[], None] = torch.cuda.synchronize
        self.spin = self._kernels.spin
        self.nothing = self._kernels.nothing
        self.held = self._kernels.held

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def distance_ms(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        distance = ctypes.c_float()
        self._kernels.driver.call(
            "cuEventElapsedTime",
            ctypes.byref(distance),
            ctypes.c_void_p(begin.cuda_event),
            ctypes.c_void_p(end.cuda_event),
        )
        return distance.value

    def distance_without_query(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> int | None:
        function = getattr(self._kernels.driver.library, "cuEventElapsedTime_v2", None)
        if function is None:
            return None
        events = ctypes.c_void_p(begin.cuda_event), ctypes.c_void_p(end.cuda_event)
        return int(function(ctypes.byref(ctypes.c_float()), *events))

    def record_call(self) -> tuple[int, list[int]]:
        stream = torch.cuda.current_stream().cuda_stream
        return self._kernels.driver.address("cuEventRecord"), [self._event.cuda_event, stream]

    def capturing_call(self) -> tuple[int, list[int]]:
        stream = torch.cuda.current_stream().cuda_stream
        address = self._kernels.driver.address("cuStreamIsCapturing")
        return address, [stream, self._status.data_ptr()]

    def enqueue_calls(self) -> dict[str, tuple[int, list[int]]]:
        stream = torch.cuda.current_stream().cuda_stream
        memory = self._memory.data_ptr()
        arguments = {
            "cuLaunchKernel": self._kernels.launch_arguments("nothing"),
            "cuMemsetD8Async": [memory, 0, 4, stream],
            "cuMemcpyDtoDAsync_v2": [memory, memory + 32, 4, stream],
            "cuStreamWriteValue64_v2": [stream, memory, 0, 0],
            "cuLaunchHostFunc": [stream, _FREE, 0],
            "cuStreamWaitEvent": [stream, self._awaited.cuda_event, 0],
        }
        return {name: (self._kernels.driver.address(name), arguments[name]) for name in arguments}

    def busy_side_stream(self) -> None:
        with torch.cuda.stream(self._side):
            self.spin(5_000_000)
            self._awaited.record()

    def replay_call(self) -> Callable[[], object]:
        return self.capture(self.nothing)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            enqueue()
        return graph.replay

    def begin_capture(self) -> None:
        torch.cuda.CUDAGraph().capture_begin()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def green_stream(self) -> torch.cuda.ExternalStream:
        call = self._kernels.driver.call
        device, groups = ctypes.c_int(), ctypes.c_uint(1)
        all_, part, rest = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(3))
        description, context, stream = (ctypes.c_void_p() for _ in range(3))
        call("cuCtxGetDevice", ctypes.byref(device))
        call("cuDeviceGetDevResource", device, all_, ctypes.c_int(_PROCESSORS))
        call("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), all_, rest, 0, 16)
        call("cuDevResourceGenerateDesc", ctypes.byref(description), part, ctypes.c_uint(1))
        call("cuGreenCtxCreate", ctypes.byref(context), description, device, _DEFAULT_STREAM)
        call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        return torch.cuda.ExternalStream(stream.value or 0)

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream()

    @contextmanager
    def side_stream(self) -> Iterator[torch.cuda.Stream]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            yield stream

    def on_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)


_WARM_UPS = 3


def ns_per_step(gpu: Gpu, step: Callable[[], None], steps: int) -> float:
    """What a step takes in a block of them that begins and ends with an idle device."""
    for _ in range(_WARM_UPS):
        step()
    gpu.synchronize()
    begin_ns = perf_counter_ns()
    for _ in range(steps):
        step()
    gpu.synchronize()
    return (perf_counter_ns() - begin_ns) / steps
