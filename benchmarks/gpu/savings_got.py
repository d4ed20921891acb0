# SPDX-License-Identifier: Apache-2.0
"""What removing a wait was predicted to save, beside what it saved: of six waits.

A training with one of the waits in each step and one without any take turns, in one process, each
recorded. The runs with the wait predict; those without are what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.models import TransformerBlock
from pyinstrument_gpu import analysis, gpu_phase, gpu_steps
from pyinstrument_gpu.analysis.savings import Change, ReplayedSaving
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind

ROUNDS = 6
STEPS = 40
WITHOUT = "no wait"

Recorder: TypeAlias = Callable[[str], tuple[Run, float]]
"""Records the program with this wait, or without any. Gives also how many nanoseconds a step took
on average, until host and device were done with the last."""

WAITS = {
    "item": SyncKind.ITEM,
    "cpu": SyncKind.CPU,
    "bool": SyncKind.BOOL,
    "nonzero": SyncKind.DATA_DEPENDENT_SHAPE,
    "synchronize": SyncKind.SYNCHRONIZE,
    "copy": SyncKind.H2D_PAGEABLE,
}
"""By name: behind the forward pass, all but the copy of the batch."""


class Training:
    """A model that goes on being trained."""

    def __init__(self, gpu: Gpu, width: int, layers: int, batch: int) -> None:
        torch.manual_seed(0)
        self._gpu = gpu
        blocks = [TransformerBlock(width, heads=width // 32) for _ in range(layers)]
        self._model = nn.Sequential(*blocks, nn.LayerNorm(width)).to(gpu.device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._pageable = torch.randn(batch, 512, width)
        self._pinned = gpu.pinned(self._pageable)

    def record(self, wait: str, steps: int) -> tuple[Run, float]:
        self._gpu.synchronize()
        with pig.record() as recording, pig.watch_syncs():
            begin_ns = perf_counter_ns()
            for _ in gpu_steps(range(steps)):
                self._step(wait)
            self._gpu.synchronize()
            step_ns = (perf_counter_ns() - begin_ns) / steps
            recording.flush(10)
        return recording.run, step_ns

    def _step(self, wait: str) -> None:
        with gpu_phase("data"):
            batch = self._pageable if wait == "copy" else self._pinned
            x = batch.to(self._gpu.device, non_blocking=wait != "copy")
        with gpu_phase("forward"):
            loss: Tensor = (self._model(x) - x).square().mean()
            self._wait(wait, loss.detach())
        with gpu_phase("backward"):
            loss.backward()
        with gpu_phase("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad()

    def _wait(self, wait: str, loss: Tensor) -> None:
        if wait == "item":
            loss.item()
        elif wait == "cpu":
            loss.cpu()
        elif wait == "bool":
            bool(loss > 0)
        elif wait == "nonzero":
            loss.reshape(1).nonzero()
        elif wait == "synchronize":
            self._gpu.synchronize()


def prediction(run: Run, wait: str) -> ReplayedSaving | None:
    """Of the run's savings the one of this wait of the program, if it has one."""

    def is_of_wait(saving: ReplayedSaving) -> bool:
        if wait == "copy":
            return saving.change is Change.COPIES
        return saving.change is Change.SYNC and run.syncs.sites[saving.site].kind is WAITS[wait]

    rows = filter(is_of_wait, analysis.of(run).savings.rows)
    return max(rows, key=lambda saving: saving.calls, default=None)


def of_waits(
    recorder: Recorder, rounds: int, seconds: float, waits: Sequence[str] = tuple(WAITS)
) -> Iterator[Figure]:
    """The figures of one program."""
    runs: Mapping[str, list[Run]] = {wait: [] for wait in (WITHOUT, *waits)}

    def arm(wait: str) -> Callable[[], float]:
        def measure() -> float:
            run, step_ns = recorder(wait)
            runs[wait].append(run)
            return step_ns

        return measure

    times_ns = interleaved({wait: arm(wait) for wait in runs}, rounds=rounds, seconds=seconds)
    base_us, measured = times_ns[WITHOUT].mean() / 1e3, len(times_ns[WITHOUT])
    yield Figure("a step without a wait", base_us, "us", note=f"{measured} runs")
    for wait in waits:
        # Without that of the round that does not count.
        found = [prediction(run, wait) for run in runs[wait][-measured:]]
        savings = [saving for saving in found if saving is not None]
        if not savings:
            print(f"no {wait} made the host wait for a device", flush=True)
            continue
        yield from _of_sync(wait, savings, times_ns[wait], times_ns[WITHOUT])


def _of_sync(
    name: str, savings: Sequence[ReplayedSaving], before_ns: np.ndarray, after_ns: np.ndarray
) -> Iterator[Figure]:
    likely_us, predicted_low_us, predicted_high_us, at_most_us = (
        float(np.median([getattr(saving, column) for saving in savings])) / 1e3
        for column in ("likely_ns", "low_ns", "high_ns", "at_most_ns")
    )
    told = sum(saving.is_told for saving in savings)
    change = relative_difference(before_ns, after_ns)
    step_us = float(np.median(before_ns)) / 1e3
    got_us, low_us, high_us = (-step_us * x for x in (change.value, change.high, change.low))
    yield Figure(
        f"{name}: predicted as likely",
        likely_us,
        "us a step",
        low=predicted_low_us,
        high=predicted_high_us,
        note=f"the range is what was predicted; likely is shown in {told} of {len(savings)} runs",
    )
    yield Figure(
        f"{name}: got",
        got_us,
        "us a step",
        low=low_us,
        high=high_us,
        goal=at_most_us,
        note="the goal is what was predicted at most",
    )
    if 2 * told < len(savings):
        # No reader sees what was likely.
        return
    yield Figure(
        f"{name}: got less what was likely",
        100 * (got_us - likely_us) / step_us,
        "% of the step",
        low=100 * (low_us - likely_us) / step_us,
        high=100 * (high_us - likely_us) / step_us,
    )


def figures(
    gpu: Gpu,
    *,
    rounds: int = ROUNDS,
    seconds: float = 20,
    steps: int = STEPS,
    width: int = 512,
    layers: int = 6,
    batch: int = 8,
) -> Iterator[Figure]:
    """All that this part measures."""
    training = Training(gpu, width, layers, batch)
    yield from of_waits(lambda wait: training.record(wait, steps), rounds, seconds)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
