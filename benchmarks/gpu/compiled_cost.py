# SPDX-License-Identifier: Apache-2.0
"""What phases inside compiled code cost on the GPU, and how much of its time they explain.

The blocks of a small GPT are compiled twice, with and without marks. Blocks of steps take turns:
without a recording, twice, with one, and with one and the marks. Whether marks part kernels is told
by how many kernels TorchInductor has made; and the phases under the graphs' calls, by how much of
the time of these calls they have, on the host and on the device. The same model with CUDA graphs
tells of how many replays the phases have times. What its compilation took is there as well, by the
recording and beside the step in which it took place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu, ns_per_step
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.module_times import Block

STEPS = 10
GRAPHS = ("forward graph", "backward graph")


class PhasedBlock(Block):
    """A block of which both halves are phases."""

    def forward(self, x: Tensor) -> Tensor:
        with pig.gpu_phase("attention"):
            x = x + self.attn(self.norm_1(x))
        with pig.gpu_phase("mlp"):
            y: Tensor = x + self.mlp(self.norm_2(x))
            return y


class Training:
    """A compiled model that goes on being trained, and how many kernels it was made of."""

    def __init__(
        self,
        gpu: Gpu,
        width: int,
        batch: int,
        *,
        marks: bool,
        backend: str = "inductor",
        mode: str | None = None,
    ) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*(PhasedBlock(width, 4) for _ in range(4))).to(gpu.device)
        self._compiled = torch.compile(model, backend=backend, mode=mode)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self._x = torch.randn(batch, 64, width, device=gpu.device)
        counts = torch._inductor.metrics
        before = counts.generated_kernel_count
        with pig.record(compiled_phases=marks) as recording:
            self.step()
        self.compiled = recording.run
        self.kernels = counts.generated_kernel_count - before

    def step(self) -> None:
        with pig.gpu_step():
            with pig.gpu_phase("forward"):
                loss = self._compiled(self._x).square().mean()
            with pig.gpu_phase("backward"):
                loss.backward()
            with pig.gpu_phase("optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()


def block_of(gpu: Gpu, training: Training, recorded: bool, steps: int) -> Callable[[], float]:
    """Measures a block of steps: nanoseconds per step."""

    def block() -> float:
        with pig.record() if recorded else contextlib.nullcontext():
            return ns_per_step(gpu, training.step, steps)

    return block


def explained(run: pig.Run) -> Iterator[Figure]:
    """How much of the time of graphs lies in phases inside them."""
    graphs = {path for path in run.phases if path.rpartition("/")[2].partition(" of ")[0] in GRAPHS}
    for graph in sorted(graphs):
        inside = [of for path, of in run.phases.items() if path.rpartition("/")[0] == graph]
        whole = run.phases[graph]
        for clock in ("host", "device"):
            of = getattr(whole, clock)
            if of is None or not of.total_ns:
                continue
            parts = [part for part in (getattr(one, clock) for one in inside) if part is not None]
            share = 100 * sum(part.total_ns for part in parts) / of.total_ns
            yield Figure(f"{graph}: in phases inside, on the {clock}", share, "%")


def compilation(run: pig.Run) -> Iterator[Figure]:
    """What the first step, in which all was compiled, took for that."""
    found = run.compilations
    if found is not None:
        step_ns = sum(one.end_ns - one.begin_ns for one in run.steps)
        share = 100 * found.total_ns / step_ns
        note = f"{found.count} compilations in {step_ns / 1e9:.1f} s"
        yield Figure("compilation, of the first step", share, "%", note=note)


def replayed(gpu: Gpu, training: Training, steps: int) -> Iterator[Figure]:
    """Of how many replays by torch.compile's own CUDA graphs the phases have times."""
    with pig.record(compiled_phases=True) as recording:
        for _ in range(steps):  # torch warms up, then captures, then replays
            training.step()
        gpu.synchronize()
        recording.flush(10)
    known = recording.run.graph_phases
    replays = 0 if known is None else sum(graph.replays for graph in known.graphs)
    timed = 0 if known is None else min((one.count for one in known.phases), default=0)
    yield Figure("times of a phase in CUDA graphs, at least", timed, "", note=f"{replays} replays")


def figures(
    gpu: Gpu,
    *,
    seconds: float = 40,
    width: int = 256,
    batch: int = 32,
    steps: int = STEPS,
    backend: str = "inductor",
) -> Iterator[Figure]:
    """All that this part measures."""
    plain = Training(gpu, width, batch, marks=False, backend=backend)
    marked = Training(gpu, width, batch, marks=True, backend=backend)
    yield Figure("kernels with marks", marked.kernels, "", note=f"{plain.kernels} without")
    yield from compilation(marked.compiled)
    ways = {
        "off": block_of(gpu, plain, recorded=False, steps=steps),
        "off, once more: the floor": block_of(gpu, plain, recorded=False, steps=steps),
        "recorded": block_of(gpu, plain, recorded=True, steps=steps),
        "recorded, with marks": block_of(gpu, marked, recorded=True, steps=steps),
    }
    results = interleaved(ways, rounds=150, seconds=seconds)
    off_ns = results.pop("off")
    yield Figure("a step, off", float(np.median(off_ns)) / 1e3, "us", note=f"{len(off_ns)} rounds")
    for name, step_ns in results.items():
        share = relative_difference(off_ns, step_ns)
        yield Figure(
            f"{name}: longer by", 100 * share.value, "%", low=100 * share.low, high=100 * share.high
        )
    with pig.record() as recording:
        for _ in range(steps):
            marked.step()
        gpu.synchronize()
    yield from explained(recording.run)
    if backend == "inductor":
        graphs = Training(gpu, width, batch, marks=True, mode="reduce-overhead")
        yield from replayed(gpu, graphs, steps)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
