# SPDX-License-Identifier: Apache-2.0
"""In which order two sides run."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def pairs_in_order(random: Random) -> Iterator[tuple[int, int]]:
    """Pairs of both sides (0, 1), without end: of each two pairs, one begins with either side, and
    chance decides which of the two comes first.

    Within four runs (0 1 1 0, or 1 0 0 1) a drift that is linear in time cancels, which it does not
    if one side always comes first. Chance keeps the sides from following something periodic, such
    as a job that starts every minute: the randomized interleaved trials of Abedi and Brecht
    (Conducting repeatable experiments in highly variable cloud computing environments, ICPE 2017),
    in blocks of four.
    """
    while True:
        first = random.randrange(2)
        yield first, 1 - first
        yield 1 - first, first
