# SPDX-License-Identifier: Apache-2.0
"""Calls of the simulated driver that are stuck: on a full stream, or behind its one lock."""

import ctypes
from collections.abc import Callable

import pytest

from tests.helpers.driver_calls import Kernels, OnThread, driver
from tests.helpers.simulated_cuda import (
    CaptureMode,
    Result,
    SimulatedCuda,
    SimulatedCudaError,
    SimulatedStream,
)


def _enqueue(enqueue: Callable[[], None]) -> int:
    """What the driver answers to the test's program."""
    try:
        enqueue()
    except SimulatedCudaError as error:
        return error.result
    return Result.SUCCESS


@pytest.mark.parametrize("what", ["record", "kernel", "launch", "hang", "wait", "memset"])
def test_whatever_is_enqueued_on_a_full_stream_blocks(
    cuda: SimulatedCuda, stream: SimulatedStream, what: str
) -> None:
    event, kernels, memory = driver.event(), Kernels(), ctypes.c_uint64()
    kernel = kernels.find(b"kernel")
    other = cuda.devices[0].create_stream()
    other.hang()
    driver.record(event, other)
    enqueues = {
        "record": lambda: driver.record(event, stream),
        "kernel": lambda: kernels.launch(kernel, stream),
        "launch": lambda: _enqueue(lambda: stream.launch(1)),
        "hang": lambda: _enqueue(stream.hang),
        "wait": lambda: _enqueue(lambda: stream.wait_event(event)),
        "memset": lambda: _enqueue(lambda: stream.memset(ctypes.addressof(memory), 8)),
    }
    cuda.devices[0].set_queue_depth(1)
    stream.hang()
    enqueue = OnThread(cuda, enqueues[what])
    cuda.wait_until_blocked()
    assert not enqueue.returned
    stream.release()
    assert enqueue.answer() == Result.SUCCESS


def test_what_is_captured_needs_no_room(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    cuda.devices[0].set_queue_depth(1)
    stream.hang()
    with stream.capture():
        assert driver.record(driver.event(), stream) == Result.SUCCESS


def test_as_many_go_on_as_there_is_room_for(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    cuda.devices[0].set_queue_depth(2)
    for _ in range(2):
        stream.launch(100)
    launches = [OnThread(cuda, lambda: _enqueue(lambda: stream.launch(100))) for _ in range(3)]
    for stuck in (3, 2, 1, 0):
        cuda.wait_until_blocked(stuck)
        assert stream.pending == 2
        cuda.advance(100)
    assert [launch.answer() for launch in launches] == [Result.SUCCESS] * 3
    assert stream.pending == 1


def test_nobody_is_stuck(cuda: SimulatedCuda) -> None:
    with pytest.raises(TimeoutError, match="0 instead of 1 threads were stuck"):
        cuda.wait_until_blocked(timeout_s=0)


def test_a_stuck_call_gives_up_in_the_end(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    """A test may have nobody left who could free it."""
    cuda.devices[0].set_queue_depth(1)
    cuda.set_stuck_limit(0)
    stream.hang()
    assert driver.record(driver.event(), stream) == Result.DEINITIALIZED
    assert [text.split(":")[0] for text in cuda.violations] == [
        "a call was stuck until its time was up"
    ]
    assert cuda.blocked_calls == 0


# The driver's one lock


def test_behind_a_stuck_call_the_others_block(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    cuda.devices[0].set_queue_depth(1)
    cuda.set_driver_lock()
    event = driver.event()
    other = cuda.devices[0].create_stream()
    assert driver.query(event) == Result.SUCCESS  # nobody is stuck yet
    stream.hang()
    record = OnThread(cuda, lambda: driver.record(event, stream))
    cuda.wait_until_blocked()
    query = OnThread(cuda, lambda: driver.query(event))
    launch = OnThread(cuda, lambda: _enqueue(lambda: other.launch(1)))
    cuda.wait_until_blocked(3)
    assert not any(call.returned for call in (record, query, launch))
    stream.release()
    assert [call.answer() for call in (record, query, launch)] == [Result.SUCCESS] * 3


def test_what_touches_nothing_shared_never_blocks(
    cuda: SimulatedCuda, stream: SimulatedStream
) -> None:
    cuda.devices[0].set_queue_depth(1)
    cuda.set_driver_lock()
    event = driver.event()
    stream.hang()
    record = OnThread(cuda, lambda: driver.record(event, stream))
    cuda.wait_until_blocked()
    text, number, context = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_uint64()
    assert driver.cuGetErrorName(700, ctypes.byref(text)) == Result.SUCCESS
    assert driver.cuGetErrorString(700, ctypes.byref(text)) == Result.SUCCESS
    assert driver.cuDriverGetVersion(ctypes.byref(number)) == Result.SUCCESS
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == Result.SUCCESS
    assert driver.exchange_mode(CaptureMode.GLOBAL) is CaptureMode.GLOBAL
    assert not record.returned
    stream.release()
    assert record.answer() == Result.SUCCESS
