# SPDX-License-Identifier: Apache-2.0
"""A GPU for the GPU benchmarks where there is none: its driver is the stub library, its kernels
take no time. What they print is no measurement, but the way to it is the same.

Importing this names the stub library to the code under test, so it belongs in a process of its own.
"""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import _phase_loop as native_loop  # type: ignore[import-not-found]
import numpy as np

from benchmarks.stub_device import LIBRARY
from pyinstrument_gpu.native import native

TICK_NS = 32


class FakeEvent:
    """Holds the time of a clock that kernels, which take no time, move on by what they should."""

    def __init__(self, gpu: "FakeGpu") -> None:
        self._gpu = gpu
        self._time_ns = 0

    def record(self) -> None:
        self._gpu.now_ns += TICK_NS
        self._time_ns = self._gpu.now_ns // TICK_NS * TICK_NS

    def elapsed_time(self, other: "FakeEvent") -> float:
        return float(np.float32((other._time_ns - self._time_ns) / 1e6))


class FakeStream:
    """On which everything is done at once."""

    def record_event(self) -> None:
        """There is none."""

    def wait_event(self, event: None) -> None:
        """It is done."""

    def wait_stream(self, stream: "FakeStream") -> None:
        """It is done."""


class FakeGpu:
    device = "cpu"

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self._status = ctypes.c_int64()
        self.now_ns = 0
        native.attach_device(native_loop.stub_exchange_api())

    def synchronize(self) -> None:
        pass

    def spin(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def nothing(self) -> None:
        pass

    def held(self) -> AbstractContextManager[object]:
        return nullcontext()

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def distance_ms(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end))

    def distance_without_query(self, begin: Any, end: Any) -> int | None:
        return 600

    def record_call(self) -> tuple[int, list[int]]:
        return self._address("cuEventRecord"), [1, 0]

    def capturing_call(self) -> tuple[int, list[int]]:
        return self._address("cuStreamIsCapturing"), [0, ctypes.addressof(self._status)]

    def enqueue_calls(self) -> dict[str, tuple[int, list[int]]]:
        return {"cuLaunchKernel": self.record_call()}

    def busy_side_stream(self) -> None:
        pass

    def replay_call(self) -> Callable[[], object]:
        return self.nothing

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], object]:
        return enqueue

    def begin_capture(self) -> None:
        pass

    def pinned(self, tensor: Any) -> Any:
        return tensor

    def side_stream(self) -> AbstractContextManager[FakeStream]:
        return nullcontext(FakeStream())

    def stream(self) -> FakeStream:
        return FakeStream()

    green_stream = current_stream = stream

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        return nullcontext()

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
