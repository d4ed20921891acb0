# SPDX-License-Identifier: Apache-2.0
"""What sharing a boundary rests on: nothing can be enqueued in the time in which one is shared.

Two boundaries share an event if the second comes so soon after the first that no enqueue fits in
between. So the cheapest enqueue, the least of very many, has to take longer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns

import _call_loop  # type: ignore[import-not-found]
import torch

from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from pyinstrument_gpu.recording.device_timing import SHARE_BOUNDARIES_NS

CALLS = 100  # a stream takes about a thousand before an enqueue waits
MARGIN = 0.9
"""Of the cheapest enqueue seen: how much of it may pass between boundaries that share an event."""


def each_ns(call: Callable[[], object]) -> list[int]:
    """Of one Python call after the other, with the clock's own cost."""
    durations_ns = []
    for _ in range(CALLS):
        begin_ns = perf_counter_ns()
        call()
        durations_ns.append(perf_counter_ns() - begin_ns)
    return durations_ns


def least_ns(gpu: Gpu, batch: Callable[[], list[int]], batches: int) -> int:
    """Of all calls of some batches, each from an idle device."""
    batch()
    least = []
    for _ in range(batches):
        gpu.synchronize()
        gpu.busy_side_stream()
        least.append(min(batch()))
    gpu.synchronize()
    return min(least)


def enqueues(gpu: Gpu) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """What can be enqueued at little cost: by the driver from C, by PyTorch from Python."""
    for name, (address, arguments) in gpu.enqueue_calls().items():
        if _call_loop.answer(address, arguments) != 0:
            raise RuntimeError(f"the driver does not take the benchmark's own {name}")
        yield name, partial(_call_loop.each_ns, address, arguments, CALLS)
    x = torch.zeros(1, device=gpu.device)
    add_ = torch.ops.aten.add_.Scalar
    yield "aten.add_ of PyTorch", lambda: each_ns(lambda: add_(x, 1))
    replay = gpu.replay_call()
    yield "a CUDA graph's replay", lambda: each_ns(replay)


def figures(gpu: Gpu, *, batches: int = 100) -> Iterator[Figure]:
    """All that this part measures."""
    found_ns = {}
    for name, batch in enqueues(gpu):
        found_ns[name] = least_ns(gpu, batch, batches)
        yield Figure(f"{name}, least", found_ns[name], "ns")
    cheapest = min(found_ns, key=lambda name: found_ns[name])
    share = SHARE_BOUNDARIES_NS / max(1, found_ns[cheapest])
    right_ns = int(MARGIN * found_ns[cheapest])
    yield Figure(
        f"boundaries are shared within {SHARE_BOUNDARIES_NS} ns, as a multiple of the cheapest "
        "enqueue",
        share,
        "",
        goal=1,
        note=(
            f"the cheapest is {cheapest}"
            if share <= 1
            else f"{cheapest} can stand unseen between two boundaries that share an event: "
            f"share_boundaries_ns should be {right_ns}"
        ),
    )


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
