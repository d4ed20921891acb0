# SPDX-License-Identifier: Apache-2.0
"""What a loop would wait for batches with other workers: the making of batches, replayed.

torch's DataLoader asks its workers in turn. At the beginning each has `prefetch_factor` batches to
make, and whenever the loop gets a batch, the worker whose turn it is is asked for another one. A
worker makes its batches one after the other, and the loop gets them in order. All of this is known,
and how long batches took to make and the loop took between them was recorded; so the replay with as
many workers as there were has to give the wait that was measured. Where it does not, nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_BATCHES = 32
MOST_BATCHES = 1024
_AGREES_SHARE, _AGREES_NS = 0.15, 500_000


@dataclass(frozen=True)
class LoaderModel:
    """How batches were made and used.

    Attributes:
        making_ns: of each batch, in the order of the loop.
        using_ns: from when the loop had a batch to when it asked for the next one.
        handing_ns: from when a batch was made to when the loop had it.
        workers: how many there were.
        prefetch: how many batches each makes ahead.
        cpu_share: the part of the time of making in which a worker had a processor.
        queued_share: that in which it was ready, and waited for one.
        loop_cpu: how many processors the program's own process used.
        cores: how many there are for all of them.
        wait_ns: that was measured, per batch.
    """

    making_ns: NDArray[np.int64]
    using_ns: NDArray[np.int64]
    handing_ns: int
    workers: int
    prefetch: int
    cpu_share: float
    queued_share: float
    loop_cpu: float
    cores: int
    wait_ns: float

    @property
    def explains_run(self) -> bool:
        """Whether the replay with the workers that there were gives the wait that was measured."""
        if min(len(self.making_ns), len(self.using_ns)) < LEAST_BATCHES:
            return False
        found_ns = self.wait_with(self.workers, self.prefetch)
        return abs(found_ns - self.wait_ns) <= max(_AGREES_NS, _AGREES_SHARE * self.wait_ns)

    def wait_with(self, workers: int, prefetch: int, making_share: float = 1.0) -> float:
        """The mean wait for a batch, in ns.

        Args:
            making_share: the part of its time that it takes to make a batch.
        """
        making_ns = np.rint(self.making_ns * making_share).astype(np.int64).tolist()
        return replayed_wait_ns(
            making_ns, self.using_ns.tolist(), self.handing_ns, workers, prefetch
        )

    def predicted(self, workers: int, prefetch: int, making_share: float = 1.0) -> Prediction:
        """The wait, with how far it depends on processors: at least that of workers none of which
        waits for one; at most that of workers that share them with all others, if there are more
        than before."""
        least = making_share * (1 - self.queued_share if workers <= self.cores else 1.0)
        before = max(self.cores, self.workers * self.cpu_share + self.loop_cpu)
        after = workers * self.cpu_share * making_share + self.loop_cpu
        most = making_share * max(1.0, after / before)
        return Prediction(
            workers,
            prefetch,
            self.wait_with(workers, prefetch, making_share),
            self.wait_with(workers, prefetch, least),
            self.wait_with(workers, prefetch, most),
        )


@dataclass(frozen=True)
class Prediction:
    """How long the loop would wait for a batch, with the range of it."""

    workers: int
    prefetch: int
    wait_ns: float
    least_ns: float
    most_ns: float


def replayed_wait_ns(
    making_ns: Sequence[int],
    using_ns: Sequence[int],
    handing_ns: int,
    workers: int,
    prefetch: int,
) -> float:
    """The mean wait of a loop that goes on with these times over and over, without its start.

    Without workers the loop makes each batch itself.
    """
    count = min(len(making_ns), len(using_ns), MOST_BATCHES)
    if not count:
        return 0.0
    if workers == 0:
        return sum(making_ns[:count]) / count
    ahead = workers * prefetch
    rounds = max(2, -(-3 * ahead // count))
    got_ns: list[int] = []
    made_ns: list[int] = []
    asked_ns = waited_ns = 0
    for place in range(rounds * count):
        wanted_ns = got_ns[place - ahead] if place >= ahead else 0
        free_ns = made_ns[place - workers] if place >= workers else 0
        made_ns.append(max(wanted_ns, free_ns) + making_ns[place % count])
        got_ns.append(max(asked_ns, made_ns[place]) + handing_ns)
        if place >= (rounds - 1) * count:
            waited_ns += got_ns[place] - asked_ns
        asked_ns = got_ns[place] + using_ns[place % count]
    return waited_ns / count
