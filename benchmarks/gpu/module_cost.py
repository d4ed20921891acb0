# SPDX-License-Identifier: Apache-2.0
"""What times of modules, checks of values and counts of operations cost a training on the GPU.

Blocks of steps of a small GPT take turns: without a recording, twice, with one, with one and the
modules watched, and with the values checked in each step. Device timing has its usual budget. Then
blocks with `flops=True`, which profiles one step, take turns with blocks without; steps after that
one are a part of them, as CUPTI can go on costing something.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import torch
from torch.nn import functional

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu, ns_per_step
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.module_times import Gpt
from pyinstrument_gpu.aspects.operations.profile_steps import FIRST_STEP

STEPS = 10


class Training:
    """A small GPT that goes on being trained."""

    def __init__(self, device: str, width: int, batch: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(width, heads=4).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._ids = torch.randint(0, 64, (batch, 64), device=device)

    def step(self) -> None:
        with pig.gpu_step():
            with pig.gpu_phase("forward"):
                logits = self.model(self._ids)
                loss = functional.cross_entropy(logits.flatten(0, 1), self._ids.flatten())
            with pig.gpu_phase("backward"):
                loss.backward()
            with pig.gpu_phase("optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()


def block_of(
    gpu: Gpu,
    training: Training,
    select: str | None,
    recorded: bool,
    steps: int,
    nonfinite: int = False,
) -> Callable[[], float]:
    """Measures a block of steps: nanoseconds per step."""

    def block() -> float:
        with contextlib.ExitStack() as stack:
            if recorded:
                stack.enter_context(pig.record(nonfinite=nonfinite))
            if select is not None:
                stack.enter_context(pig.watch_modules(training.model, select))
            return ns_per_step(gpu, training.step, steps)

    return block


def cost_figures(gpu: Gpu, training: Training, seconds: float, steps: int) -> Iterator[Figure]:
    """What a step takes without a recording, and by how much it is longer in each other way."""
    ways = {
        "off": block_of(gpu, training, None, recorded=False, steps=steps),
        "off, once more: the floor": block_of(gpu, training, None, recorded=False, steps=steps),
        "recorded": block_of(gpu, training, None, recorded=True, steps=steps),
        "recorded, coarse modules": block_of(gpu, training, "coarse", recorded=True, steps=steps),
        "recorded, all modules": block_of(gpu, training, "all", recorded=True, steps=steps),
        # By default one step in 100 is.
        "recorded, each step checked for NaN": block_of(
            gpu, training, None, recorded=True, steps=steps, nonfinite=1
        ),
    }
    results = interleaved(ways, rounds=150, seconds=seconds)
    off_ns = results.pop("off")
    yield Figure("a step, off", float(np.median(off_ns)) / 1e3, "us", note=f"{len(off_ns)} rounds")
    for name, step_ns in results.items():
        share = relative_difference(off_ns, step_ns)
        yield Figure(
            f"{name}: longer by", 100 * share.value, "%", low=100 * share.low, high=100 * share.high
        )


def flops_figures(gpu: Gpu, training: Training, seconds: float) -> Iterator[Figure]:
    """What counting operations costs a run, once: a step is profiled for it."""

    def block_of_run(flops: bool) -> Callable[[], float]:
        def block() -> float:
            gpu.synchronize()
            with pig.record(flops=flops) as recording:
                begin_ns = perf_counter_ns()
                for _ in range(FIRST_STEP + STEPS):
                    training.step()
                gpu.synchronize()
                took_ns = perf_counter_ns() - begin_ns
            if flops and recording.run.operations is None:
                raise RuntimeError(f"no step was profiled: {recording.run.notes}")
            return took_ns

        return block

    ways = {"recorded": block_of_run(flops=False), "flops": block_of_run(flops=True)}
    results = interleaved(ways, rounds=20, seconds=seconds)
    once_ns = results["flops"] - results["recorded"]
    note = (
        f"median of {len(once_ns)} rounds, {once_ns.min() / 1e6:.0f} to {once_ns.max() / 1e6:.0f}"
    )
    yield Figure(
        "operations counted: once in a run", float(np.median(once_ns)) / 1e6, "ms", note=note
    )


def figures(
    gpu: Gpu,
    *,
    seconds: float = 60,
    width: int = 256,
    batch: int = 32,
    steps: int = STEPS,
) -> Iterator[Figure]:
    """All that this part measures."""
    training = Training(gpu.device, width, batch)
    yield from cost_figures(gpu, training, seconds, steps)
    yield from flops_figures(gpu, training, seconds / 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    print_figures(figures(CudaGpu(), seconds=parser.parse_args().seconds))


if __name__ == "__main__":
    main()
