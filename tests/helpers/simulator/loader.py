# SPDX-License-Identifier: Apache-2.0
"""Loaders of batches: when the next one is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.helpers.simulator.duration import Duration


@dataclass(frozen=True)
class LoaderOptions:
    """A loader, as torch's DataLoader is made.

    Attributes:
        make: what it takes to make one batch, in the process or in one worker.
        workers: 0 makes batches in the process itself, when asked.
        prefetch_factor: as of DataLoader.
        fetch: what taking a batch from a worker costs the host, when it is there.
        fork_ns: how long it takes the host to start the workers.
        startup_ns: from then until they can begin.
        epoch: after so many batches the next epoch begins, with new workers; None is never.
        pause_every, pause_ns: at every so-manieth batch the loop is held up for so long: a buffer
            is filled, or the next file opened; None is never.
    """

    make: Duration
    workers: int = 0
    prefetch_factor: int = 2
    fetch: Duration = field(default_factory=lambda: Duration(50_000))
    fork_ns: int = 0
    startup_ns: int = 0
    epoch: int | None = None
    pause_every: int | None = None
    pause_ns: int = 0


class Loader:
    """The loader of one rank.

    Batch i is made by worker i % W. At most W * prefetch_factor batches are asked for and not yet
    taken, so the index of the next one is handed out whenever one is taken. They are taken in
    order. (In a new epoch torch begins with worker 0. As workers are alike, it does not matter with
    which.)

    Args:
        makes_ns, fetches_ns: what each batch takes to make, and to take from a worker.
        is_instant: whether batches are there at once, and take no time to hand over.
        forks: whether starting workers takes the host any time where an epoch is begun apart.
        is_fast: whether workers that are enough make each batch at once. They are kept from epoch
            to epoch, have to start, and to hand over each batch.
    """

    def __init__(
        self,
        options: LoaderOptions,
        makes_ns: Sequence[int],
        fetches_ns: Sequence[int],
        *,
        is_instant: bool = False,
        forks: bool = True,
        is_fast: bool = False,
    ) -> None:
        self._fork_ns = options.fork_ns if forks else 0
        self._options = options
        self._fetches_ns = fetches_ns
        self._makes_ns = [0] * len(makes_ns) if is_fast else makes_ns
        self._is_instant = is_instant
        self._is_fast = is_fast
        self._taken = 0
        self._made_ns: list[int] = []
        self._epoch_end = 0
        self._worker_free_ns: list[int] = []

    def next_ns(self, now_ns: int) -> int:
        """Asked for the next batch now, when the host has it."""
        number = self._taken
        self._taken += 1
        if self._is_instant:
            return now_ns
        options = self._options
        if options.pause_every and (number + 1) % options.pause_every == 0 and not self._is_fast:
            now_ns += options.pause_ns
        if not options.workers:
            return now_ns + (self._fetches_ns if self._is_fast else self._makes_ns)[number]
        if number == self._epoch_end:
            now_ns = self._begin(now_ns, 0 if self._is_kept else options.fork_ns)
        there_ns = max(now_ns, self._made_ns[number]) + self._fetches_ns[number]
        self._ask(there_ns)
        return there_ns

    @property
    def _is_kept(self) -> bool:
        """Whether there are workers already, which are kept."""
        return self._is_fast and self._epoch_end > 0

    def begin_epoch(self, now_ns: int) -> int:
        """The loop begins its next epoch before it asks for a batch. Returns when the host has
        started the workers."""
        return self._begin(now_ns, self._fork_ns)

    def _begin(self, now_ns: int, fork_ns: int) -> int:
        options, batches = self._options, len(self._makes_ns)
        if not options.workers or self._epoch_end == batches:
            return now_ns
        startup_ns = 0 if self._is_kept else options.startup_ns
        self._epoch_end = min(self._epoch_end + (options.epoch or batches), batches)
        now_ns += fork_ns
        self._worker_free_ns = [now_ns + startup_ns] * options.workers
        for _ in range(options.workers * options.prefetch_factor):
            self._ask(now_ns)
        return now_ns

    def _ask(self, now_ns: int) -> None:
        number = len(self._made_ns)
        if number >= self._epoch_end:
            return
        worker = number % self._options.workers
        made_ns = max(self._worker_free_ns[worker], now_ns) + self._makes_ns[number]
        self._worker_free_ns[worker] = made_ns
        self._made_ns.append(made_ns)
