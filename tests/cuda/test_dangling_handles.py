# SPDX-License-Identifier: Apache-2.0
"""Handles of what was destroyed: the simulated driver tells who uses one."""

import ctypes

import pytest

from tests.helpers.driver_calls import driver
from tests.helpers.simulated_cuda import (
    Result,
    SimulatedCuda,
    SimulatedCudaError,
    SimulatedStream,
)


@pytest.mark.parametrize("call", ["record", "is_capturing", "synchronize"])
def test_a_destroyed_stream(cuda: SimulatedCuda, stream: SimulatedStream, call: str) -> None:
    event = driver.event()
    stream.destroy()
    calls = {
        "record": lambda: driver.record(event, stream),
        "is_capturing": lambda: driver.is_capturing(stream)[0],
        "synchronize": lambda: driver.cuStreamSynchronize(ctypes.c_uint64(stream.handle)),
    }
    assert cuda.violations == []
    assert calls[call]() == Result.INVALID_HANDLE
    assert cuda.violations == ["a call was given a destroyed stream"]


@pytest.mark.parametrize("call", ["record", "query", "elapsed", "wait"])
def test_a_destroyed_event(cuda: SimulatedCuda, stream: SimulatedStream, call: str) -> None:
    event, other = driver.event(), driver.event()
    for each in (event, other):
        driver.record(each, stream)
    cuda.destroy_event(event)

    def wait() -> int:
        with pytest.raises(SimulatedCudaError) as caught:
            stream.wait_event(event)
        return caught.value.result

    calls = {
        "record": lambda: driver.record(event, stream),
        "query": lambda: driver.query(event),
        "elapsed": lambda: driver.try_elapsed(other, event)[0],
        "wait": wait,
    }
    assert calls[call]() == Result.INVALID_HANDLE
    assert cuda.violations == ["a call was given a destroyed event"]


def test_what_never_was_a_handle_is_an_error_alone(cuda: SimulatedCuda) -> None:
    assert driver.query(12345) == Result.INVALID_HANDLE
    assert cuda.violations == []


def test_a_handle_may_be_given_to_a_new_stream(
    cuda: SimulatedCuda, stream: SimulatedStream
) -> None:
    event = driver.event()
    stream.launch(100)
    driver.record(event, stream)
    stream.destroy()
    assert cuda.devices[0].create_stream().handle != stream.handle
    cuda.reuse_handles()
    new = cuda.devices[0].create_stream()
    assert new.handle == stream.handle
    assert new.pending == 0
    assert driver.record(driver.event(), new) == Result.SUCCESS
    assert cuda.violations == []
    assert driver.query(event) == Result.NOT_READY  # the old one's work goes on
