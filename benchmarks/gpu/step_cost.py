# SPDX-License-Identifier: Apache-2.0
"""Eight phases in a step of 50 ms, every step timed: what that costs the step.

Twice: as the calls counted times what one costs, and as the difference between blocks of steps with
and without a recording, beside the difference between blocks that are both without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter_ns

import torch

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.gpu.phase_cost import bare_record_ns
from benchmarks.gpu.recording_cost import recording_figures
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_step

PHASES = ("data", "h2d", "forward", "loss", "backward", "clip", "optimizer", "metrics")
STEP_NS = 50_000_000
STEPS = 8
WARM_UPS = 3
"""In the first steps of a recording memory is read at each boundary, whatever that costs."""
GOAL_PERCENT = 0.1


def train(gpu: Gpu, value: torch.Tensor, steps: int, step_ns: int) -> None:
    """Steps whose device time is known. Each ends as many do: the host reads a value."""
    for _ in range(steps):
        with gpu_step():
            for name in PHASES:
                with gpu_phase(name):
                    value.add_(1)
                    gpu.spin(step_ns // len(PHASES))
            value.item()


def figures(
    gpu: Gpu, *, rounds: int = 40, seconds: float = 50, step_ns: int = STEP_NS
) -> Iterator[Figure]:
    """All that this part measures."""
    value = torch.zeros(1, device=gpu.device)
    train(gpu, value, 1, step_ns)
    record_ns = bare_record_ns(gpu)
    last: list[pig.Run] = []

    def block() -> float:
        train(gpu, value, WARM_UPS, step_ns)
        gpu.synchronize()
        begin_ns = perf_counter_ns()
        train(gpu, value, STEPS, step_ns)
        gpu.synchronize()
        return (perf_counter_ns() - begin_ns) / STEPS

    def recorded_block() -> float:
        with pig.record(device_timing_budget=math.inf) as recording:
            duration_ns = block()
        last[:] = [recording.run]
        return duration_ns

    results = interleaved(
        {"off": block, "off again": block, "on": recorded_block}, rounds=rounds, seconds=seconds
    )
    run = last[0]
    if run.device_timing is None:
        raise RuntimeError("no step was timed on the device")
    records = run.device_timing.records / (WARM_UPS + STEPS)
    seen_ns = run.device_timing.record_ns / (WARM_UPS + STEPS)
    # The spans, and the step itself.
    own_ns = len(PHASES) * run.environment["overhead"]["phase_ns"]
    own_ns += run.environment["overhead"]["step_ns"]
    direct_ns = records * record_ns + own_ns
    yield Figure("records of a step", records, "", goal=2 * len(PHASES))
    yield Figure(
        "direct cost: records x a bare one, and the recorder's own",
        direct_ns / step_ns * 100,
        "% of the step",
        goal=GOAL_PERCENT,
    )
    yield Figure(
        "direct cost, the driver's calls as the recorder saw them",
        (seen_ns + own_ns) / step_ns * 100,
        "% of the step",
        goal=GOAL_PERCENT,
    )
    yield from recording_figures(results, goal=GOAL_PERCENT)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
