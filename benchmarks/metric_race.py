# SPDX-License-Identifier: Apache-2.0
"""Updates of metrics on one thread of the CPU, each beside its peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, timed
from benchmarks.peer import why_missing
from benchmarks.race import race

Update = Callable[[], object]


class Updater(NamedTuple):
    """A way to keep metrics.

    Attributes:
        note: what it does more or less than ours.
        make: sets it up, and returns what adds one batch. Raises whatever hinders it.
    """

    label: str
    note: str
    make: Callable[[], Update]


def race_updates(
    benchmark: BenchmarkFixture,
    title: str,
    ours: Updater,
    peers: Sequence[Updater],
    *,
    uses: int,
    rounds: int,
    goals: Mapping[str, float] | None = None,
) -> None:
    """Ours and those of its peers that can be set up and used once; the others are named."""
    with _one_thread():
        contenders, missing = [], {}
        for peer in peers:
            try:
                update = peer.make()
                update()
            except Exception as error:
                missing[peer.label] = why_missing(error)
            else:
                contenders.append(Contender(peer.label, _repeated(uses, update), uses))
        contender = Contender(ours.label, _repeated(uses, ours.make()), uses)
        notes = {each.label: each.note for each in (ours, *peers)}
        race(benchmark, f"{title}, one thread", contender, contenders, rounds, goals or {}, notes)
        benchmark.extra_info["missing"] = missing


def _repeated(times: int, call: Update) -> Callable[[], int]:
    def batch() -> None:
        for _ in range(times):
            call()

    return timed(batch)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
