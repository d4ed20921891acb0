# SPDX-License-Identifier: Apache-2.0
"""Times something of ours beside its peers, so that what disturbs one disturbs all.

Each round times every contender once, in turn. Shown are the best and the median round, and ratios
of best to best and median to median: never to a figure of another run or another machine.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from pytest_benchmark.fixture import BenchmarkFixture

_WARM_UP_ROUNDS = 5


def timed(batch: Callable[[], object]) -> Callable[[], int]:
    """A function that does the batch and returns how many ns it took."""

    def measure() -> int:
        begin = perf_counter_ns()
        batch()
        return perf_counter_ns() - begin

    return measure


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        label: its name in the table.
        measure: does a batch of it and returns how many ns that took.
        uses: how many times it is done in a batch; times are shown per use.
        baseline: what the batch costs without it, such as the empty loop; taken off.
        goal: ours should take at most this multiple of its time. None: shown for comparison only.
        allowance_ns: added to its time per use before ours is compared with it.
    """

    label: str
    measure: Callable[[], int]
    uses: int = 1
    baseline: Contender | None = None
    goal: float | None = None
    allowance_ns: int = 0


@dataclass(frozen=True)
class Row:
    """One contender's result.

    Attributes:
        best_ns, median_ns: time per use.
        best_ratio, median_ratio: our time as a multiple of this one; None in our own row.
        goal: what the ratio should be at most.
    """

    label: str
    best_ns: float
    median_ns: float
    best_ratio: float | None = None
    median_ratio: float | None = None
    goal: float | None = None

    @property
    def verdict(self) -> str:
        if self.goal is None or self.best_ratio is None or self.median_ratio is None:
            return ""
        by_best, by_median = self.best_ratio <= self.goal, self.median_ratio <= self.goal
        if by_best == by_median:
            return "met" if by_best else "not met"
        return f"{'best' if by_best else 'median'} only"


def race(
    benchmark: BenchmarkFixture, ours: Contender, peers: Sequence[Contender], rounds: int
) -> list[Row]:
    """Times all of them and returns our row, then one for each peer.

    pytest-benchmark drives the rounds and keeps our batches; the peers run as its set-up.
    """
    baselines = [each.baseline for each in (ours, *peers) if each.baseline is not None]
    others = {each.label: each for each in (*peers, *baselines)}
    times_ns: dict[str, list[int]] = {label: [] for label in (ours.label, *others)}

    def measure_ours() -> None:
        times_ns[ours.label].append(ours.measure())

    def measure_others() -> None:
        for label, other in others.items():
            times_ns[label].append(other.measure())

    gc.disable()
    try:
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            measure_ours, setup=measure_others, rounds=rounds, warmup_rounds=_WARM_UP_ROUNDS
        )
    finally:
        gc.enable()

    def per_use(contender: Contender, figure: Callable[[list[int]], float]) -> float:
        measured_ns = figure(times_ns[contender.label][_WARM_UP_ROUNDS:]) / contender.uses
        baseline = contender.baseline
        return measured_ns - (0 if baseline is None else per_use(baseline, figure))

    best_ns, median_ns = per_use(ours, min), per_use(ours, statistics.median)
    rows = [Row(ours.label, best_ns, median_ns)]
    for peer in peers:
        peer_best_ns, peer_median_ns = per_use(peer, min), per_use(peer, statistics.median)
        rows.append(
            Row(
                peer.label,
                peer_best_ns,
                peer_median_ns,
                best_ns / (peer_best_ns + peer.allowance_ns),
                median_ns / (peer_median_ns + peer.allowance_ns),
                peer.goal,
            )
        )
    return rows
