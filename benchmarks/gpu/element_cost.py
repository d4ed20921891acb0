# SPDX-License-Identifier: Apache-2.0
"""What updates without logits cost the device: their kernels beside copies that move as many bytes
as the tensors have, and the least of them beside a kernel that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

import pyinstrument_gpu as pig
from benchmarks.gpu.boundary_cost import device_ns
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.gpu.metric_cost import repeated
from benchmarks.interleave import interleaved
from pyinstrument_gpu.metrics.kernels import wait

USES = 20


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


def figures(
    gpu: Gpu,
    *,
    few: int = 4096,
    many: int = 16 << 20,
    rounds: int = 20,
    seconds: float = 15,
) -> Iterator[Figure]:
    """All that this part measures."""
    calls = calls_of(gpu, few, many)
    for update, _ in calls.values():
        update()
    wait(timeout_s=300)  # until the kernels are ready, torch operations do the work

    def on_device(call: Callable[[], object]) -> Callable[[], float]:
        repeat = repeated(USES, call)
        return lambda: device_ns(gpu, repeat) / USES / 1e3

    arms = {}
    for name, (update, floor) in calls.items():
        arms[name] = on_device(update)
        arms[f"floor of {name}"] = on_device(floor)
    us = interleaved(arms, rounds=rounds, seconds=seconds, warm_up=2)
    for name in calls:
        update_us, floor_us = (float(np.median(us[each])) for each in (name, f"floor of {name}"))
        yield Figure(f"{name}: device time", update_us, "us")
        yield Figure(f"{name}: as a multiple of its floor", update_us / floor_us, "")


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
