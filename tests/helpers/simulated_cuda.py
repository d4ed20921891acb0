# SPDX-License-Identifier: Apache-2.0
"""A CUDA driver without a device, on a clock that stands still until a test moves it.

Importing this names the simulated library to the code under test: the driver is loaded once a
process, at its first use. Nothing that it gives is ever a measurement.

Host times are of the virtual clock, device times of the device's own, both in ns. Handles are the
driver's, as numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import _simulated_cuda as native  # type: ignore[import-not-found]

LIBRARY = Path(native.__file__).with_name("simulated_cuda.so")
# Not in os.environ, which the programs that tests start inherit.
os.putenv("PYINSTRUMENT_GPU_LIBCUDA", str(LIBRARY))
native.load(str(LIBRARY))

LEGACY_STREAM = 0
PER_THREAD_STREAM = 2
BLOCKING_CALLS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")


class Result(enum.IntEnum):
    """The driver's results that tests ask for by name."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY = 209
    UNSUPPORTED_PTX = 222
    LOSSY_QUERY = 394
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_TIMEOUT = 702
    CONTEXT_IS_DESTROYED = 709
    LAUNCH_FAILED = 719
    CAPTURE_UNSUPPORTED = 900
    CAPTURE_INVALIDATED = 901
    CAPTURE_MERGE = 902
    CAPTURE_UNMATCHED = 903
    CAPTURE_UNJOINED = 904
    CAPTURE_ISOLATION = 905
    CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    CAPTURE_WRONG_THREAD = 908


class CaptureMode(enum.IntEnum):
    """Whom a capture forbids unsafe calls: all threads, its own, none."""

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


class SimulatedCudaError(Exception):
    """The simulated driver refused what the test's own program did."""

    def __init__(self, result: int) -> None:
        self.result = Result(result)
        super().__init__(f"{self.result.name} ({result})")


class Call(NamedTuple):
    """One call of the driver. The first four arguments, without those that take the answer."""

    function: str
    result: int
    thread: int
    host_ns: int
    arguments: tuple[int, int, int, int]


class Record(NamedTuple):
    """One record of an event, and the truth about it: None until it has taken place."""

    event: int
    stream: int
    thread: int
    host_ns: int
    """When the call was made."""
    device: int
    device_ns: int | None
    """When it took place, exactly."""
    stamp_ns: int | None
    """What the device wrote down: `device_ns` rounded down to its tick."""
    done_host_ns: int | None
    """When it took place, on the host's clock."""


class Launch(NamedTuple):
    """One launch of a kernel by the code under test."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    thread: int
    host_ns: int


def _check(result: int) -> None:
    if result != Result.SUCCESS:
        raise SimulatedCudaError(result)


def _answer(answer: tuple[int, int]) -> int:
    result, value = answer
    _check(result)
    return value


def _known(result: int, function: str) -> None:
    if result < 0:
        raise ValueError(f"the simulated driver has no {function!r}")


def _ppb(drift_ppm: float) -> int:
    return round(drift_ppm * 1000)


class SimulatedGraph:
    """What was captured, ready to be launched."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @property
    def entries(self) -> int:
        """How many were captured."""
        return _answer(native.graph_entries(self.handle))

    def launch(self, stream: SimulatedStream) -> None:
        """Enqueues it as one entry. What its kernels and fills do, they do at once, in the order of
        their capture and with the parameters of then."""
        _check(native.launch_graph(self.handle, stream.handle))


class SimulatedStream:
    """A stream as the test's program sees it. A legacy or per-thread one is that of the calling
    thread's current context."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def launch(self, duration_ns: int) -> None:
        """Enqueues a kernel that takes so long by the device's clock."""
        _check(native.launch(self.handle, duration_ns))

    def hang(self) -> None:
        """Enqueues a kernel that does not end until `release`."""
        _check(native.hang(self.handle))

    def release(self) -> None:
        """Ends the oldest hang, now."""
        _check(native.release(self.handle))

    def memset(self, address: int, bytes_: int, value: int = 0) -> None:
        """Enqueues a fill of memory; during a capture, a node that fills it at each launch."""
        _check(native.memset(self.handle, address, bytes_, value))

    def allocate(self, address: int, bytes_: int) -> None:
        """This memory has just been allocated in the stream's order: it holds anything. During a
        capture it is a node, and the memory holds anything again at each launch."""
        _check(native.allocate(self.handle, address, bytes_))

    def wait_event(self, event: int) -> None:
        """What is enqueued from now on waits for the event's last record. If that was in a capture,
        the stream joins it."""
        _check(native.wait_event(self.handle, event))

    @property
    def pending(self) -> int:
        """How many entries have not ended."""
        return _answer(native.pending(self.handle))

    def destroy(self) -> None:
        """What was enqueued still runs. From now on the handle is that of freed memory: a call that
        is given it is a violation."""
        _check(native.destroy_stream(self.handle))

    def begin_capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> None:
        _check(native.begin_capture(self.handle, mode))

    def end_capture(self) -> SimulatedGraph:
        """Raises if the capture was invalidated."""
        return SimulatedGraph(_answer(native.end_capture(self.handle)))

    def begin_next_early(self) -> None:
        """What is captured next may begin before what it depends on has ended, as behind the event
        of a programmatic dependent launch."""
        _check(native.begin_next_early(self.handle))

    @property
    def is_capturing(self) -> bool:
        return _answer(native.capture_status(self.handle)) != 0

    @contextlib.contextmanager
    def capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> Iterator[None]:
        """Ends the capture also when it was invalidated, and does not raise for it: ask
        `captures_invalidated`."""
        self.begin_capture(mode)
        try:
            yield
        finally:
            native.end_capture(self.handle)

    @contextlib.contextmanager
    def as_current(self, device: int = 0) -> Iterator[None]:
        """The calling thread's current stream on a device, as PyTorch would tell it."""
        native.set_current_stream(device, self.handle)
        try:
            yield
        finally:
            native.set_current_stream(device, LEGACY_STREAM)


class SimulatedDevice:
    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def set_clock(self, *, offset_ns: int = 0, drift_ppm: float = 0) -> None:
        """The device's clock reads `offset_ns` at host time 0. To be set before any work is
        enqueued."""
        _check(native.set_device_clock(self.ordinal, offset_ns, _ppb(drift_ppm)))

    def set_tick(self, tick_ns: int) -> None:
        """Event times are multiples of this; 32 ns unless set."""
        _check(native.set_tick(self.ordinal, tick_ns))

    def set_timer(self, offset_ns: int, step_ns: int = 32) -> None:
        """What kernels read as %globaltimer: the device's clock, so much later, in such steps."""
        _check(native.set_timer(self.ordinal, offset_ns, step_ns))

    def set_elapsed_resolution(self, resolution_ns: int) -> None:
        """Elapsed times are the nearest multiples of this; 1 ns unless set. The documentation says
        about 500 ns; devices are known to give differences of their ticks."""
        _check(native.set_elapsed_resolution(self.ordinal, resolution_ns))

    def set_record_latency(self, min_ns: int, max_ns: int | None = None, *, seed: int = 0) -> None:
        """How long after the call a record on an idle stream takes place: always so long, or drawn
        evenly from a range."""
        if max_ns is None:
            max_ns = min_ns
        _check(native.set_record_latency(self.ordinal, min_ns, max_ns, seed))

    def set_record_duration(self, ns: int) -> None:
        """How long the device is at the record of an event, which takes place at its end: so far
        apart are two on an idle stream. 0 unless set; an H100 takes 1,250 ns."""
        _check(native.set_record_duration(self.ordinal, ns))

    def set_queue_depth(self, entries: int | None) -> None:
        """How many entries that have not ended a stream, or its hardware queue, holds; None: any
        number. What is enqueued
        on a full one blocks its thread, be it a call of the driver or of the test's program, until
        another thread moves the clock or releases a hang."""
        _check(native.set_queue_depth(self.ordinal, entries or 0))

    def set_hardware_queues(self, count: int | None) -> None:
        """The streams share so many hardware queues, in turn as they are created, the default
        stream first; None: each has its own. CUDA_DEVICE_MAX_CONNECTIONS says how many there are: 8
        unless it is set. An entry begins no sooner than the one enqueued before it on any stream of
        its queue."""
        _check(native.set_hardware_queues(self.ordinal, count or 0))

    def set_attribute(self, attribute: int, value: int) -> None:
        _check(native.set_attribute(self.ordinal, attribute, value))

    @property
    def now_ns(self) -> int:
        return _answer(native.device_ns(self.ordinal))

    def activate(self) -> int:
        """Makes the primary context, as the program's own initialisation does, and makes it current
        on the calling thread. Returns its handle."""
        context = _answer(native.activate(self.ordinal))
        _check(native.make_current(context))
        return context

    def deactivate(self) -> None:
        """Destroys the primary context, whoever holds it."""
        _check(native.deactivate(self.ordinal))

    def create_context(self) -> int:
        """A context that is not the primary one. Returns its handle."""
        return _answer(native.create_context(self.ordinal))

    def create_stream(self, *, non_blocking: bool = True, context: int = 0) -> SimulatedStream:
        """In the primary context, which is made if need be, unless another one is given. PyTorch's
        streams are non-blocking."""
        if not context:
            context = _answer(native.activate(self.ordinal))
        return SimulatedStream(_answer(native.create_stream(context, int(non_blocking))))

    @property
    def retained(self) -> int:
        """How often the code under test holds the primary context."""
        return int(native.retained(self.ordinal))


class SimulatedCuda:
    """The one simulated driver of the process."""

    def __init__(self) -> None:
        self.devices: list[SimulatedDevice] = []
        self._callbacks: list[object] = []

    def reset(self, devices: int = 1) -> None:
        """All as new: host time 0, nothing logged, no failures, and device 0 active and current on
        the calling thread. Handles of before are invalid, and calls that are stuck have
        returned DEINITIALIZED."""
        native.reset(devices)
        native.reset_exchange_api()
        self._callbacks.clear()
        self.devices = [SimulatedDevice(ordinal) for ordinal in range(devices)]
        if devices:
            self.devices[0].activate()

    # Time

    @property
    def host_ns(self) -> int:
        return int(native.now_ns())

    def advance(self, ns: int) -> None:
        native.advance(ns)

    def run_dry(self) -> None:
        """Moves the clock until all that can end has ended."""
        native.run_dry()

    def next_host_ns(self) -> int | None:
        """The host time at which the next entry of any stream begins or ends, or None."""
        found, host_ns = native.next_host_ns()
        return host_ns if found else None

    def set_reading_costs(self, ns: int) -> None:
        """Each reading of the clock by the code under test moves it: busy waits then end."""
        native.set_reading_costs(ns)

    def set_cost(self, function: str, ns: int) -> None:
        """A call takes so long; what it does, it does at its end. "*": all functions."""
        _known(native.set_cost(function, ns), function)

    # Contexts and streams

    def set_driver_version(self, version: int) -> None:
        native.set_driver_version(version)

    def set_elapsed_polls(self, polls: bool = True) -> None:
        """cuEventElapsedTime_v2 knows of events that are complete, also if nobody has queried them.
        The documentation leaves that open; unless set, it does not."""
        native.set_elapsed_polls(int(polls))

    def make_current(self, context: int) -> None:
        """On the calling thread; 0 is none."""
        _check(native.make_current(context))

    def poison(self, context: int, result: Result) -> None:
        """A kernel has failed: each call that touches the context answers this until the context is
        destroyed."""
        _check(native.poison(context, result))

    def destroy_event(self, event: int) -> None:
        """As `SimulatedStream.destroy`."""
        _check(native.destroy_event(event))

    def reuse_handles(self, reuse: bool = True) -> None:
        """A new stream gets the handle of the last one that was destroyed, as from an allocator,
        and a new primary context that of the device's last one."""
        native.reuse_handles(reuse)

    @property
    def current_context(self) -> int:
        return int(native.current_context())

    @property
    def default_stream(self) -> SimulatedStream:
        return SimulatedStream(LEGACY_STREAM)

    @property
    def thread_stream(self) -> SimulatedStream:
        return SimulatedStream(PER_THREAD_STREAM)

    @property
    def captures_invalidated(self) -> int:
        """How many of the program's captures anyone has spoilt."""
        return int(native.captures_invalidated())

    # The exchange API

    def fail_current_stream(self, fail: bool = True) -> None:
        """Asking PyTorch for the current stream raises."""
        native.fail_current_stream(fail)

    # Calls that are stuck

    def set_driver_lock(self, one_lock: bool = True, *, of_device: bool = False) -> None:
        """While a call is stuck on a full stream, other threads' calls block as well, but for the
        few that touch nothing shared. What a test does to time, hangs and the log never blocks.
        `of_device`: only those of threads whose current context is of the same device."""
        native.set_driver_lock(2 if of_device else int(one_lock))

    def set_stuck_limit(self, limit_s: float) -> None:
        """The real time after which a stuck call gives up, a violation; 30 s unless set."""
        native.set_stuck_limit(limit_s)

    @property
    def blocked_calls(self) -> int:
        """How many threads are stuck inside the driver."""
        return int(native.blocked_calls())

    def wait_until_blocked(
        self, count: int = 1, timeout_s: float = 60, *, or_more: bool = False
    ) -> None:
        """Wait until exactly so many threads are stuck inside the driver, or so many `or_more`: the
        recorder's own may be among them. Raises TimeoutError if they never are."""
        if not native.wait_until_blocked(count, 2**32 if or_more else count, timeout_s):
            raise TimeoutError(
                f"{self.blocked_calls} instead of {count} threads were stuck inside the driver "
                f"after {timeout_s} s"
            )

    # Calls

    def fail(self, function: str, result: int, *, after: int = 0, count: int | None = 1) -> None:
        """The next `after` calls still work, then `count` fail; None: forever. A call that fails
        does nothing else. "*": all functions."""
        _known(native.fail(function, result, after, -1 if count is None else count), function)

    def stop_failing(self) -> None:
        native.stop_failing()

    def count(self, function: str, result: int | None = None) -> int:
        """How often it was called, with that result or any. Exact also beyond the log."""
        found, count = native.count(function, result or 0, result is None)
        _known(found, function)
        return int(count)

    @property
    def blocking_calls(self) -> int:
        return sum(map(self.count, BLOCKING_CALLS))

    @property
    def end_of_calls(self) -> int:
        """How many calls have been logged."""
        return int(native.end_of_calls())

    def calls(self, function: str | None = None, *, since: int = 0) -> list[Call]:
        """In their order, from the one with that number on; the last million."""
        first, end = max(since, native.oldest_call()), native.end_of_calls()
        calls = (Call(*native.read_call(i)) for i in range(first, end))
        return [call for call in calls if function in (None, call.function)]

    @property
    def violations(self) -> list[str]:
        """What the code under test must never do: make a context, release what is not its, use a
        handle of what was destroyed, or call another variant of a function than it declares."""
        return [native.violation(i) for i in range(native.violation_count())]

    # The truth

    def truth(self, event: int) -> Record | None:
        """The last record of an event; None if there is none."""
        found, record = native.truth(event)
        return Record(*record) if found else None

    @property
    def record_count(self) -> int:
        return int(native.record_count())

    def record(self, i: int) -> Record:
        """The i-th record, in the order of the calls."""
        return Record(*native.read_record(i))

    def records(self) -> list[Record]:
        return [self.record(i) for i in range(self.record_count)]

    # Kernels and memory

    def on_launch(
        self, kernel: str, callback: Callable[[list[int]], None], parameters: int
    ) -> None:
        """Calls `callback` at each launch of the kernel, or of a graph that it was captured into,
        with the addresses of copies of its so many parameters, of 8 bytes each."""

        def call(addresses: ctypes.Array[ctypes.c_void_p]) -> None:
            callback([addresses[i] or 0 for i in range(parameters)])

        function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))(call)
        self._callbacks.append(function)  # or it would be freed
        address = ctypes.cast(function, ctypes.c_void_p).value
        native.on_launch(kernel, address, parameters, 8)

    def run_nothing_on_launch(self, kernel: str) -> None:
        """As if this kernel were not done yet."""
        native.on_launch(kernel, 0, 0, 0)

    def set_kernel_duration(self, kernel: str, ns: int) -> None:
        native.set_kernel_duration(kernel, ns)

    def launches(self) -> list[Launch]:
        return [Launch(*native.read_launch(i)) for i in range(native.launch_count())]

    @property
    def host_bytes(self) -> int:
        """Pinned memory that was allocated and not freed."""
        return int(native.host_bytes())


def exchange_api_capsule() -> object:
    """Stands in for torch.Tensor.__dlpack_c_exchange_api__."""
    capsule: object = native.exchange_api_capsule()
    return capsule


@contextlib.contextmanager
def simulated_cuda(devices: int = 1, *, clock: bool = True) -> Iterator[SimulatedCuda]:
    """A driver as new, and what is left of it gone at the end.

    With `clock`, recordings that start inside take their time from its host clock.
    """
    cuda = SimulatedCuda()
    cuda.reset(devices)
    if clock:
        native.install_clock()
    try:
        yield cuda
    finally:
        native.detach()
        if clock:
            native.remove_clock()
        cuda.reset(0)
