# SPDX-License-Identifier: Apache-2.0
"""Rules of the driver that a program learns late: of captures that meet, of events that nobody has
asked for, of kernels that are not loaded yet, of memory that is registered, and of a fork."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from tests.helpers.driver_calls import Kernels, OnThread, driver
from tests.helpers.simulated_cuda import Result, SimulatedCuda, SimulatedCudaError

DEVICE_MAP = 2


def test_two_captures_may_not_meet(cuda: SimulatedCuda) -> None:
    one, other = (cuda.devices[0].create_stream() for _ in range(2))
    event = driver.event()
    one.begin_capture()
    other.begin_capture()
    driver.record(event, one)
    with pytest.raises(SimulatedCudaError, match="CAPTURE_MERGE"):
        other.wait_event(event)
    assert cuda.captures_invalidated == 2


def elapsed_v2(begin: int, end: int) -> int:
    address = ctypes.c_void_p()
    driver.cuGetProcAddress_v2(b"cuEventElapsedTime", ctypes.byref(address), 12080, 0, None)
    assert address.value is not None
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
    milliseconds = ctypes.c_float()
    result: int = function(ctypes.byref(milliseconds), ctypes.c_uint64(begin), ctypes.c_uint64(end))
    return result


def test_the_second_elapsed_time_knows_what_was_asked_for(cuda: SimulatedCuda) -> None:
    begin, end = driver.event(), driver.event()
    for event in (begin, end):
        driver.record(event, cuda.default_stream)
    cuda.run_dry()
    assert elapsed_v2(begin, end) == Result.NOT_READY
    assert driver.query(end) == Result.SUCCESS
    assert elapsed_v2(begin, end) == Result.NOT_READY
    assert driver.query(begin) == Result.SUCCESS
    assert elapsed_v2(begin, end) == Result.SUCCESS
    driver.record(end, cuda.default_stream)
    assert elapsed_v2(begin, end) == Result.NOT_READY


@pytest.mark.parametrize("loaded_by", ["nothing", "a launch", "cuKernelGetFunction"])
def test_a_kernel_is_loaded_before_a_capture(cuda: SimulatedCuda, loaded_by: str) -> None:
    kernels, stream = Kernels(), cuda.devices[0].create_stream()
    kernel = kernels.find(b"kernel")
    if loaded_by == "a launch":
        assert kernels.launch(kernel, stream) == Result.SUCCESS
    elif loaded_by == "cuKernelGetFunction":
        function, handle = ctypes.c_uint64(), ctypes.c_uint64(kernel)
        assert driver.cuKernelGetFunction(ctypes.byref(function), handle) == Result.SUCCESS
    with stream.capture():
        assert kernels.launch(kernel, stream) == Result.SUCCESS
    assert len(cuda.violations) == (loaded_by == "nothing")


def test_registered_memory_has_another_address_on_the_device(cuda: SimulatedCuda) -> None:
    for flags, result in ((DEVICE_MAP, Result.SUCCESS), (0, Result.INVALID_VALUE)):
        memory = mmap.mmap(-1, 4096)
        host = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        size, device = ctypes.c_size_t(4096), ctypes.c_uint64()
        assert driver.cuMemHostRegister(host, size, flags) == Result.SUCCESS
        assert driver.cuMemHostGetDevicePointer(ctypes.byref(device), host, 0) == result
        assert device.value != host.value


def test_nothing_works_in_a_forked_child(cuda: SimulatedCuda) -> None:
    event = driver.event()
    child = os.fork()
    if child == 0:
        os._exit(driver.record(event, cuda.default_stream))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == Result.NOT_INITIALIZED


def test_a_graph_in_another_one_is_a_copy(cuda: SimulatedCuda) -> None:
    stream = cuda.devices[0].create_stream()
    stream.begin_capture()
    stream.launch(5_000)
    inner = stream.end_capture()
    stream.begin_capture()
    stream.launch(3_000)
    inner.launch(stream)
    inner.launch(stream)
    begin_ns = cuda.host_ns
    stream.end_capture().launch(stream)
    cuda.run_dry()
    assert cuda.host_ns - begin_ns == 13_000


def test_streams_of_one_hardware_queue_share_its_room(cuda: SimulatedCuda) -> None:
    cuda.devices[0].set_hardware_queues(2)
    cuda.devices[0].set_queue_depth(3)
    streams = [cuda.devices[0].create_stream() for _ in range(4)]
    streams[0].hang()
    streams[2].launch(1)
    streams[2].launch(1)
    streams[1].launch(1)  # in the other queue
    stuck = OnThread(cuda, lambda: driver.record(driver.event(), streams[0]))
    cuda.wait_until_blocked()
    streams[0].release()
    assert stuck.answer() == Result.SUCCESS
