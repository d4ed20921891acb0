# SPDX-License-Identifier: Apache-2.0
"""Which calls of the simulated driver need a current context, and which return its error."""

import ctypes
from collections.abc import Callable

import pytest

from tests.helpers.driver_calls import Kernels, driver
from tests.helpers.simulated_cuda import Result, SimulatedCuda, SimulatedStream

SLOT = ctypes.c_uint64()
ON_DEVICE = 0


class Things:
    """What calls are about, all of one context."""

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        self.context = SimulatedCuda().current_context
        self.event = driver.event()
        driver.record(self.event, stream)
        self.kernels = Kernels()
        self.kernel = self.kernels.find(b"kernel")
        self.memory = ctypes.c_void_p()
        assert driver.cuMemHostAlloc(ctypes.byref(self.memory), ctypes.c_size_t(64), 3) == 0


@pytest.fixture
def things(stream: SimulatedStream) -> Things:
    return Things(stream)


def _on(handle: int) -> SimulatedStream:
    return SimulatedStream(handle)


def _state() -> int:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    return driver.cuDevicePrimaryCtxGetState(ON_DEVICE, ctypes.byref(flags), ctypes.byref(active))


def _primary() -> int:
    result = driver.cuDevicePrimaryCtxRetain(ctypes.byref(SLOT), ON_DEVICE)
    return result or driver.cuDevicePrimaryCtxRelease(ON_DEVICE)


def _attribute() -> int:
    return driver.cuDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 75, ON_DEVICE)


def _load(_: Things) -> int:
    return Kernels().result


CALLS_OF_THE_CURRENT_CONTEXT: dict[str, Callable[[Things], int]] = {
    "cuCtxGetDevice": lambda _: driver.cuCtxGetDevice(ctypes.byref(ctypes.c_int())),
    "cuCtxSynchronize": lambda _: driver.cuCtxSynchronize(),
    "cuStreamCreate": lambda _: driver.cuStreamCreate(ctypes.byref(SLOT), 1),
    "cuStreamIsCapturing 0": lambda _: driver.is_capturing(_on(0))[0],
    "cuStreamIsCapturing 1": lambda _: driver.is_capturing(_on(1))[0],
    "cuStreamIsCapturing 2": lambda _: driver.is_capturing(_on(2))[0],
    "cuEventCreate": lambda _: driver.cuEventCreate(ctypes.byref(SLOT), 0),
    "cuEventRecord 0": lambda t: driver.record(t.event, _on(0)),
    "cuEventRecord 1": lambda t: driver.record(t.event, _on(1)),
    "cuEventRecord 2": lambda t: driver.record(t.event, _on(2)),
    "cuEventRecord": lambda t: driver.record(t.event, t.stream),
    "cuEventElapsedTime": lambda t: driver.try_elapsed(t.event, t.event)[0],
    "cuKernelGetFunction": lambda t: driver.cuKernelGetFunction(
        ctypes.byref(SLOT), ctypes.c_uint64(t.kernel)
    ),
    "cuLaunchKernel": lambda t: t.kernels.launch(t.kernel, t.stream),
    "cuMemHostAlloc": lambda _: driver.cuMemHostAlloc(ctypes.byref(SLOT), ctypes.c_size_t(64), 3),
    "cuMemHostGetDevicePointer": lambda t: driver.cuMemHostGetDevicePointer(
        ctypes.byref(SLOT), t.memory, 0
    ),
    "cuMemFreeHost": lambda t: driver.cuMemFreeHost(t.memory),
}

CALLS_OF_A_HANDLE: dict[str, Callable[[Things], int]] = {
    "cuStreamIsCapturing": lambda t: driver.is_capturing(t.stream)[0],
    "cuStreamSynchronize": lambda t: driver.cuStreamSynchronize(ctypes.c_uint64(t.stream.handle)),
    "cuEventQuery": lambda t: driver.query(t.event),
    "cuEventSynchronize": lambda t: driver.cuEventSynchronize(ctypes.c_uint64(t.event)),
}

CALLS_OF_NO_CONTEXT: dict[str, Callable[[Things], int]] = {
    "cuDevicePrimaryCtxGetState": lambda _: _state(),
    "cuDevicePrimaryCtxRetain": lambda _: _primary(),
    "cuDeviceGetAttribute": lambda _: _attribute(),
    "cuCtxGetCurrent": lambda _: driver.cuCtxGetCurrent(ctypes.byref(SLOT)),
    "cuCtxGetId": lambda t: driver.cuCtxGetId(ctypes.c_uint64(t.context), ctypes.byref(SLOT)),
}


# Without a current context


@pytest.mark.parametrize("call", CALLS_OF_THE_CURRENT_CONTEXT)
def test_a_thread_without_a_context_may_not(cuda: SimulatedCuda, things: Things, call: str) -> None:
    cuda.make_current(0)
    assert CALLS_OF_THE_CURRENT_CONTEXT[call](things) == Result.INVALID_CONTEXT
    assert cuda.violations == []


@pytest.mark.parametrize("call", CALLS_OF_A_HANDLE | CALLS_OF_NO_CONTEXT | {"load": _load})
def test_a_thread_without_a_context_may(cuda: SimulatedCuda, things: Things, call: str) -> None:
    """A handle names its context itself."""
    calls = CALLS_OF_A_HANDLE | CALLS_OF_NO_CONTEXT | {"load": _load}
    cuda.make_current(0)
    assert calls[call](things) == Result.SUCCESS


def test_an_event_is_recorded_where_another_context_is_current(
    cuda: SimulatedCuda, things: Things
) -> None:
    """Event and stream must be of one context, and it need not be the current one. The default
    streams are those of the current one."""
    cuda.make_current(cuda.devices[0].create_context())
    assert driver.record(things.event, things.stream) == Result.SUCCESS
    for default in (0, 1, 2):
        assert driver.record(things.event, _on(default)) == Result.INVALID_HANDLE
    # A kernel is launched into the current context.
    assert things.kernels.launch(things.kernel, things.stream) == Result.INVALID_HANDLE


# Errors that stick


@pytest.mark.parametrize("call", CALLS_OF_THE_CURRENT_CONTEXT | CALLS_OF_A_HANDLE | {"load": _load})
def test_an_error_sticks_to_its_context(cuda: SimulatedCuda, things: Things, call: str) -> None:
    calls = CALLS_OF_THE_CURRENT_CONTEXT | CALLS_OF_A_HANDLE | {"load": _load}
    cuda.poison(cuda.current_context, Result.ILLEGAL_ADDRESS)
    assert [calls[call](things) for _ in range(2)] == [Result.ILLEGAL_ADDRESS] * 2


@pytest.mark.parametrize("call", CALLS_OF_NO_CONTEXT)
def test_what_touches_no_context_knows_of_no_error(
    cuda: SimulatedCuda, things: Things, call: str
) -> None:
    cuda.poison(cuda.current_context, Result.ILLEGAL_ADDRESS)
    assert CALLS_OF_NO_CONTEXT[call](things) == Result.SUCCESS


def test_other_contexts_do_not_have_it(cuda: SimulatedCuda, things: Things) -> None:
    cuda.poison(cuda.current_context, Result.LAUNCH_FAILED)
    cuda.make_current(cuda.devices[0].create_context())
    other = Things(cuda.devices[0].create_stream(context=cuda.current_context))
    assert driver.query(other.event) == Result.SUCCESS
    assert driver.query(things.event) == Result.LAUNCH_FAILED


def test_it_goes_with_its_context(cuda: SimulatedCuda, things: Things) -> None:
    cuda.poison(cuda.current_context, Result.ILLEGAL_ADDRESS)
    cuda.devices[0].deactivate()
    assert driver.query(things.event) == Result.CONTEXT_IS_DESTROYED
    cuda.devices[0].activate()
    assert driver.query(driver.event()) == Result.SUCCESS


@pytest.mark.parametrize("reuse", [True, False])
def test_a_reset_device_has_another_context_perhaps_with_the_same_handle(
    cuda: SimulatedCuda, things: Things, reuse: bool
) -> None:
    def id_of(context: int) -> int:
        assert driver.cuCtxGetId(ctypes.c_uint64(context), ctypes.byref(SLOT)) == Result.SUCCESS
        return SLOT.value

    before = id_of(things.context)
    cuda.reuse_handles(reuse)
    cuda.devices[0].deactivate()
    destroyed = driver.cuCtxGetId(ctypes.c_uint64(things.context), ctypes.byref(SLOT))
    assert destroyed == Result.CONTEXT_IS_DESTROYED
    after = cuda.devices[0].activate()
    assert (after == things.context) is reuse
    assert id_of(after) != before
    assert driver.query(things.event) == Result.CONTEXT_IS_DESTROYED
