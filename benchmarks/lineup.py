# SPDX-License-Identifier: Apache-2.0
"""The peers that can be measured here, and the others with their reasons."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter_ns

from benchmarks.contender import Contender
from benchmarks.peer import Peer, why_missing
from benchmarks.way import DEPTH, Way


@dataclass(frozen=True)
class Lineup:
    """Peers that are set up.

    Attributes:
        ways: of those that are there, in the order of the table.
        missing: why the others are not.
    """

    ways: dict[Peer, Way]
    missing: dict[Peer, str]

    def flat(self, baseline: Peer) -> list[Contender]:
        """One use after the other. What the baseline costs is taken off all other loops that
        are Python's."""
        loops = {peer: (way.flat, peer.uses) for peer, way in self.ways.items()}
        return self._contenders(loops, 1, baseline)

    def nested(self, baseline: Peer) -> list[Contender]:
        """`DEPTH` deep; times are those of one use. Without the ways that can't nest."""
        loops = {
            peer: (way.nested, peer.uses // DEPTH)
            for peer, way in self.ways.items()
            if way.nested is not None
        }
        return self._contenders(loops, DEPTH, baseline)

    def _contenders(
        self,
        loops: dict[Peer, tuple[Callable[[int], object], int]],
        depth: int,
        baseline: Peer,
    ) -> list[Contender]:
        def contender(peer: Peer, taken_off: Contender | None) -> Contender:
            loop, rounds = loops[peer]
            measure = measured(self.ways[peer], loop, rounds)
            return Contender(peer.name, measure, rounds * depth, taken_off)

        empty = contender(baseline, None)
        return [
            empty if peer is baseline else contender(peer, None if self.ways[peer].in_c else empty)
            for peer in loops
        ]


def measured(
    way: Way,
    loop: Callable[[int], object],
    uses: int,
    clock_ns: Callable[[], int] = perf_counter_ns,
    *,
    warm_ups: int = 1,
) -> Callable[[], int]:
    """A function that says how many ns the loop took, in a batch and after `warm_ups` that do not
    count: they bring what is new in the batch into the caches."""

    def measure() -> int:
        with way.batch():
            for _ in range(warm_ups):
                loop(uses)
            way.settle()
            begin_ns = clock_ns()
            loop(uses)
            end_ns = clock_ns()
            way.settle()
        return end_ns - begin_ns

    return measure


@contextmanager
def lineup(peers: Sequence[Peer]) -> Iterator[Lineup]:
    """Sets all of them up for the block, as far as they can be.

    Each but ours is used once as well: another version than the one that was written for may fail
    only there, and would take all the others' figures with it.
    """
    ways: dict[Peer, Way] = {}
    missing: dict[Peer, str] = {}
    with ExitStack() as stack:
        for peer in peers:
            try:
                with warnings.catch_warnings():
                    # Theirs are not what is looked at here.
                    warnings.simplefilter("ignore")
                    way = stack.enter_context(peer.set_up())
                    if not peer.is_ours:
                        _try(way)
            except Exception as error:
                missing[peer] = why_missing(error)
            else:
                ways[peer] = way
        yield Lineup(ways, missing)


def _try(way: Way) -> None:
    with way.batch():
        way.flat(1)
        if way.nested is not None:
            way.nested(1)
        way.settle()
