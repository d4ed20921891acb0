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
        startup_ns: until workers can begin.
    """

    make: Duration
    workers: int = 0
    prefetch_factor: int = 2
    fetch: Duration = field(default_factory=lambda: Duration(50_000))
    startup_ns: int = 0


class Loader:
    """The loader of one rank.

    Batch i is made by worker i % W. At most W * prefetch_factor batches are asked for and not yet
    taken, so the index of the next one is handed out whenever one is taken. They are taken in
    order.

    Args:
        makes_ns, fetches_ns: what each batch takes to make, and to take from a worker.
        is_instant: whether batches are there at once.
    """

    def __init__(
        self,
        options: LoaderOptions,
        makes_ns: Sequence[int],
        fetches_ns: Sequence[int],
        *,
        is_instant: bool = False,
    ) -> None:
        self._options = options
        self._fetches_ns = fetches_ns
        self._makes_ns = makes_ns
        self._is_instant = is_instant
        self._taken = 0
        self._made_ns: list[int] = []
        self._worker_free_ns = [options.startup_ns] * options.workers

    def next_ns(self, now_ns: int) -> int:
        """Asked for the next batch now, when the host has it."""
        number = self._taken
        self._taken += 1
        if self._is_instant:
            return now_ns
        options = self._options
        if not options.workers:
            return now_ns + self._makes_ns[number]
        if not number:
            for _ in range(options.workers * options.prefetch_factor):
                self._ask(now_ns)
        there_ns = max(now_ns, self._made_ns[number]) + self._fetches_ns[number]
        self._ask(there_ns)
        return there_ns

    def _ask(self, now_ns: int) -> None:
        number = len(self._made_ns)
        if number >= len(self._makes_ns):
            return
        worker = number % self._options.workers
        made_ns = max(self._worker_free_ns[worker], now_ns) + self._makes_ns[number]
        self._worker_free_ns[worker] = made_ns
        self._made_ns.append(made_ns)
