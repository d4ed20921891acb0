# SPDX-License-Identifier: Apache-2.0
"""Our own part of a phase that is timed on a device: the driver's calls cost nothing here.

Two C loops are the floor: the hot path alone, and with its marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter_ns
from unittest import mock

import pytest
from _phase_loop import (  # type: ignore[import-not-found]
    DevicePhaseLoop,
    PhaseLoop,
)
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, timed
from benchmarks.gpu.figure import Figure
from benchmarks.ours import drain, recording
from benchmarks.race import race
from benchmarks.stub_device import stub_device
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing

pytestmark = pytest.mark.usefixtures("one_core")

ROUNDS = 300
# Less than half of the events of a device, of which a phase takes two at most.
TIMED_USES = 999
GOAL_NS = 60

_null = nullcontext()


def drained(batch: Callable[[], object]) -> Callable[[], int]:
    """Times the batch from an empty ring."""
    measure = timed(batch)

    def measure_drained() -> int:
        drain()
        return measure()

    return measure_drained


def _timed_empty_loop() -> None:
    for _ in range(TIMED_USES):
        pass


def _timed_null_loop() -> None:
    for _ in range(TIMED_USES):
        with _null:
            pass


def _timed_phases() -> None:
    for _ in range(TIMED_USES):
        with gpu_phase("x"):
            pass


TIMED_EMPTY = Contender("empty loop", timed(_timed_empty_loop), TIMED_USES)
TIMED_NULL = Contender("a reused nullcontext", timed(_timed_null_loop), TIMED_USES, TIMED_EMPTY)
TIMED_BY_NAME = Contender(
    'with gpu_phase("x"): pass', drained(_timed_phases), TIMED_USES, TIMED_EMPTY
)


def timed_c_loop(share_boundaries_ns: int) -> Contender:
    """The recorder's own begin and end with their marks, called from C."""
    loop = DevicePhaseLoop()

    def measure() -> int:
        loop.start(share_boundaries_ns)
        begin = perf_counter_ns()
        loop.run(TIMED_USES)
        duration_ns = perf_counter_ns() - begin
        # Otherwise this would be the loop without marks.
        assert loop.records >= (1 if share_boundaries_ns else 2 * TIMED_USES)
        return duration_ns

    return Contender("C loop: begin, end, ring, marks", measure, TIMED_USES)


def race_on_stub(benchmark: BenchmarkFixture, share_boundaries_ns: int) -> None:
    """Ours, the nullcontext, the C loop without and with marks; and what that last one costs, which
    is a phase with marks in C when the driver's calls cost nothing."""
    unmarked = PhaseLoop(statistics=False)
    floor = Contender(
        "C loop: begin, end, ring", timed(lambda: unmarked.run(TIMED_USES)), TIMED_USES
    )
    how = "boundaries shared" if share_boundaries_ns else "two records"
    title = f"stubbed device: a phase, the driver's calls cost nothing, {how}"
    peers = [TIMED_NULL, floor, timed_c_loop(share_boundaries_ns)]
    shared = mock.patch.object(device_timing, "SHARE_BOUNDARIES_NS", share_boundaries_ns)
    every_step = recording(device_timing="auto", device_timing_budget=math.inf)
    with stub_device(), shared, every_step, gpu_step():
        rows = race(benchmark, title, TIMED_BY_NAME, peers, ROUNDS)
    own = Figure("our own part of a phase in C", rows[-1].best_ns, "ns per phase", goal=GOAL_NS)
    benchmark.extra_info["figures"] = [own.to_dict()]


def test_marked_on_a_device(benchmark: BenchmarkFixture) -> None:
    """Two records a phase, which cost nothing."""
    race_on_stub(benchmark, share_boundaries_ns=0)


def test_marked_on_a_device_sharing(benchmark: BenchmarkFixture) -> None:
    """Every boundary shares the event of the one before."""
    race_on_stub(benchmark, share_boundaries_ns=1_000_000_000)
