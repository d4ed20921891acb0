# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own ways to time a phase on a GPU cost the host, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns

import torch

from benchmarks.gpu.figure import Figure, print_figures

USES = 400
ROUNDS = 25


def least_ns(call: Callable[[], object]) -> float:
    """Of a call in a plain loop, without the loop: the least of some batches."""

    def batch_ns(called: Callable[[], object] | None) -> int:
        begin_ns = perf_counter_ns()
        if called is None:
            for _ in range(USES):
                pass
        else:
            for _ in range(USES):
                called()
        return perf_counter_ns() - begin_ns

    calls, empty = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        calls.append(batch_ns(call))
        empty.append(batch_ns(None))
    torch.cuda.synchronize()
    return (min(calls) - min(empty)) / USES


def calls() -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    event, done, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    for each in (event, done, begin, end):
        each.record()
    torch.cuda.synchronize()
    x = torch.zeros(1, device="cuda")
    stream = torch.cuda.current_stream()
    nvtx = torch.cuda.nvtx

    def new_pair() -> None:
        for _ in range(2):
            torch.cuda.Event(enable_timing=True).record()

    def nvtx_range() -> None:
        with nvtx.range("x"):
            pass

    def push_pop() -> None:
        nvtx.range_push("x")
        nvtx.range_pop()

    def record_function() -> None:
        with torch.profiler.record_function("x"):
            pass

    return {
        "Event.record()": event.record,
        "Event.record(stream)": lambda: event.record(stream),
        "two new timing events, recorded": new_pair,
        "Event.query(), ready": done.query,
        "Event.elapsed_time": lambda: begin.elapsed_time(end),
        "current_stream()": torch.cuda.current_stream,
        "_cuda_getCurrentRawStream(0)": lambda: torch._C._cuda_getCurrentRawStream(0),
        "is_current_stream_capturing()": torch.cuda.is_current_stream_capturing,
        "nvtx.range": nvtx_range,
        "nvtx.range_push, range_pop": push_pop,
        "x.add_(1): one eager kernel": lambda: x.add_(1),
        "record_function, no profiler": record_function,
    }


def figures() -> Iterator[Figure]:
    """All that this part measures."""
    for name, call in calls().items():
        for _ in range(50):
            call()
        yield Figure(name, least_ns(call), "ns")


def main() -> None:
    print_figures(figures())


if __name__ == "__main__":
    main()
