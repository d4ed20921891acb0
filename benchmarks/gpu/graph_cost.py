# SPDX-License-Identifier: Apache-2.0
"""Phases inside a CUDA graph: what a mark costs the device, whether their times are those of CUPTI,
and whether results stay the same to the bit.

The graph has eight phases next to each other, of one kernel each, and so nine marks. It is replayed
beside one without phases, then thousands of times while it is recorded, and then some more under
torch.profiler, which has the time of each kernel in a graph from CUPTI.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import pyinstrument_gpu as pig
from benchmarks.gpu.boundary_cost import device_ns
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.gpu.profiler_trace import kernel_times_ns
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.core.run import Run

PHASES = 8
SPIN_NS = [100_000 + 10_000 * number for number in range(PHASES)]
GRAPHS_AT_ONCE = 20
MARK_GOAL_US = 2.1
GOAL_PERCENT = 2.0


def kernels(gpu: Gpu) -> None:
    for spin_ns in SPIN_NS:
        gpu.spin(spin_ns)


def phases(gpu: Gpu) -> None:
    for number, spin_ns in enumerate(SPIN_NS):
        with gpu_phase(f"phase {number}"):
            gpu.spin(spin_ns)


def mark_figures(gpu: Gpu, rounds: int, seconds: float) -> Iterator[Figure]:
    """What the marks add to a graph, replayed back to back."""

    def several(replay: Callable[[], object]) -> Callable[[], float]:
        def enqueue() -> None:
            for _ in range(GRAPHS_AT_ONCE):
                replay()

        return lambda: device_ns(gpu, enqueue) / GRAPHS_AT_ONCE

    bare = gpu.capture(lambda: kernels(gpu))
    with pig.record(graph_phases=True):
        marked = gpu.capture(lambda: phases(gpu))
    results = interleaved(
        {"bare": several(bare), "marked": several(marked)}, rounds=rounds, seconds=seconds
    )
    bare_ns, marked_ns = (float(np.median(results[name])) for name in ("bare", "marked"))
    yield Figure("a graph of eight kernels", bare_ns / 1e3, "us")
    yield Figure(
        "device time of a mark, of nine in a graph",
        (marked_ns - bare_ns) / (PHASES + 1) / 1e3,
        "us",
        goal=MARK_GOAL_US,
    )


def recorded_replays(gpu: Gpu, replays: int) -> tuple[Run, Callable[[], object]]:
    """A run of so many replays, and what replays the graph once more."""
    with pig.record() as recording:
        replay = gpu.capture(lambda: phases(gpu))
        for _ in range(replays):
            with gpu_step():
                replay()
        gpu.synchronize()
        recording.flush(10)
    return recording.run, replay


def time_figures(gpu: Gpu, replays: int, profiled: int) -> Iterator[Figure]:
    """The times of phases: of how many replays they are known, and how far from CUPTI's."""
    run, replay = recorded_replays(gpu, replays)
    known = run.graph_phases
    timed = [] if known is None else [one for one in known.phases if one.count]
    lost = sum(one.lost for one in known.phases) if known is not None else PHASES * replays
    yield Figure("replays with times of all phases", min([one.count for one in timed] or [0]), "")
    yield Figure("times of phases lost, of all replays", lost, "", goal=0)
    steps = () if known is None else np.unique(known.runs["step"][known.runs["step"] >= 0])
    yield Figure("steps that they are known to be of", len(steps), "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(profiled):
                replay()
            gpu.synchronize()
        profiler.export_chrome_trace(str(path))
        of_kernels = kernel_times_ns(path, "spin")
    if not timed or len(of_kernels) != PHASES * profiled:
        return
    by_cupti = np.median(np.reshape(of_kernels, (profiled, PHASES)), axis=0)
    ours = {str(one.path): one.p50_ns for one in timed}
    off = [abs(ours[f"phase {i}"] - by_cupti[i]) / by_cupti[i] for i in range(PHASES)]
    yield Figure(
        "a phase's median beside CUPTI's of its kernel, at most off by",
        100 * max(off),
        "%",
        goal=GOAL_PERCENT,
    )


def trained(gpu: Gpu, steps: int) -> list[torch.Tensor]:
    """The parameters of a small model after so many replays of a captured training step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    model = model.to(gpu.device)
    x, target = torch.randn(32, 64).to(gpu.device), torch.randn(32, 8).to(gpu.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with gpu_phase("forward"):
            loss = torch.nn.functional.mse_loss(model(x), target)
        with gpu_phase("backward"):
            loss.backward()
        with gpu_phase("optimizer"):
            optimizer.step()

    with gpu.side_stream():
        step()  # gradients are there before the capture
    gpu.synchronize()
    replay = gpu.capture(step)
    for _ in range(steps):
        replay()
    gpu.synchronize()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def result_figures(gpu: Gpu, steps: int) -> Iterator[Figure]:
    """How many parameters differ by any bit."""
    without = trained(gpu, steps)
    with pig.record():
        recorded = trained(gpu, steps)
    differing = sum(not torch.equal(*pair) for pair in zip(without, recorded, strict=True))
    yield Figure("tensors that differ after training by a marked graph", differing, "", goal=0)


def figures(
    gpu: Gpu,
    *,
    replays: int = 4_000,
    profiled: int = 50,
    steps: int = 200,
    rounds: int = 60,
    seconds: float = 5,
) -> Iterator[Figure]:
    """All that this part measures."""
    yield from mark_figures(gpu, rounds, seconds)
    yield from time_figures(gpu, replays, profiled)
    yield from result_figures(gpu, steps)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
