# SPDX-License-Identifier: Apache-2.0
"""What a phase costs the thread that runs it.

The harvester, which takes the spans out of the ring, is kept on the other cores, as it would be
while a training loop uses this one; where a benchmark includes its work it says so.

Two C loops are the floor: one has the same body as the hot path, the other also folds the spans
into statistics, which is the harvester's work. Both stand in the table, each with the goal.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from benchmarks import ours
from benchmarks.contender import Contender, timed
from benchmarks.lineup import lineup, measured
from benchmarks.peer import Peer
from benchmarks.peers import (
    C_LOOP,
    C_LOOP_STATISTICS,
    EMPTY_LOOP,
    NULLCONTEXT,
    OURS,
    OURS_NOT_RECORDING,
    PEERS,
    RECORD_FUNCTION,
    RESILIENCY,
    TRACEML,
)
from benchmarks.race import race, race_of_peers
from pyinstrument_gpu import gpu_phase

pytestmark = pytest.mark.usefixtures("one_core")

GOALS = {
    NULLCONTEXT.name: 0.6,
    C_LOOP.name: 2.2,
    C_LOOP_STATISTICS.name: 2.2,
    RECORD_FUNCTION.name: 1 / 80,
    TRACEML.name: 1 / 80,
    RESILIENCY.name: 1 / 30,
}
ROUNDS = 150
FEW_PEERS_ROUNDS = 150

SCOPE = Peer('with gpu_phase.scope("x")', "the same", ours.by_scope, OURS.uses, is_ours=True)


def test_phase(benchmark: BenchmarkFixture) -> None:
    with lineup(PEERS) as line:
        contenders = line.flat(EMPTY_LOOP)
        race_of_peers(benchmark, "phase: recorded", line, contenders, ROUNDS, GOALS)


def test_not_recording(benchmark: BenchmarkFixture) -> None:
    goals = {NULLCONTEXT.name: 0.35}
    with lineup([OURS_NOT_RECORDING, EMPTY_LOOP, NULLCONTEXT]) as line:
        by_name, _, null = line.flat(EMPTY_LOOP)
        title = "phase: while nothing is recorded"
        race(benchmark, title, by_name, [null], FEW_PEERS_ROUNDS, goals)


def test_scope(benchmark: BenchmarkFixture) -> None:
    with lineup([SCOPE, EMPTY_LOOP, OURS]) as line:
        scope, _, by_name = line.flat(EMPTY_LOOP)
        race(benchmark, "phase: as a scope", scope, [by_name], FEW_PEERS_ROUNDS)


def _function() -> None:
    pass


_decorated = gpu_phase("x")(_function)


def _plain_calls(uses: int) -> None:
    for _ in range(uses):
        _function()


def _decorated_calls(uses: int) -> None:
    for _ in range(uses):
        _decorated()


def test_decorator(benchmark: BenchmarkFixture) -> None:
    with lineup([OURS, EMPTY_LOOP]) as line:
        way = line.ways[OURS]
        by_name, _ = line.flat(EMPTY_LOOP)
        plain = Contender(
            "the function without it", measured(way, _plain_calls, OURS.uses), OURS.uses
        )
        decorated = Contender(
            '@gpu_phase("x")', measured(way, _decorated_calls, OURS.uses), OURS.uses, plain
        )
        race(benchmark, "phase: as a decorator", decorated, [by_name], FEW_PEERS_ROUNDS)


def test_sustained(benchmark: BenchmarkFixture) -> None:
    """All that recording costs any core: the harvester shares ours, and each batch waits for it."""
    batches = 25
    with lineup([OURS, EMPTY_LOOP, NULLCONTEXT, C_LOOP_STATISTICS]) as line:
        way = line.ways[OURS]
        _, empty, *peers = line.flat(EMPTY_LOOP)

        def harvested() -> None:
            for _ in range(batches):
                way.flat(OURS.uses)
                ours.drain()

        label = 'with gpu_phase("x"), harvested and logged'
        contender = Contender(label, timed(harvested), batches * OURS.uses, empty)
        with pig.record(device_timing=False):
            title = "phase: with the harvester's work"
            race(benchmark, title, contender, peers, FEW_PEERS_ROUNDS // 3)
