# SPDX-License-Identifier: Apache-2.0
"""The simulated CUDA driver itself: other tests trust its answers."""

import ctypes

import pytest

from tests.helpers.driver_calls import driver
from tests.helpers.simulated_cuda import (
    LIBRARY,
    CaptureMode,
    Result,
    SimulatedCuda,
    SimulatedCudaError,
    SimulatedStream,
    simulated_cuda,
)
from tests.helpers.threads import on_thread

_MS = 1_000_000
_HOUR_NS = 3600 * 1000 * _MS


def _stamp(cuda: SimulatedCuda, event: int) -> int:
    record = cuda.truth(event)
    assert record is not None
    assert record.stamp_ns is not None
    return record.stamp_ns


# Queues and clocks


def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(cuda: SimulatedCuda) -> None:
    device = cuda.devices[0]
    device.set_tick(1)
    blocking, free = device.create_stream(non_blocking=False), device.create_stream()
    after_blocking, after_legacy, beside = (driver.event() for _ in range(3))
    blocking.launch(100)
    cuda.default_stream.launch(10)
    driver.record(after_blocking, cuda.default_stream)
    cuda.thread_stream.launch(1)
    driver.record(after_legacy, cuda.thread_stream)
    driver.record(beside, free)
    cuda.run_dry()
    assert [_stamp(cuda, e) for e in (after_blocking, after_legacy, beside)] == [110, 111, 0]


def test_in_one_hardware_queue_a_record_takes_the_overlap(cuda: SimulatedCuda) -> None:
    def end_of_two_streams(timed: bool) -> int:
        start_ns = cuda.host_ns
        first, second = (cuda.devices[0].create_stream() for _ in range(2))
        first.launch(100)
        if timed:
            driver.record(driver.event(), first)
        second.launch(100)
        cuda.run_dry()
        return cuda.host_ns - start_ns

    assert [end_of_two_streams(timed) for timed in (False, True)] == [100, 100]
    cuda.devices[0].set_hardware_queues(1)
    assert [end_of_two_streams(timed) for timed in (False, True)] == [100, 200]


def test_streams_share_hardware_queues_in_turn(cuda: SimulatedCuda) -> None:
    device = cuda.devices[0]
    device.set_hardware_queues(2)  # the default stream has the first one
    streams = [device.create_stream() for _ in range(4)]
    streams[0].hang()
    streams[0].launch(1)  # waits in the second queue
    for stream in streams[1:]:
        stream.launch(100)
    cuda.advance(100)
    # What waits keeps whatever stands behind it in its queue: a false dependency.
    assert [stream.pending for stream in streams] == [2, 0, 1, 0]
    streams[0].release()
    cuda.run_dry()
    assert [stream.pending for stream in streams] == [0] * 4


def test_elapsed_times_are_floats_of_milliseconds(
    cuda: SimulatedCuda, stream: SimulatedStream
) -> None:
    begin, end = driver.event(), driver.event()
    driver.record(begin, stream)
    cuda.advance(_HOUR_NS + 100)
    driver.record(end, stream)
    # Steps of 0.25 ms after an hour: 96 ns of ticks are lost.
    assert driver.elapsed(begin, end) == 3_600_000
    assert _stamp(cuda, end) - _stamp(cuda, begin) == _HOUR_NS + 96


@pytest.mark.parametrize(
    ("elapsed_ns", "expected_ns"),
    [(0, 0), (224, 0), (256, 500), (736, 500), (768, 1000), (3_600_000_000_256, 3_600_000_000_500)],
)
def test_elapsed_times_are_the_nearest_multiples_of_their_resolution(
    cuda: SimulatedCuda, stream: SimulatedStream, elapsed_ns: int, expected_ns: int
) -> None:
    cuda.devices[0].set_elapsed_resolution(500)
    begin, end = driver.event(), driver.event()
    driver.record(begin, stream)
    cuda.advance(elapsed_ns)
    driver.record(end, stream)
    expected_ms = ctypes.c_float(expected_ns / 1e6).value
    assert driver.elapsed(begin, end) == expected_ms
    assert driver.elapsed(end, begin) == -expected_ms
    assert _stamp(cuda, end) - _stamp(cuda, begin) == elapsed_ns


def test_record_latency_is_drawn_from_its_range_by_the_seed(cuda: SimulatedCuda) -> None:
    device = cuda.devices[0]
    device.set_tick(1)

    def latencies() -> list[int]:
        device.set_record_latency(500, 2000, seed=7)
        stream = device.create_stream()
        first = len(cuda.records())
        for _ in range(50):
            driver.record(driver.event(), stream)
            cuda.run_dry()
        records = cuda.records()[first:]
        return [(r.device_ns or 0) - r.host_ns for r in records]

    drawn = latencies()
    assert all(500 <= latency_ns <= 2000 for latency_ns in drawn)
    assert len(set(drawn)) > 40
    assert latencies() == drawn


# Events


def test_an_event_that_was_never_recorded(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    never, once = driver.event(), driver.event()
    driver.record(once, stream)
    assert driver.query(never) == Result.SUCCESS
    assert driver.try_elapsed(once, never)[0] == Result.INVALID_HANDLE
    assert driver.try_elapsed(never, once)[0] == Result.INVALID_HANDLE
    assert cuda.truth(never) is None


def test_an_event_without_timing_has_no_times(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    untimed = driver.event(flags=2)
    driver.record(untimed, stream)
    assert driver.query(untimed) == Result.SUCCESS
    assert driver.try_elapsed(untimed, untimed)[0] == Result.INVALID_HANDLE


# Contexts


def test_retaining_and_releasing_the_primary_context() -> None:
    with simulated_cuda(devices=2, clock=False) as cuda:
        context = ctypes.c_uint64()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == Result.SUCCESS
        assert context.value == cuda.current_context
        assert cuda.devices[0].retained == 1
        assert driver.cuDevicePrimaryCtxRelease(0) == Result.SUCCESS
        assert (cuda.devices[0].retained, cuda.violations) == (0, [])
        assert cuda.current_context == context.value

        assert driver.cuDevicePrimaryCtxRelease(0) == Result.INVALID_CONTEXT
        flags, active = ctypes.c_uint(), ctypes.c_int(7)
        state = (ctypes.byref(flags), ctypes.byref(active))
        assert driver.cuDevicePrimaryCtxGetState(1, *state) == Result.SUCCESS
        assert active.value == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == Result.SUCCESS
        assert driver.cuDevicePrimaryCtxGetState(1, *state) == Result.SUCCESS
        assert active.value == 1
        assert [text.split()[0] for text in cuda.violations] == [
            "cuDevicePrimaryCtxRelease",
            "cuDevicePrimaryCtxRetain",
        ]
        assert driver.cuDevicePrimaryCtxGetState(2, *state) == Result.INVALID_DEVICE


# Captures


def test_a_record_in_a_capture_leaves_no_time(cuda: SimulatedCuda, stream: SimulatedStream) -> None:
    event = driver.event()
    assert driver.is_capturing(stream) == (Result.SUCCESS, 0)
    stream.begin_capture()
    assert driver.is_capturing(stream) == (Result.SUCCESS, 1)
    assert driver.record(event, stream) == Result.SUCCESS
    stream.launch(100)
    assert stream.end_capture().entries == 2
    assert (stream.pending, cuda.records(), cuda.captures_invalidated) == (0, [], 0)
    assert driver.query(event) == Result.CAPTURED_EVENT
    driver.record(event, stream)
    assert driver.query(event) == Result.SUCCESS


@pytest.mark.parametrize("mode", CaptureMode)
def test_asking_for_a_captured_event_spoils_the_capture_in_any_mode(
    cuda: SimulatedCuda, stream: SimulatedStream, mode: CaptureMode
) -> None:
    event = driver.event()
    driver.exchange_mode(mode)
    stream.begin_capture(mode)
    driver.record(event, stream)
    assert driver.query(event) == Result.CAPTURED_EVENT
    assert driver.is_capturing(stream) == (Result.SUCCESS, 2)
    assert driver.record(event, stream) == Result.CAPTURE_INVALIDATED
    with pytest.raises(SimulatedCudaError, match="CAPTURE_INVALIDATED"):
        stream.end_capture()
    assert cuda.captures_invalidated == 1
    assert driver.is_capturing(stream) == (Result.SUCCESS, 0)


# The rules of cuThreadExchangeStreamCaptureMode: a row is the mode of the capture, that of the
# thread that asks, and whether it may, as the thread that captures and as another.
@pytest.mark.parametrize(
    ("capture_mode", "thread_mode", "own_may", "other_may"),
    [
        (CaptureMode.GLOBAL, CaptureMode.GLOBAL, False, False),
        (CaptureMode.GLOBAL, CaptureMode.THREAD_LOCAL, False, True),
        (CaptureMode.GLOBAL, CaptureMode.RELAXED, True, True),
        (CaptureMode.THREAD_LOCAL, CaptureMode.GLOBAL, False, True),
        (CaptureMode.THREAD_LOCAL, CaptureMode.THREAD_LOCAL, False, True),
        (CaptureMode.THREAD_LOCAL, CaptureMode.RELAXED, True, True),
        (CaptureMode.RELAXED, CaptureMode.GLOBAL, True, True),
        (CaptureMode.RELAXED, CaptureMode.THREAD_LOCAL, True, True),
        (CaptureMode.RELAXED, CaptureMode.RELAXED, True, True),
    ],
)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("call", ["query", "elapsed", "alloc", "load"])
def test_who_may_make_an_unsafe_call_during_a_capture(
    cuda: SimulatedCuda,
    stream: SimulatedStream,
    capture_mode: CaptureMode,
    thread_mode: CaptureMode,
    own_may: bool,
    other_may: bool,
    own: bool,
    call: str,
) -> None:
    event = driver.event()
    driver.record(event, stream)
    context = cuda.current_context
    may = own_may if own else other_may

    def ask() -> None:
        cuda.make_current(context)
        assert driver.exchange_mode(thread_mode) is CaptureMode.GLOBAL
        slot = ctypes.c_uint64()
        answers = {
            "query": lambda: driver.query(event),
            "elapsed": lambda: driver.try_elapsed(event, event)[0],
            "alloc": lambda: driver.cuMemHostAlloc(ctypes.byref(slot), ctypes.c_size_t(64), 1),
            "load": lambda: driver.cuLibraryLoadData(
                ctypes.byref(slot), b"code", None, None, 0, None, None, 0
            ),
        }
        assert answers[call]() == (Result.SUCCESS if may else Result.CAPTURE_UNSUPPORTED)
        assert driver.exchange_mode(CaptureMode.GLOBAL) is thread_mode

    with stream.capture(capture_mode):
        if own:
            ask()
        else:
            on_thread(ask)
    assert cuda.captures_invalidated == (0 if may else 1)


def test_the_legacy_stream_beside_the_capture_of_a_blocking_stream(cuda: SimulatedCuda) -> None:
    event = driver.event()
    blocking = cuda.devices[0].create_stream(non_blocking=False)
    free = cuda.devices[0].create_stream()
    with free.capture():
        assert driver.is_capturing(cuda.default_stream) == (Result.SUCCESS, 0)
        assert driver.record(event, cuda.default_stream) == Result.SUCCESS
    with blocking.capture(CaptureMode.RELAXED):
        # To ask does no harm; to use it does.
        assert driver.is_capturing(cuda.default_stream)[0] == Result.CAPTURE_IMPLICIT
        assert cuda.captures_invalidated == 0
        assert driver.record(event, cuda.default_stream) == Result.CAPTURE_IMPLICIT
        assert cuda.captures_invalidated == 1


def test_a_stream_joins_a_capture_by_waiting_for_its_event(cuda: SimulatedCuda) -> None:
    origin, side = (cuda.devices[0].create_stream() for _ in range(2))
    fork = driver.event()
    origin.begin_capture()
    driver.record(fork, origin)
    side.wait_event(fork)
    assert driver.is_capturing(side) == (Result.SUCCESS, 1)
    with pytest.raises(SimulatedCudaError, match="CAPTURE_UNMATCHED"):
        side.end_capture()
    origin.end_capture()
    assert driver.is_capturing(side) == (Result.SUCCESS, 0)


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_capture_fails_where_work_of_another_stream_was_not_joined(
    cuda: SimulatedCuda, is_joined: bool
) -> None:
    origin, side = (cuda.devices[0].create_stream() for _ in range(2))
    fork, join = driver.event(), driver.event()
    origin.begin_capture()
    driver.record(fork, origin)
    side.wait_event(fork)
    side.launch(1_000)
    if is_joined:
        driver.record(join, side)
        origin.wait_event(join)
        origin.end_capture()
    else:
        with pytest.raises(SimulatedCudaError, match="CAPTURE_UNJOINED"):
            origin.end_capture()
    assert not origin.is_capturing


def test_a_capture_ends_on_the_thread_that_began_it(
    cuda: SimulatedCuda, stream: SimulatedStream
) -> None:
    def end() -> None:
        with pytest.raises(SimulatedCudaError, match="CAPTURE_WRONG_THREAD"):
            stream.end_capture()

    stream.begin_capture()
    on_thread(end)
    assert stream.end_capture().entries == 0


# Calls


def test_calls_that_block_move_the_clock_and_are_counted(
    cuda: SimulatedCuda, stream: SimulatedStream
) -> None:
    event = driver.event()
    stream.launch(100)
    driver.record(event, stream)
    assert cuda.blocking_calls == 0
    assert driver.cuEventSynchronize(ctypes.c_uint64(event)) == Result.SUCCESS
    assert cuda.host_ns == 100
    stream.launch(100)
    assert driver.cuStreamSynchronize(ctypes.c_uint64(stream.handle)) == Result.SUCCESS
    assert cuda.host_ns == 200
    stream.hang()
    assert driver.cuCtxSynchronize() == Result.LAUNCH_TIMEOUT
    assert cuda.blocking_calls == 3


# Kernels and memory


def test_pinned_memory(cuda: SimulatedCuda) -> None:
    pointer, on_device = ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(4096)
    assert driver.cuMemHostAlloc(ctypes.byref(pointer), size, 3) == Result.SUCCESS
    assert pointer.value is not None
    ctypes.memset(pointer, 1, 4096)
    assert cuda.host_bytes == 4096
    get = driver.cuMemHostGetDevicePointer
    inside = ctypes.c_void_p(pointer.value + 4095)
    assert get(ctypes.byref(on_device), inside, 0) == Result.SUCCESS
    assert on_device.value == inside.value
    behind = ctypes.c_void_p(pointer.value + 4096)
    assert get(ctypes.byref(on_device), behind, 0) == Result.INVALID_VALUE
    assert driver.cuMemFreeHost(pointer) == Result.SUCCESS
    assert driver.cuMemFreeHost(pointer) == Result.INVALID_VALUE
    assert cuda.host_bytes == 0


# The stub for benchmarks


def test_the_stub_has_what_device_timing_needs_and_succeeds() -> None:
    stub = ctypes.CDLL(str(LIBRARY.with_name("stub_cuda.so")))
    milliseconds, status, context = ctypes.c_float(), ctypes.c_int(9), ctypes.c_void_p()
    assert stub.cuEventElapsedTime(ctypes.byref(milliseconds), None, None) == Result.SUCCESS
    assert stub.cuStreamIsCapturing(None, ctypes.byref(status)) == Result.SUCCESS
    assert stub.cuCtxGetCurrent(ctypes.byref(context)) == Result.SUCCESS
    assert (milliseconds.value, status.value, bool(context.value)) == (1.0, 0, True)
    address = ctypes.c_void_p()
    for name, code in ((b"cuEventRecord", Result.SUCCESS), (b"cuLaunchKernel", Result.NOT_FOUND)):
        found = stub.cuGetProcAddress_v2(
            name, ctypes.byref(address), 12000, ctypes.c_uint64(0), None
        )
        assert (found, address.value is not None) == (code, code == Result.SUCCESS)
