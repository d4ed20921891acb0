# SPDX-License-Identifier: Apache-2.0
"""What an update of the metrics costs, with the loss given and with loss, perplexity and entropy
computed from the logits: its kernel beside the floor, and a loop of updates beside the same by
others. Then the same of updates without logits.

The floor of a large update is the time in which a copy on the device moves as many bytes as the
logits have; that of a small one is a kernel that does nothing. A copy reads and writes, so one of
half the logits moves their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

import pyinstrument_gpu as pig
from benchmarks.gpu.boundary_cost import device_ns
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.interleave import interleaved
from pyinstrument_gpu.metrics.kernels import wait

LARGE_GOAL = 1.25
SMALL_GOAL = 1.5


@dataclass(frozen=True)
class Size:
    """One shape of logits.

    Attributes:
        uses: updates in a batch that is timed; enqueued on hold, so far below a full queue.
    """

    rows: int
    classes: int
    dtype: torch.dtype
    uses: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.classes} {str(self.dtype).removeprefix('torch.')}"


LARGE = Size(4096, 32000, torch.bfloat16, 10)
LARGE_FLOAT32 = Size(4096, 32000, torch.float32, 10)
SMALL = Size(256, 1000, torch.float32, 100)
SHAPES = (
    Size(65536, 1000, torch.bfloat16, 10),
    Size(16384, 4000, torch.bfloat16, 10),
    Size(2048, 128000, torch.bfloat16, 10),
    Size(4096, 32000, torch.float64, 10),
)
"""Few or many classes, and numbers of twice the size: only the kernels."""
ELEMENT_USES = 20


class Batch:
    """Logits on the device with all that is done to them."""

    def __init__(self, gpu: Gpu, size: Size) -> None:
        self.size = size
        self.logits = torch.randn(size.rows, size.classes, device=gpu.device).to(size.dtype)
        self.target = torch.randint(size.classes, (size.rows,), device=gpu.device)
        self.loss = torch.tensor(2.5, device=gpu.device)
        self.metrics = pig.MetricAccumulator(topk=(1, 5))
        self.update()
        wait(timeout_s=300)  # until the kernel is ready, torch operations do the work
        half = self.logits.numel() // 2
        self._from = self.logits.view(-1)[:half]
        self._to = torch.empty_like(self._from)

    def update(self) -> None:
        self.metrics.update(self.logits, self.target, self.loss)

    def update_alone(self) -> None:
        """The loss comes from the logits."""
        self.metrics.update(self.logits, self.target)

    def copy(self) -> None:
        """Moves as many bytes as the logits have."""
        self._to.copy_(self._from)

    def peers(self) -> dict[str, Callable[[], object]]:
        """The same by other means, of those that are installed."""
        total = torch.zeros((), device=self.logits.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.logits.device)

        def by_hand() -> None:
            correct.add_((self.logits.argmax(1) == self.target).sum())
            total.add_(self.loss * len(self.target))

        def cross_entropy() -> None:
            torch.nn.functional.cross_entropy(self.logits, self.target)

        calls: dict[str, Callable[[], object]] = {
            "argmax, eq, sum, add_ by hand": by_hand,
            "torch's cross_entropy alone": cross_entropy,
        }
        try:
            import torchmetrics
        except ModuleNotFoundError:
            pass
        else:
            device = self.logits.device
            accuracy = torchmetrics.classification.MulticlassAccuracy(
                self.size.classes, average="micro"
            ).to(device)
            mean = torchmetrics.MeanMetric().to(device)

            def with_torchmetrics() -> None:
                accuracy.update(self.logits, self.target)
                mean.update(self.loss, weight=len(self.target))

            calls["torchmetrics accuracy (micro) + MeanMetric"] = with_torchmetrics
        try:
            import torcheval.metrics
        except ModuleNotFoundError:
            pass
        else:
            peer: Any = torcheval.metrics.MulticlassAccuracy(device=self.logits.device)
            calls["torcheval accuracy"] = lambda: peer.update(self.logits, self.target)
        return calls


def repeated(times: int, call: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            call()

    return repeat


def loop_ns(gpu: Gpu, repeat: Callable[[], None]) -> float:
    """From an idle device until it is idle again: host and device, whichever takes longer."""
    gpu.synchronize()
    begin_ns = perf_counter_ns()
    repeat()
    gpu.synchronize()
    return perf_counter_ns() - begin_ns


def figures_of(
    gpu: Gpu,
    size: Size,
    floor: str,
    goal: float,
    *,
    rounds: int,
    seconds: float,
    has_loops: bool = True,
) -> Iterator[Figure]:
    """Those of one size.

    Args:
        floor: "copy" or "null kernel".
        goal: of the update's kernel, as a multiple of the floor.
        has_loops: whether a loop of updates is measured too, beside the same by others.
    """
    batch = Batch(gpu, size)
    update = repeated(size.uses, batch.update)
    alone = repeated(size.uses, batch.update_alone)
    floors = {"copy": batch.copy, "null kernel": gpu.nothing}
    loops = {
        "metrics.update(logits, target, loss)": update,
        "metrics.update(logits, target)": alone,
    }
    loops |= {label: repeated(size.uses, call) for label, call in batch.peers().items()}
    if not has_loops:
        loops.clear()

    def on_device(repeat: Callable[[], None]) -> Callable[[], float]:
        return lambda: device_ns(gpu, repeat)

    def in_a_loop(repeat: Callable[[], None]) -> Callable[[], float]:
        return lambda: loop_ns(gpu, repeat)

    results = interleaved(
        {
            "kernel": on_device(update),
            "kernel alone": on_device(alone),
            "floor": on_device(repeated(size.uses, floors[floor])),
            **{label: in_a_loop(loop) for label, loop in loops.items()},
        },
        rounds=rounds,
        seconds=seconds,
        warm_up=2,
    )
    us = {name: float(np.median(values)) / size.uses / 1e3 for name, values in results.items()}
    yield Figure(f"{size}: device time of the update", us["kernel"], "us")
    yield Figure(f"{size}: device time of the {floor}", us["floor"], "us")
    ratio = us["kernel"] / us["floor"]
    yield Figure(f"{size}: update as a multiple of the {floor}", ratio, "", goal=goal)
    yield Figure(f"{size}: device time with the loss from the logits", us["kernel alone"], "us")
    ratio = us["kernel alone"] / us["floor"]
    name = f"{size}: with the loss from the logits, as a multiple of the {floor}"
    yield Figure(name, ratio, "", goal=goal)
    for label in loops:
        yield Figure(f"{size}, in a loop: {label}", us[label], "us")


def calls_of(
    gpu: Gpu, few: int, many: int
) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """By name the update, and its floor."""
    device = gpu.device
    metrics = pig.MetricAccumulator()
    losses, ranks = torch.rand(few, device=device), torch.randint(9, (few,), device=device)
    numbers = torch.randn(many, device=device)

    # A copy reads each of its bytes and writes it.
    source = torch.empty(2 * many, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    return {
        f"update_rows, {few:,} losses and ranks": (
            lambda: metrics.update_rows(loss=losses, rank=ranks),
            gpu.nothing,
        ),
        f"update_scalar, {few:,} numbers": (
            lambda: metrics.update_scalar("few", losses),
            gpu.nothing,
        ),
        f"update_scalar, {many:,} numbers": (
            lambda: metrics.update_scalar("many", numbers),
            lambda: target.copy_(source),
        ),
    }


def element_figures(
    gpu: Gpu, *, few: int, many: int, rounds: int, seconds: float
) -> Iterator[Figure]:
    """Those of updates without logits: beside copies that move as many bytes as the tensors have,
    or a kernel that does nothing."""
    calls = calls_of(gpu, few, many)
    for update, _ in calls.values():
        update()
    wait(timeout_s=300)  # until the kernels are ready, torch operations do the work

    def on_device(call: Callable[[], object]) -> Callable[[], float]:
        repeat = repeated(ELEMENT_USES, call)
        return lambda: device_ns(gpu, repeat) / ELEMENT_USES / 1e3

    arms = {}
    for name, (update, floor) in calls.items():
        arms[name] = on_device(update)
        arms[f"floor of {name}"] = on_device(floor)
    us = interleaved(arms, rounds=rounds, seconds=seconds, warm_up=2)
    for name in calls:
        update_us, floor_us = (float(np.median(us[each])) for each in (name, f"floor of {name}"))
        yield Figure(f"{name}: device time", update_us, "us")
        yield Figure(f"{name}: as a multiple of its floor", update_us / floor_us, "")


def figures(
    gpu: Gpu,
    *,
    large: Sequence[Size] = (LARGE, LARGE_FLOAT32),
    small: Size = SMALL,
    shapes: Sequence[Size] = SHAPES,
    few: int = 4096,
    many: int = 16 << 20,
    rounds: int = 30,
    seconds: float = 2,
) -> Iterator[Figure]:
    """All that this part measures; at most so many seconds of each size."""
    some: dict[str, Any] = {"rounds": rounds, "seconds": seconds}
    for size in large:
        yield from figures_of(gpu, size, "copy", LARGE_GOAL, **some)
    yield from figures_of(gpu, small, "null kernel", SMALL_GOAL, **some)
    for size in shapes:
        yield from figures_of(gpu, size, "copy", LARGE_GOAL, **some, has_loops=False)
    yield from element_figures(gpu, few=few, many=many, **some)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
