# SPDX-License-Identifier: Apache-2.0
"""What a use costs after other memory has been touched, as a training step does between two."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender
from benchmarks.lineup import lineup
from benchmarks.peers import EMPTY_LOOP, PEERS
from benchmarks.race import race_of_peers
from benchmarks.way import Way

pytestmark = pytest.mark.usefixtures("one_core")

COLD_BYTES = 48 << 20
ROUNDS = 60


def cold(way: Way, memory: NDArray[np.uint8]) -> Callable[[], int]:
    """Measures one use behind a write to that memory, which pushes its data out of the caches, as
    far as they are no larger."""

    def measure() -> int:
        with way.batch():
            way.flat(1)
            way.settle()
            np.add(memory, 1, out=memory)
            begin_ns = perf_counter_ns()
            way.flat(1)
            duration_ns = perf_counter_ns() - begin_ns
            way.settle()
        return duration_ns

    return measure


def test_cold_caches(benchmark: BenchmarkFixture) -> None:
    memory = np.zeros(COLD_BYTES, np.uint8)
    with lineup(PEERS) as line:
        nothing = Contender(EMPTY_LOOP.name, cold(line.ways[EMPTY_LOOP], memory))
        others = [
            Contender(peer.name, cold(way, memory), baseline=nothing)
            for peer, way in line.ways.items()
            # A single call from Python into the C loop would measure the call.
            if peer is not EMPTY_LOOP and not way.in_c
        ]
        title = "cold caches: 48 MB touched before each use"
        race_of_peers(benchmark, title, line, [*others, nothing], ROUNDS)
