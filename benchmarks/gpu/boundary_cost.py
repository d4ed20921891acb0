# SPDX-License-Identifier: Apache-2.0
"""What a boundary of a phase costs the device, beside one bare timing event.

Kernels stand on the stream back to back, enqueued while it is on hold, so the device never waits
for the host. Whatever stands between them makes the whole longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import _call_loop  # type: ignore[import-not-found]
import numpy as np

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_step

KERNELS = 150  # with two events each far from a full queue of the device
SPIN_NS = 5_000
GOAL = 1.05


def device_ns(gpu: Gpu, enqueue: Callable[[], None]) -> float:
    """How long the device takes for what `enqueue` enqueues while the stream is on hold."""
    begin, end = gpu.event(), gpu.event()
    begin.record()
    end.record()
    gpu.synchronize()
    with gpu.held():
        gpu.spin(SPIN_NS)
        begin.record()
        enqueue()
        end.record()
    gpu.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


class Phases:
    """The kernels, each in a phase: adjacent ones share their boundaries."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.boundaries = 0

    def measure(self) -> float:
        # Reading memory would keep boundaries from being shared.
        with pig.record(device_timing_budget=math.inf, memory=False) as recording, gpu_step():
            duration_ns = device_ns(self._gpu, self._enqueue)
        timing = recording.run.device_timing
        if timing is None:
            raise RuntimeError("no phase was timed on the device")
        self.boundaries = timing.records
        return duration_ns

    def _enqueue(self) -> None:
        for _ in range(KERNELS):
            with gpu_phase("kernel"):
                self._gpu.spin(SPIN_NS)


def figures(gpu: Gpu, *, rounds: int = 60, seconds: float = 40) -> Iterator[Figure]:
    """All that this part measures."""
    record = gpu.record_call()

    def kernels() -> None:
        for _ in range(KERNELS):
            gpu.spin(SPIN_NS)

    def with_events() -> None:
        for _ in range(KERNELS):
            gpu.spin(SPIN_NS)
            _call_loop.answer(*record)

    phases = Phases(gpu)
    results = interleaved(
        {
            "kernels": lambda: device_ns(gpu, kernels),
            "events": lambda: device_ns(gpu, with_events),
            "phases": phases.measure,
        },
        rounds=rounds,
        seconds=seconds,
    )
    base_ns = float(np.median(results["kernels"]))
    event_ns = (float(np.median(results["events"])) - base_ns) / KERNELS
    boundary_ns = (float(np.median(results["phases"])) - base_ns) / phases.boundaries
    yield Figure("a spin kernel, back to back", base_ns / KERNELS, "ns")
    yield Figure("device time of one bare timing event between kernels", event_ns, "ns")
    yield Figure("boundaries of 150 adjacent phases", phases.boundaries, "", goal=KERNELS + 1)
    yield Figure("device time of one boundary", boundary_ns, "ns")
    if event_ns > 0:
        yield Figure(
            "a boundary as a multiple of a bare event", boundary_ns / event_ns, "", goal=GOAL
        )


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
