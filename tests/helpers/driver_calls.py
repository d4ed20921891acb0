# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's functions as the code under test calls them: from C, and without the
interpreter's lock."""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tests.helpers.simulated_cuda import (
    LIBRARY,
    CaptureMode,
    Result,
    SimulatedCuda,
    SimulatedStream,
)

_ABI_VERSION = 12000  # of the functions in cuda/driver.h


class Driver:
    """The driver's own functions, as the code under test calls them."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))

    def __getattr__(self, name: str) -> Callable[..., int]:
        address = ctypes.c_void_p()
        self._library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(address), _ABI_VERSION, 0, None
        )
        function: Callable[..., int] = (
            ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
            if address.value is not None
            else getattr(self._library, name)  # the loader itself, and what the tests control it by
        )
        return function

    def event(self, flags: int = 0) -> int:
        event = ctypes.c_uint64()
        assert self.cuEventCreate(ctypes.byref(event), flags) == Result.SUCCESS
        return event.value

    def record(self, event: int, stream: SimulatedStream) -> int:
        return self.cuEventRecord(ctypes.c_uint64(event), ctypes.c_uint64(stream.handle))

    def query(self, event: int) -> int:
        return self.cuEventQuery(ctypes.c_uint64(event))

    def elapsed(self, begin: int, end: int) -> float:
        result, milliseconds = self.try_elapsed(begin, end)
        assert result == Result.SUCCESS
        return milliseconds

    def try_elapsed(self, begin: int, end: int) -> tuple[int, float]:
        milliseconds = ctypes.c_float(-1)
        result = self.cuEventElapsedTime(
            ctypes.byref(milliseconds), ctypes.c_uint64(begin), ctypes.c_uint64(end)
        )
        return result, milliseconds.value

    def is_capturing(self, stream: SimulatedStream) -> tuple[int, int]:
        status = ctypes.c_int(-1)
        result = self.cuStreamIsCapturing(ctypes.c_uint64(stream.handle), ctypes.byref(status))
        return result, status.value

    def exchange_mode(self, mode: CaptureMode) -> CaptureMode:
        value = ctypes.c_int(mode)
        assert self.cuThreadExchangeStreamCaptureMode(ctypes.byref(value)) == Result.SUCCESS
        return CaptureMode(value.value)


driver = Driver()


class Kernels:
    """A loaded library."""

    def __init__(self) -> None:
        library = ctypes.c_uint64()
        arguments = (ctypes.byref(library), b"code", None, None, 0, None, None, 0)
        self.result = driver.cuLibraryLoadData(*arguments)
        self._library = library

    def find(self, name: bytes) -> int:
        kernel = ctypes.c_uint64()
        assert (
            driver.cuLibraryGetKernel(ctypes.byref(kernel), self._library, name) == Result.SUCCESS
        )
        return kernel.value

    def launch(self, kernel: int, stream: SimulatedStream, *parameters: int, grid: int = 2) -> int:
        values = [ctypes.c_uint64(parameter) for parameter in parameters]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (grid, 1, 1, 128, 1, 1, 64)
        handle = ctypes.c_uint64(stream.handle)
        return driver.cuLaunchKernel(ctypes.c_uint64(kernel), *shape, handle, addresses, None)


class OnThread:
    """A call on a thread of its own, with the test's context current there."""

    def __init__(self, cuda: SimulatedCuda, call: Callable[[], int]) -> None:
        context = cuda.current_context
        self._answer: Future[int] = Future()

        def run() -> None:
            try:
                cuda.make_current(context)
                self._answer.set_result(call())
            except BaseException as error:
                self._answer.set_exception(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def returned(self) -> bool:
        return self._answer.done()

    def answer(self) -> int:
        """Waits for it. Raises what the call has raised."""
        self._thread.join()
        return self._answer.result()
