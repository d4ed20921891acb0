# SPDX-License-Identifier: Apache-2.0
"""Times a part of this package beside its peers, so that what disturbs one disturbs all.

Each round times every contender once, in turn. Shown are the best and the median round, and ratios
of best to best and median to median: never to a figure of another run or another machine.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import monotonic

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, per_use_ns
from benchmarks.effort import is_settled, size
from benchmarks.lineup import Lineup
from benchmarks.peers import OURS
from benchmarks.row import Row

_MOST_WARM_UP_ROUNDS = 5
_MOST_S = 10.0
_ROUNDS_BETWEEN_LOOKS = 10
_NO_GOALS: Mapping[str, float] = {}
_NO_NOTES: Mapping[str, str] = {}


def race(
    benchmark: BenchmarkFixture,
    title: str,
    ours: Contender,
    peers: Sequence[Contender],
    rounds: int,
    goals: Mapping[str, float] = _NO_GOALS,
    notes: Mapping[str, str] = _NO_NOTES,
) -> list[Row]:
    """Times all of them and returns our row, then one for each peer; they stand under the title in
    the JSON too. It ends before the last round when the figures have settled, or after ten seconds.

    Args:
        rounds: how many there are at most.
        notes: what a contender does more or less than ours, by label.
        goals: of some peers, by label: ours should take at most this multiple of its time.
    """
    baselines = [each.baseline for each in (ours, *peers) if each.baseline is not None]
    others = {each.label: each for each in (*peers, *baselines)}
    times_ns: dict[str, list[int]] = {label: [] for label in (ours.label, *others)}

    def measure() -> None:
        deadline = monotonic() + _MOST_S
        for number in range(-warm_up, rounds):
            if number > 0 and monotonic() >= deadline:
                break
            counted = [values[warm_up:] for values in times_ns.values()]
            if number % _ROUNDS_BETWEEN_LOOKS == 0 and is_settled(counted):
                break
            gc.collect()
            for label, other in others.items():
                times_ns[label].append(other.measure())
            times_ns[ours.label].append(ours.measure())

    rounds = size(rounds, 1)
    warm_up = size(min(_MOST_WARM_UP_ROUNDS, 1 + rounds // 20), 1)
    # What there is already need not be looked at again in each round.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    finally:
        gc.enable()
        gc.unfreeze()

    batches_ns = {label: values[warm_up:] for label, values in times_ns.items()}
    best_ns = per_use_ns(ours, batches_ns, min)
    median_ns = per_use_ns(ours, batches_ns, statistics.median)

    def row(peer: Contender) -> Row:
        peer_best_ns = per_use_ns(peer, batches_ns, min)
        peer_median_ns = per_use_ns(peer, batches_ns, statistics.median)
        ratios = _ratio(best_ns, peer_best_ns), _ratio(median_ns, peer_median_ns)
        goal, note = goals.get(peer.label), notes.get(peer.label, "")
        return Row(peer.label, peer_best_ns, peer_median_ns, *ratios, goal, note)

    our_row = Row(ours.label, best_ns, median_ns, note=notes.get(ours.label, ""))
    rows = [our_row, *map(row, peers)]
    benchmark.extra_info.update(title=title, rows=[asdict(row) for row in rows])
    return rows


def _ratio(ours_ns: float, peer_ns: float) -> float | None:
    # What is left of little, less a loop in another round, may be nothing, or less.
    return ours_ns / peer_ns if peer_ns > 0 else None


def race_of_peers(
    benchmark: BenchmarkFixture,
    title: str,
    line: Lineup,
    contenders: Sequence[Contender],
    rounds: int,
    goals: Mapping[str, float] = _NO_GOALS,
) -> None:
    """A race of the peers that are there; the others are named with their reasons."""
    ours = next(each for each in contenders if each.label == OURS.name)
    others = [each for each in contenders if each is not ours]
    notes = {peer.name: peer.differs for peer in line.ways}
    race(benchmark, title, ours, others, rounds, goals, notes)
    note_missing(benchmark, line)


def note_missing(benchmark: BenchmarkFixture, line: Lineup) -> None:
    """Names in the JSON the peers that are not there."""
    benchmark.extra_info["missing"] = {peer.name: why for peer, why in line.missing.items()}
