# SPDX-License-Identifier: Apache-2.0
"""Phases on several threads at once: whether they get in each other's way.

The threads start together and may use all cores; with the GIL they take turns, every 50 us instead
of Python's 5 ms, so that they meet in the middle of uses. Times are the wall's, from the common
start to the last end, divided by the uses of all threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Barrier, Thread
from time import perf_counter_ns

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender
from benchmarks.lineup import lineup
from benchmarks.peers import EMPTY_LOOP, PEERS
from benchmarks.race import race_of_peers
from benchmarks.way import Way

ROUNDS = 40
TURN_S = 50e-6


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    yield
    sys.setswitchinterval(before_s)


def on_threads(way: Way, uses: int, threads: int) -> Callable[[], int]:
    """Measures the loop on so many threads at once."""

    def measure() -> int:
        begin_ns: list[int] = []
        ends_ns: list[int] = []

        def start() -> None:
            way.settle()
            begin_ns.append(perf_counter_ns())

        barrier = Barrier(threads, action=start)

        def work() -> None:
            way.flat(uses)
            barrier.wait()
            way.flat(uses)
            ends_ns.append(perf_counter_ns())

        with way.batch():
            workers = [Thread(target=work) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            way.settle()
        return max(ends_ns) - begin_ns[0]

    return measure


@pytest.mark.parametrize("threads", [2, 4])
def test_threads(benchmark: BenchmarkFixture, threads: int) -> None:
    with lineup(PEERS) as line:
        empty_way = line.ways[EMPTY_LOOP]
        empty = Contender(
            EMPTY_LOOP.name,
            on_threads(empty_way, EMPTY_LOOP.uses, threads),
            EMPTY_LOOP.uses * threads,
        )
        # The C loops are one thread's state.
        others = [
            Contender(peer.name, on_threads(way, peer.uses, threads), peer.uses * threads, empty)
            for peer, way in line.ways.items()
            if peer is not EMPTY_LOOP and not way.in_c
        ]
        title = f"threads: {threads} at once, per use"
        race_of_peers(benchmark, title, line, [*others, empty], ROUNDS)
