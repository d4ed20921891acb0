# SPDX-License-Identifier: Apache-2.0
"""Predictions of a loop's waits for batches if something changed: the making of batches, replayed.

torch's DataLoader asks its workers in turn. At the beginning each has `prefetch_factor` batches to
make, and whenever the loop gets a batch, the worker whose turn it is is asked for another one. A
worker makes its batches one after the other, and the loop gets them in order. All of this is
known, and how long batches took to make and the loop took between them was recorded; so the replay
with as many workers as there were has to give the wait that was measured. Where it does not,
nothing is said.

How far other workers would change that depends on processors. A worker needs one for a part of the
time that it takes for a batch. As the system shares them fairly, each gets as much as there is for
all that want one: the workers, the loop, and other programs, which go on as they did. What a
processor does in its time changes too: two may be threads of one core, and all share memory.

It also depends on what it takes to hand a batch over, from when it is made, or asked for if that is
later, to when the loop has it. A worker that makes its next batch meanwhile has to let go of the
GIL for that several times, so it can take as long as making one, and little where the worker waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import READY_NS, LoaderBatches
from pyinstrument_gpu.analysis.contention import Contention
from pyinstrument_gpu.analysis.intervals import quantiles
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run

_LEAST_BATCHES, _MOST_BATCHES = 32, 1024
_AGREES_SHARE, _AGREES_NS = 0.15, 500_000
_MOST_AHEAD = 1 << 16
FROM_WORKER_NS = 1_000_000
"""To get a batch from a worker takes up to so long, where the loop had none."""
_HANDING_QUANTILES = [0.1, 0.9]
_AT_WORK_SHARE = 0.3
"""The loop is taken to work for at least this part of its time between batches, however long its
thread waited for a processor in steps."""
_SHARED_CORE = 1.5
"""A processor takes up to so many times as long for the same work while another one of its core, or
of its memory, is at work as well."""
_MOST_STRAY = 0.01
"""Of batches: a clock may be read late."""
_LEAST_CERTAIN = 0.1
"""Of batches: in each of 150 runs it was 0.25 or more."""
_PREFETCH = 2
"""torch's default."""
_WORKERS_INSTEAD_OF_NONE = (1, 2, 4)


@dataclass(frozen=True)
class Prediction:
    """A prediction of how long the loop would wait for a batch, with its range.

    Attributes:
        change: what would be changed, in words.
        workers: how many there would be.
        wait_ns: the likely wait.
        least_ns: where no worker ever waits for a processor that others have, and batches are
            handed over as fast as the fastest were.
        most_ns: where each has to share them all the time, and batches are handed over slowly.
        is_faster: whether a part of making a batch is what changes.
    """

    change: str
    workers: int
    wait_ns: float
    least_ns: float
    most_ns: float
    is_faster: bool = False


@dataclass(frozen=True)
class Processors:
    """The dependence of the workers' time, and the loop's, on processors.

    Attributes:
        cores: how many there are.
        others: how many are wanted by others than the workers and the loop.
        cpu_share: the part of the time of making a batch in which the worker ran; None where that
            is not known, and may be any.
        queued_share: that in which it was ready, and waited for a processor.
        loop_queued_ns: for how long the loop did that between two batches, at most.
    """

    cores: int
    others: float = 0.0
    cpu_share: float | None = None
    queued_share: float = 0.0
    loop_queued_ns: float = 0.0

    @property
    def _runs(self) -> float:
        return 1.0 if self.cpu_share is None else self.cpu_share

    @property
    def _asleep(self) -> float:
        return max(0.0, 1.0 - self._runs - self.queued_share)

    def wanted(self, workers: int) -> float:
        """Return how many processors are wanted, the loop's own among them."""
        alone = max(self._runs + self._asleep, 1e-9)
        return workers * self._runs / alone + 1.0 + self.others

    def crowding(self, workers: int) -> float:
        """Return how many times as long work takes where all share the processors."""
        return max(1.0, self.wanted(workers) / self.cores)

    def shared(self, workers: int) -> float:
        """Return how long it takes to make a batch where all share the processors, as a part of
        what it took."""
        return self._runs * self.crowding(workers) + self._asleep

    def undisturbed(self, workers: int) -> float:
        """Return the same where a worker waits for no processor, unless there are too few for all
        workers."""
        runs = self.cpu_share or 0.0
        return max(1.0 - self.queued_share, runs, runs * workers / self.cores)

    def making(self, before: int, workers: int) -> tuple[float, float, float]:
        """Return what it takes to make a batch with so many workers, as a part of what it took with
        those that there were before: likely, at least and at most."""
        shared, least = self.shared(workers), self.undisturbed(workers)
        likely = max(least, shared / self.shared(max(1, before)))
        if self.cpu_share is None:
            likely = (least + max(least, shared)) / 2
        most = max(likely, shared)
        worked, work = (min(self.cores, self.wanted(max(1, n)) - 1.0) for n in (before, workers))
        ratio = min(worked, work) / max(worked, work, 1e-9)
        longer = min(_SHARED_CORE, 2.0 - ratio)
        if work > worked:
            most += self._runs * (longer - 1.0)
            likely += self._runs * (longer - 1.0) / 3
        else:
            least -= min(least, self._runs) * (1.0 - 1.0 / longer)
            likely -= min(likely, self._runs) * (1.0 - 1.0 / longer) / 3
        return likely, least, most


@dataclass(frozen=True)
class LoaderModel:
    """A model of how batches were made and used.

    Attributes:
        making_ns: of each batch, in the order of the loop.
        using_ns: from when the loop had a batch to when it asked for the next one.
        handing_ns: of each batch, from when it was made and asked for to when the loop had it.
        workers: how many there were; 0: the loop made its batches itself.
        prefetch: how many batches each makes ahead.
        wait_ns: what the loop waited for a batch, as it was measured.
    """

    making_ns: NDArray[np.int64]
    using_ns: NDArray[np.int64]
    handing_ns: NDArray[np.int64]
    workers: int
    prefetch: int
    processors: Processors
    wait_ns: float

    @property
    def wait_share(self) -> float:
        """The wait as a share of the time from one batch to the next."""
        return self.wait_ns / max(1.0, self.wait_ns + float(self.using_ns.mean()))

    @property
    def explains_run(self) -> bool:
        """True if the replay with the workers that there were gives the wait that was measured."""
        if min(len(self.making_ns), len(self.using_ns)) < _LEAST_BATCHES:
            return False
        found_ns = self.wait_with(self.workers)
        return abs(found_ns - self.wait_ns) <= max(_AGREES_NS, _AGREES_SHARE * self.wait_ns)

    def wait_with(self, workers: int, making_share: float = 1.0) -> float:
        """The mean wait for a batch, in ns.

        Args:
            making_share: the part of its time that it takes to make a batch.
        """
        making_ns = np.rint(self.making_ns * making_share).astype(np.int64).tolist()
        using_ns, handing_ns = self.using_ns.tolist(), self.handing_ns.tolist()
        return replayed_wait_ns(making_ns, using_ns, handing_ns, workers, self.prefetch)

    def predicted(self, workers: int) -> Prediction:
        """The wait with so many workers."""
        likely, least, most = self.processors.making(self.workers, workers)
        more_ns, usual_ns, less_ns = self._using_ns(workers)
        low_ns, high_ns = quantiles(self.handing_ns, _HANDING_QUANTILES)
        if workers != self.workers:
            low_ns = min(low_ns, READY_NS)
        handing_ns = np.rint([low_ns, high_ns]).astype(np.int64)
        # A loop that works for longer waits less for workers.
        waits_ns = [
            replace(self, using_ns=usual_ns).wait_with(workers, likely),
            self._like(more_ns, handing_ns[0]).wait_with(workers, least),
            self._like(less_ns, handing_ns[1]).wait_with(workers, most),
        ]
        if not self.workers:
            # What it takes to hand over a batch is not known, and may be as much as workers save.
            waits_ns[2] = max(waits_ns[2] + FROM_WORKER_NS, self.wait_ns)
        words = "1 worker" if workers == 1 else f"{workers} workers"
        likely_ns, least_ns, most_ns = waits_ns
        return Prediction(
            words, workers, likely_ns, min(least_ns, likely_ns), max(most_ns, likely_ns)
        )

    def _like(self, using_ns: NDArray[np.int64], handing_ns: int) -> LoaderModel:
        return replace(self, using_ns=using_ns, handing_ns=np.full_like(self.making_ns, handing_ns))

    def _using_ns(self, workers: int) -> list[NDArray[np.int64]]:
        """Return the loop's time between batches with so many workers: most, likely, least."""
        took_ns = self.using_ns.astype(float)
        alone_ns = np.maximum(took_ns - self.processors.loop_queued_ns, _AT_WORK_SHARE * took_ns)
        sharing_ns = alone_ns * self.processors.crowding(workers)
        further = np.maximum if workers >= self.workers else np.minimum
        most_ns = np.maximum(alone_ns, further(took_ns, sharing_ns))
        times_ns = most_ns, (alone_ns + most_ns) / 2, alone_ns
        return [np.rint(time_ns).astype(np.int64) for time_ns in times_ns]

    def with_faster(self, stage: str, shares: tuple[float, float, float]) -> Prediction:
        """The wait if a stage took half as long.

        Args:
            shares: of the time of a batch that it takes: the likely one, the most and the least.
        """
        likely, most, least = (1 - share / 2 for share in shares)
        if self.workers:
            # What it no longer takes of processors others may have.
            most *= min(1.0, self.processors.undisturbed(self.workers))
        wait_ns, least_ns, most_ns = (
            self.wait_with(self.workers, part) for part in (likely, most, least)
        )
        words = f"{stage} twice as fast"
        return Prediction(words, self.workers, wait_ns, least_ns, most_ns, is_faster=True)

    def predictions(self) -> Iterator[Prediction]:
        """Yield predictions with fewer and more workers, and batches made ahead; nothing where the
        replay does not explain the run."""
        if not self.explains_run:
            return
        more = _WORKERS_INSTEAD_OF_NONE
        if self.workers:
            more = self.workers // 2, 2 * self.workers, 4 * self.workers
        for workers in more:
            if workers:
                yield self.predicted(workers)
        if self.workers:
            deeper = replace(self, prefetch=2 * self.prefetch).predicted(self.workers)
            yield replace(deeper, change=f"prefetch_factor={2 * self.prefetch}")


def model_of(
    run: Run, found: LoaderBatches, contention: Contention | None = None
) -> LoaderModel | None:
    """Return how the batches of the steps were made; None where too little is known of them.

    What workers made is known of the loader with most batches, if it has as many workers as the one
    that feeds the steps.
    """
    facts = run.program_facts
    if facts.loader_workers is None or len(found.asked_ns) < 2:
        return None
    workers, prefetch = facts.loader_workers, facts.loader_prefetch or _PREFETCH
    loader = None
    if workers:
        known: Any = run.loader
        loader = known.loaders[0] if known is not None and known.loaders else None
        if loader is None or loader.workers != workers:
            return None
        timed = _made_by_workers(found, run.loader_batches, workers * prefetch)
    else:
        timed = _made_by_loop(found)
    if timed is None:
        return None
    made, making_ns, handing_ns = timed
    waits_ns = (found.given_ns - found.asked_ns)[made]
    using_ns = found.asked_ns[made] - found.given_ns[made - 1]
    queued_ns = 0.0
    if contention is not None and workers:
        queued_ns = (contention.share or 0.0) * float(waits_ns.mean() + using_ns.mean())
    return LoaderModel(
        making_ns=making_ns,
        using_ns=using_ns,
        handing_ns=handing_ns,
        workers=workers,
        prefetch=prefetch,
        processors=_processors(run, loader, queued_ns),
        wait_ns=float(waits_ns.mean()),
    )


_Made = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Places of batches among those of the loop, how long each was made, and handed over."""


def _made_by_loop(found: LoaderBatches) -> _Made | None:
    """Return the newest batches. For the first the loop may have to load what later ones reuse."""
    made = np.flatnonzero(~found.is_first)[-_MOST_BATCHES:]
    if not len(made):
        return None
    making_ns = (found.given_ns - found.asked_ns)[made]
    return made, making_ns, np.zeros_like(making_ns)


def _made_by_workers(found: LoaderBatches, known: NDArray[np.void], ahead: int) -> _Made | None:
    """Return the newest batches of the last loop over the loader, without the first ones that
    workers made: for them they may have to load what later ones reuse."""
    if not len(known):
        return None
    # The loop has no batch before it is made, and asks for one as it wants that of `ahead` before.
    earliest = np.searchsorted(found.given_ns, known["host_end_ns"]) - known["number"]
    latest = np.searchsorted(found.asked_ns, known["host_begin_ns"], "right") - 1 + ahead
    latest -= known["number"]
    first = int(earliest.max())
    begin_ns = known["host_begin_ns"][0] if known["number"][0] == 0 else -1
    made = first + known["number"]
    kept = (known["number"] >= ahead) & (made >= 0) & (made < len(found.asked_ns))
    if first < 0 or not _are_of_one_loop(first, earliest[kept], latest[kept]):
        return None
    known, made = known[kept][-_MOST_BATCHES:], made[kept][-_MOST_BATCHES:]
    # The workers begin with a loop, and so behind the last batch of the one before.
    is_behind_another = first > 0 and found.given_ns[first - 1] <= begin_ns
    if not (found.is_first[first] or is_behind_another):
        return None
    handing_ns = found.given_ns[made] - np.maximum(found.asked_ns[made], known["host_end_ns"])
    return made, durations_ns_of(known, "host_"), handing_ns


def _are_of_one_loop(first: int, earliest: NDArray[np.int64], latest: NDArray[np.int64]) -> bool:
    """Return whether batches can all be those of one loop whose first one has the place `first`,
    from the places that this could have by the times of each. They can't where a step takes batches
    of two loaders, where a worker of an `IterableDataset` has come to its end before the others, or
    where they are of an evaluation.

    None can be later than its latest place. And some have only one: the loop waited for them, or
    their worker for the loop.
    """
    if not len(earliest):
        return False
    is_certain = (earliest == first) | (latest == first)
    middle = len(is_certain) // 2
    halves = is_certain[:middle], is_certain[middle:]
    return bool((latest < first).mean() <= _MOST_STRAY) and all(
        half.mean() >= _LEAST_CERTAIN for half in halves if len(half) >= _LEAST_BATCHES // 2
    )


def _processors(run: Run, loader: Any, queued_ns: float) -> Processors:
    known: Any = run.cpu_contention
    others = (None if known is None else known.others) or 0.0
    cores = run.environment.get("cores") or 1
    if loader is None:
        return Processors(cores, others)
    return Processors(cores, others, loader.cpu_share, loader.queued_share or 0.0, queued_ns)


def replayed_wait_ns(
    making_ns: Sequence[int],
    using_ns: Sequence[int],
    handing_ns: Sequence[int],
    workers: int,
    prefetch: int,
) -> float:
    """The mean wait of a loop that goes on with these times over and over, without its start.

    Without workers the loop makes each batch itself.
    """
    count = min(len(making_ns), len(using_ns), len(handing_ns), _MOST_BATCHES)
    if not count:
        return 0.0
    if workers == 0:
        return sum(making_ns[:count]) / count
    # More than any loop is ahead: both are numbers in a file.
    ahead = min(workers * prefetch, max(workers, _MOST_AHEAD))
    rounds = max(2, -(-3 * ahead // count))
    got_ns: list[int] = []
    made_ns: list[int] = []
    asked_ns = waited_ns = 0
    for place in range(rounds * count):
        wanted_ns = got_ns[place - ahead] if place >= ahead else 0
        free_ns = made_ns[place - workers] if place >= workers else 0
        made_ns.append(max(wanted_ns, free_ns) + making_ns[place % count])
        got_ns.append(max(asked_ns, made_ns[place]) + handing_ns[place % count])
        if place >= (rounds - 1) * count:
            waited_ns += got_ns[place] - asked_ns
        asked_ns = got_ns[place] + using_ns[place % count]
    return waited_ns / count
