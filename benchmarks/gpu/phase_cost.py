# SPDX-License-Identifier: Apache-2.0
"""What a phase that is timed on the device costs the host, beside the driver's own calls."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any
from unittest import mock

import _call_loop  # type: ignore[import-not-found]
import numpy as np
import torch

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing

USES = 200
OWN_SHARE = 0.05
"""What is ours may be at most this share of the driver's records."""


def bare_record_ns(gpu: Gpu, *, rounds: int = 50) -> float:
    """What one record of a timing event costs, called from C on an idle stream: the median."""
    address, arguments = gpu.record_call()
    if _call_loop.answer(address, arguments) != 0:
        raise RuntimeError("the driver does not record the benchmark's own event")
    totals = []
    for _ in range(rounds):
        gpu.synchronize()
        totals.append(_call_loop.total_ns(address, arguments, USES) / USES)
    return float(np.median(totals))


class Timed:
    """Runs a batch in a recording of its own, and keeps how many events that recorded. Twice: the
    first brings what is new in a recording into the caches."""

    def __init__(
        self,
        gpu: Gpu,
        batch: Callable[[], None],
        phases: int,
        share_boundaries_ns: int = device_timing.SHARE_BOUNDARIES_NS,
        **options: Any,
    ) -> None:
        self._gpu = gpu
        self._batch = batch
        self._share_boundaries_ns = share_boundaries_ns
        self._options = options
        self.phases = phases
        self.records = 0
        self.record_ns = 0

    def measure(self) -> float:
        """Nanoseconds of the batch."""
        shared = mock.patch.object(device_timing, "SHARE_BOUNDARIES_NS", self._share_boundaries_ns)
        # Memory would be read in the first steps of each, which are all that there are.
        with shared, pig.record(memory=False, **self._options) as recording:
            with gpu_step():
                self._batch()
                duration_ns = warm_ns(self._gpu, self._batch)
            self._gpu.synchronize()
        timing = recording.run.device_timing
        if timing is not None:
            self.records, self.record_ns = timing.records, timing.record_ns
        return duration_ns

    @property
    def records_of_a_phase(self) -> float:
        return self.records / (2 * self.phases)


def warm_ns(gpu: Gpu, batch: Callable[[], None]) -> float:
    """Nanoseconds of a batch from an idle device."""
    gpu.synchronize()
    begin_ns = perf_counter_ns()
    batch()
    return perf_counter_ns() - begin_ns


def plain(gpu: Gpu, batch: Callable[[], None]) -> Callable[[], float]:
    """The same without a recording."""

    def measure() -> float:
        batch()
        duration_ns = warm_ns(gpu, batch)
        gpu.synchronize()
        return duration_ns

    return measure


def bare_records(gpu: Gpu) -> Callable[[], float]:
    """As many records as a batch of isolated phases makes, in a loop of C."""
    address, arguments = gpu.record_call()

    def measure() -> float:
        gpu.synchronize()
        duration_ns: int = _call_loop.total_ns(address, arguments, 2 * USES)
        gpu.synchronize()
        return duration_ns

    return measure


# --- the batches ---


def _empty() -> None:
    for _ in range(USES):
        pass


def _null() -> None:
    null = contextlib.nullcontext()
    for _ in range(USES):
        with null:
            pass


def _empty_phases() -> None:
    for _ in range(USES):
        with gpu_phase("x"):
            pass


def batches(device: str) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """Loops of launches: without phases, in adjacent ones, each in two nested ones."""
    x = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(USES):
            x.add_(1)

    def adjacent() -> None:
        for _ in range(USES):
            with gpu_phase("x"):
                x.add_(1)

    def nested() -> None:
        for _ in range(USES):
            with gpu_phase("outer"), gpu_phase("inner"):
                x.add_(1)

    launches()
    return launches, adjacent, nested


def figures(gpu: Gpu, *, rounds: int = 30, seconds: float = 60) -> Iterator[Figure]:
    """All that this part measures."""
    record_ns = bare_record_ns(gpu, rounds=rounds)
    yield Figure("cuEventRecord, timing, from C on an idle stream", record_ns, "ns")
    address, arguments = gpu.capturing_call()
    capturing_ns = _call_loop.total_ns(address, arguments, 10_000) / 10_000
    yield Figure("cuStreamIsCapturing, from C", capturing_ns, "ns")

    launches, adjacent, nested = batches(gpu.device)
    every_step: dict[str, Any] = {"device_timing_budget": math.inf}
    timed = {
        "isolated": Timed(gpu, _empty_phases, USES, share_boundaries_ns=0, **every_step),
        "adjacent": Timed(gpu, adjacent, USES, **every_step),
        "nested": Timed(gpu, nested, 2 * USES, **every_step),
    }
    host_only = Timed(gpu, _empty_phases, USES, device_timing=False)
    arms = {
        "empty": plain(gpu, _empty),
        "nullcontext": plain(gpu, _null),
        "launches": plain(gpu, launches),
        "host only": host_only.measure,
        **{name: arm.measure for name, arm in timed.items()},
        "records": bare_records(gpu),
    }
    results = interleaved(arms, rounds=rounds, seconds=seconds)
    median_ns = {name: float(np.median(values)) for name, values in results.items()}
    in_turn_ns = median_ns["records"] / (2 * USES)
    yield Figure("the same record, in turn with what follows", in_turn_ns, "ns")
    for name in ("nullcontext", "host only"):
        cost_ns = (median_ns[name] - median_ns["empty"]) / USES
        label = "a reused nullcontext" if name == "nullcontext" else "a phase, host time only"
        yield Figure(label, cost_ns, "ns")

    baselines = {"isolated": "empty", "adjacent": "launches", "nested": "launches"}
    for name, arm in timed.items():
        if arm.records == 0:
            raise RuntimeError(f"no phase of the batch {name!r} was timed on the device")
        cost_ns = (median_ns[name] - median_ns[baselines[name]]) / arm.phases
        records = arm.records_of_a_phase
        driver_ns = records * in_turn_ns
        yield Figure(f"{name} phases: records of a phase", records, "")
        yield Figure(f"{name} phases: cost of a phase", cost_ns, "ns")
        yield Figure(
            f"{name} phases: a record as the recorder saw it", arm.record_ns / arm.records, "ns"
        )
        yield Figure(
            f"{name} phases: cost less the records, as a share of them",
            (cost_ns - driver_ns) / driver_ns,
            "",
            goal=OWN_SHARE if name == "isolated" else None,
            note=(
                ""
                if name == "isolated"
                else "the records stand between launches here, in the loop of C they do not"
            ),
        )


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
