# SPDX-License-Identifier: Apache-2.0
"""What a phase costs the thread that runs it.

The measuring thread is pinned to one core. The harvester, which takes the spans out of the ring, is
kept on the other cores, as it would be while a training loop uses this one; where a benchmark
includes its work it says so.

Two C loops are the floor: one has the same body as the hot path, the other also folds the spans
into statistics, which is the harvester's work. Both stand in the table, each with the goal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import pytest
from _phase_loop import PhaseLoop  # type: ignore[import-not-found]
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from benchmarks.board import Board
from benchmarks.race import Contender, race, timed
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu._native import native

CORES = os.sched_getaffinity(0)

RING_SPANS = 8192
# Less than half a ring, so that a batch neither wakes the harvester nor fills the ring.
USES = 3999
ROUNDS = 300

COLD_BYTES = 48 << 20
COLD_ROUNDS = 150


@pytest.fixture(autouse=True)
def _pinned() -> Iterator[None]:
    os.sched_setaffinity(0, {max(CORES)})
    yield
    os.sched_setaffinity(0, CORES)


@contextlib.contextmanager
def recording(harvester_on_same_core: bool = False) -> Iterator[None]:
    """Records. The harvester inherits the affinity that its starter has at that moment."""
    pinned = os.sched_getaffinity(0)
    if not harvester_on_same_core:
        os.sched_setaffinity(0, CORES - pinned or pinned)
    with pig.record():
        os.sched_setaffinity(0, pinned)
        yield


def drained(batch: Callable[[], object]) -> Callable[[], int]:
    """Times the batch from an empty ring."""
    measure = timed(batch)

    def measure_drained() -> int:
        native.flush()
        return measure()

    return measure_drained


# --- the contenders: plain loops, so that nothing but the statement differs ---


def _empty_loop() -> None:
    for _ in range(USES):
        pass


EMPTY = Contender("empty loop", timed(_empty_loop), USES)

_null = contextlib.nullcontext()


def _null_loop() -> None:
    for _ in range(USES):
        with _null:
            pass


def nullcontext(goal: float | None = None) -> Contender:
    return Contender("a reused nullcontext", timed(_null_loop), USES, EMPTY, goal)


def _by_name_loop() -> None:
    for _ in range(USES):
        with gpu_phase("x"):
            pass


BY_NAME = Contender('with gpu_phase("x"): pass', drained(_by_name_loop), USES, EMPTY)

_handle = gpu_phase("x")


def _by_handle_loop() -> None:
    for _ in range(USES):
        with _handle:
            pass


BY_HANDLE = Contender("with handle: pass", drained(_by_handle_loop), USES, EMPTY)


def _scope_loop() -> None:
    for _ in range(USES):
        with gpu_phase.scope("x"):
            pass


SCOPE = Contender('with gpu_phase.scope("x"): pass', drained(_scope_loop), USES, EMPTY)


def _plain_function() -> None:
    pass


_decorated_function = gpu_phase("x")(_plain_function)


def _plain_calls() -> None:
    for _ in range(USES):
        _plain_function()


def _decorated_calls() -> None:
    for _ in range(USES):
        _decorated_function()


PLAIN_CALLS = Contender("the function without it", timed(_plain_calls), USES)
DECORATOR = Contender('@gpu_phase("x")', drained(_decorated_calls), USES, PLAIN_CALLS)


def _nested_loop() -> None:
    for _ in range(USES // 3):
        with gpu_phase("a"), gpu_phase("b"), gpu_phase("c"):
            pass


def _nested_null_loop() -> None:
    for _ in range(USES // 3):
        with _null, _null, _null:
            pass


def _empty_loop_of_nested() -> None:
    for _ in range(USES // 3):
        pass


EMPTY_NESTED = Contender("empty loop of a third", timed(_empty_loop_of_nested), USES)
NESTED = Contender("three deep, per pair", drained(_nested_loop), USES, EMPTY_NESTED)
NESTED_NULL = Contender(
    "a reused nullcontext three deep, per pair", timed(_nested_null_loop), USES, EMPTY_NESTED
)


def c_loop(goal: float | None = None) -> list[Contender]:
    """The recorder's own begin and end, called from C."""
    ring, folding = PhaseLoop(statistics=False), PhaseLoop(statistics=True)
    whole_rings = 2 * RING_SPANS
    return [
        Contender("C loop: begin, end, ring", timed(lambda: ring.run(USES)), USES, goal=goal),
        Contender(
            "C loop: begin, end, ring, statistics",
            timed(lambda: folding.run(whole_rings)),
            whole_rings,
            goal=goal,
        ),
    ]


def record_function() -> list[Contender]:
    """torch's own, without a profiler; nothing where torch is not installed."""
    try:
        from torch.profiler import record_function
    except ModuleNotFoundError:
        return []
    uses = USES // 10

    def loop() -> None:
        for _ in range(uses):
            with record_function("x"):
                pass

    return [Contender('torch.profiler.record_function("x")', timed(loop), uses, EMPTY)]


# --- the races ---


def test_by_name(benchmark: BenchmarkFixture, board: Board) -> None:
    peers = [nullcontext(goal=0.6), *c_loop(goal=2.2), *record_function()]
    with recording():
        board.races["A phase, recorded"] = race(benchmark, BY_NAME, peers, ROUNDS)


def test_by_handle(benchmark: BenchmarkFixture, board: Board) -> None:
    peers = [nullcontext(), *c_loop()]
    with recording():
        board.races["By a handle that is kept"] = race(benchmark, BY_HANDLE, peers, ROUNDS)


def test_decorator(benchmark: BenchmarkFixture, board: Board) -> None:
    with recording():
        board.races["As a decorator"] = race(benchmark, DECORATOR, [BY_NAME], ROUNDS)


def test_scope(benchmark: BenchmarkFixture, board: Board) -> None:
    with recording():
        board.races["As a scope"] = race(benchmark, SCOPE, [BY_NAME], ROUNDS)


def test_nested(benchmark: BenchmarkFixture, board: Board) -> None:
    flat = Contender(BY_NAME.label, BY_NAME.measure, USES, EMPTY, goal=1.05)
    with recording():
        board.races["Three deep, recorded (5 % count as no dearer)"] = race(
            benchmark, NESTED, [flat, NESTED_NULL], ROUNDS
        )


def test_not_recording(benchmark: BenchmarkFixture, board: Board) -> None:
    board.races["A phase while nothing is recorded"] = race(
        benchmark, BY_NAME, [nullcontext(goal=0.35)], ROUNDS
    )


def test_sustained(benchmark: BenchmarkFixture, board: Board) -> None:
    """All that recording costs any core: the harvester shares ours, and each batch waits for it."""
    batches = 25

    def measure() -> int:
        begin = perf_counter_ns()
        for _ in range(batches):
            _by_name_loop()
            native.flush()
        return perf_counter_ns() - begin

    ours = Contender(
        'with gpu_phase("x"): pass, harvested and logged', measure, batches * USES, EMPTY
    )
    with recording(harvester_on_same_core=True):
        board.races["A phase, recorded, with the harvester's work"] = race(
            benchmark, ours, [nullcontext(), *c_loop()], ROUNDS // 6
        )


def test_cold_caches(benchmark: BenchmarkFixture, board: Board) -> None:
    memory = np.zeros(COLD_BYTES, np.uint8)

    def cold(use: Callable[[], object]) -> Callable[[], int]:
        def measure() -> int:
            np.add(memory, 1, out=memory)
            begin = perf_counter_ns()
            use()
            return perf_counter_ns() - begin

        return measure

    def nothing() -> None:
        pass

    def null() -> None:
        with _null:
            pass

    def phase() -> None:
        with gpu_phase("x"):
            pass

    baseline = Contender("nothing", cold(nothing))
    with recording():
        board.races["After 48 MB of other memory, recorded"] = race(
            benchmark,
            Contender('with gpu_phase("x"): pass', cold(phase), baseline=baseline),
            [Contender("a reused nullcontext", cold(null), baseline=baseline)],
            COLD_ROUNDS,
        )
