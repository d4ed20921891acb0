# SPDX-License-Identifier: Apache-2.0
"""Programs on the simulated driver, with what their device times must be."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import device_timing
from tests.helpers.simulated_cuda import SimulatedCuda, exchange_api_capsule, simulated_cuda

RECORD_NS = 1_500
LATENCY_NS = 3_000
READING_NS = 100


@contextlib.contextmanager
def attached_cuda(devices: int = 1) -> Iterator[SimulatedCuda]:
    """A simulated driver that PyTorch has initialised, with costs like a real one's."""
    with simulated_cuda(devices) as cuda:
        cuda.set_cost("cuEventRecord", RECORD_NS)
        cuda.set_reading_costs(READING_NS)
        for device in cuda.devices:
            device.set_record_latency(LATENCY_NS)
        native.attach_device(exchange_api_capsule())
        yield cuda


@contextlib.contextmanager
def unharmed_cuda() -> Iterator[SimulatedCuda]:
    """The same, of which the recorder must not have asked anything that blocks or is forbidden."""
    with attached_cuda() as cuda:
        yield cuda
        assert cuda.blocking_calls == 0
        assert cuda.violations == []


class Expected(NamedTuple):
    """The records that mark a span, as indices into `SimulatedCuda.records()`."""

    begin: int
    end: int


class Program:
    """A program that records phases, and knows which event records must mark them.

    Its phases must not run on two threads at the same time.
    """

    def __init__(self, cuda: SimulatedCuda) -> None:
        self.cuda = cuda
        self.streams = {cuda.default_stream.handle}
        """Where phases are marked; what is recorded elsewhere is the recorder's own business."""
        self.expected: list[Expected] = []
        self.zero_ns = 0
        self._seen = 0
        self._last_mark = -1

    @contextlib.contextmanager
    def recording(
        self,
        *,
        reading_ns: int = READING_NS,
        share_boundaries_ns: int = device_timing.SHARE_BOUNDARIES_NS,
        **options: Any,
    ) -> Iterator[pig.Recording]:
        """Records, from a host time that is known; every step is timed unless asked otherwise.

        Args:
            reading_ns: by how much each reading of the clock moves it, the harvester's too: 0 where
                the host's times must be exact.
            share_boundaries_ns: how soon after another a boundary shares its event; 0: never.
        """
        options.setdefault("device_timing_budget", math.inf)
        # The thread that samples stacks reads the clock as well, and nobody knows when.
        options.setdefault("stacks", False)
        self.cuda.set_reading_costs(0)
        self.zero_ns = self.cuda.host_ns
        shared = mock.patch.object(device_timing, "SHARE_BOUNDARIES_NS", share_boundaries_ns)
        with shared, pig.record(**options) as recording:
            self.cuda.set_reading_costs(reading_ns)
            yield recording
            # While it stops, time goes on.
            self.cuda.set_reading_costs(1_000)

    @contextlib.contextmanager
    def settled(self, **options: Any) -> Iterator[pig.Recording]:
        """The same; it stops when the device has done everything and all times are known."""
        with self.recording(**options) as recording:
            yield recording
            self.settle(recording)

    def settle(self, recording: pig.Recording) -> None:
        self.cuda.run_dry()
        assert recording.flush(600)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with gpu_phase(name):
            begin = self._mark()
            yield
        self.expected.append(Expected(begin, self._mark()))

    def work(self, device_ns: int, host_ns: int = 10_000) -> None:
        """Takes so long on the host and enqueues a kernel on the default stream."""
        self.cuda.advance(host_ns)
        self.cuda.default_stream.launch(device_ns)

    def marks(self) -> int:
        """How many events were recorded on the program's streams."""
        return sum(record.stream in self.streams for record in self.cuda.records())

    def _mark(self) -> int:
        for i in range(self._seen, self.cuda.record_count):
            if self.cuda.record(i).stream in self.streams:
                self._last_mark = i
        self._seen = self.cuda.record_count
        return self._last_mark


def assert_exact(run: Run, program: Program, tick_ns: int = 32) -> None:
    """Every span has the device times of its records: device times within a tick, places on the
    run's axis within the uncertainty that the run states."""
    assert len(run.spans) == len(program.expected)
    clocks = {clock.device: clock for clock in run.device_clocks}
    for i, (begin, end) in enumerate(program.expected):
        first, last = program.cuda.record(begin), program.cuda.record(end)
        assert first.stamp_ns is not None
        assert first.done_host_ns is not None
        assert last.stamp_ns is not None
        assert int(run.span_device_ns[i]) == last.stamp_ns - first.stamp_ns
        device_ns = run.span_device_clock_ns[i : i + 1]
        uncertainty_ns = clocks[first.device].uncertainty_at_ns(device_ns)[0]
        truth_ns = first.done_host_ns - program.zero_ns
        assert abs(int(run.spans["device_begin_ns"][i]) - truth_ns) <= uncertainty_ns + tick_ns
