# SPDX-License-Identifier: Apache-2.0
"""Whether a program that is far ahead of its device keeps its device times.

A step launches more kernels than the launch queue holds, about 1,024, so the host waits in its
calls, in the records of events as well. Such a wait is no cost of the recorder's: every step should
be timed, with the budget that a recording has by default.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from pyinstrument_gpu import gpu_phase, gpu_step

PHASES = ("data", "forward", "backward", "optimizer")
LAUNCHES = 400
"""Of a phase."""
SPIN_NS = 40_000
STEPS = 40
MOST_UNTIMED_PERCENT = 10


def figures(gpu: Gpu, *, steps: int = STEPS, launches: int = LAUNCHES) -> Iterator[Figure]:
    """All that this part measures."""
    with pig.record() as recording:
        for _ in range(steps):
            with gpu_step():
                for name in PHASES:
                    with gpu_phase(name):
                        for _ in range(launches):
                            gpu.spin(SPIN_NS)
        gpu.synchronize()
        recording.flush(10)
    run = recording.run
    timing = run.device_timing
    if timing is None:
        raise RuntimeError("no step was timed on the device")
    lost = {cause: count for cause, count in run.dropped.items() if count}
    yield Figure("launches of a step", launches * len(PHASES), "")
    yield Figure("the device is timed in every k-th step, k", timing.every, "", goal=1)
    yield Figure(
        "spans without a device time",
        100 * float((run.span_device_ns < 0).mean()),
        "%",
        goal=MOST_UNTIMED_PERCENT,
        note=f"{len(run.spans)} spans; lost: {lost}",
    )
    yield Figure("a record as the recorder counts it", timing.record_ns / timing.records, "ns")
    steps_ns = [step.end_ns - step.begin_ns for step in run.steps]
    yield Figure("a step on the host", sum(steps_ns) / len(steps_ns) / 1e3, "us")


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
