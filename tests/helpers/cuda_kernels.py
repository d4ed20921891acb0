# SPDX-License-Identifier: Apache-2.0
"""Kernels whose times are known, launched through the driver on PyTorch's streams.

Needs a GPU. Every kernel is launched once when they are loaded: the driver may wait for the device
before the first launch of one, which behind a `Hold` would be forever.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

_PTX = Path(__file__).with_name("cuda_kernels.ptx")
_LONGEST_HOLD_NS = 4_000_000_000
_FLAGS = 4096


class CudaError(Exception):
    """The driver refused a call of a test or benchmark."""


class CudaDriver:
    """The driver's functions, by name; a call that fails raises."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(library)

    def address(self, name: str) -> int:
        """Where a function is, for a loop in C."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Arguments are ctypes values."""
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise CudaError(f"{name} answered {result}")


class Hold:
    """Keeps a stream from going on until it is released, four seconds at most."""

    def __init__(self, flag_address: int) -> None:
        self._flag = ctypes.c_uint32.from_address(flag_address)

    def release(self) -> None:
        self._flag.value = 1


class CudaKernels:
    """The kernels of `cuda_kernels.ptx`. They go to the calling thread's current stream; a new
    thread has to use its device before the first."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # PyTorch's context, current on this thread
        self.driver = CudaDriver()
        module = ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), _PTX.read_bytes() + b"\0")
        self._functions = {}
        for name in ("nothing", "stamp", "spin", "hold"):
            function = ctypes.c_void_p()
            self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self._functions[name] = function
        # Pinned, so the device reads what the host writes. Used in turn: a hold that was released
        # may still have to see it.
        self._flags = torch.zeros(_FLAGS, dtype=torch.int32).pin_memory()
        self._holds = 0
        self._clock = torch.zeros(256, dtype=torch.int64, device="cuda")
        self.nothing()
        self.stamp(self._clock, 0)
        self.spin(1_000)
        self.hold().release()
        torch.cuda.synchronize()

    def nothing(self) -> None:
        """Does nothing."""
        self._launch("nothing")

    def spin(self, duration_ns: int) -> None:
        """Takes so long, by the device's clock."""
        self._launch("spin", duration_ns)

    def stamp(self, stamps: torch.Tensor, index: int) -> None:
        """Writes the device's clock into `stamps[index]`: int64, on the device."""
        self._launch("stamp", stamps.data_ptr() + index * stamps.element_size())

    def hold(self) -> Hold:
        """What is enqueued on the stream from now on waits until it is released."""
        index = self._holds % _FLAGS
        self._holds += 1
        self._flags[index] = 0
        address = self._flags.data_ptr() + index * self._flags.element_size()
        self._launch("hold", address, _LONGEST_HOLD_NS)
        return Hold(address)

    @contextmanager
    def held(self) -> Iterator[Hold]:
        """Holds the current stream in the block; it goes on at the end at the latest."""
        hold = self.hold()
        try:
            yield hold
        finally:
            hold.release()

    def tick_ns(self) -> int:
        """The greatest common divisor of the steps of the device's clock."""
        count = len(self._clock)
        for index in range(count):
            self.stamp(self._clock, index)
        stamps = self._clock.tolist()
        return math.gcd(*(later - first for first, later in pairwise(stamps)))

    def launch_arguments(self, name: str) -> list[int]:
        """Those of cuLaunchKernel for a kernel without parameters, on the current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        return [self._functions[name].value or 0, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0]

    def _launch(self, name: str, *parameters: int) -> None:
        values = [ctypes.c_uint64(parameter) for parameter in parameters]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        size = (ctypes.c_uint(1),) * 6
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.driver.call(
            "cuLaunchKernel", self._functions[name], *size, ctypes.c_uint(0), stream, pointers, None
        )
