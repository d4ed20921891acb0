# SPDX-License-Identifier: Apache-2.0
"""What a loop would wait for batches if something changed: the making of batches, replayed.

torch's DataLoader asks its workers in turn. At the beginning each has `prefetch_factor` batches to
make, and whenever the loop gets a batch, the worker whose turn it is is asked for another one. A
worker makes its batches one after the other, and the loop gets them in order. All of this is
known, and how long batches took to make and the loop took between them was recorded; so the replay
with as many workers as there were has to give the wait that was measured. Where it does not,
nothing is said.

How far other workers would change that depends on processors. A worker needs one for a part of the
time that it takes for a batch. As the system shares them fairly, each gets as much as there is for
all that want one: the workers, the loop, and other programs, which go on as they did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import LoaderBatches
from pyinstrument_gpu.core.run import Run

_LEAST_BATCHES, _MOST_BATCHES = 32, 1024
_AGREES_SHARE, _AGREES_NS = 0.15, 500_000
_HANDING_NS = 1_000_000
"""To get a batch from a worker takes up to so long, where the loop had none."""
_PREFETCH = 2
"""torch's default."""
_WORKERS_INSTEAD_OF_NONE = (1, 2, 4)


@dataclass(frozen=True)
class Prediction:
    """How long the loop would wait for a batch, with the range of it.

    Attributes:
        change: what would be changed, in words.
        workers: how many there would be.
        wait_ns: the likely wait.
        least_ns: where no worker ever waits for a processor that others have.
        most_ns: where each has to share them all the time.
    """

    change: str
    workers: int
    wait_ns: float
    least_ns: float
    most_ns: float


@dataclass(frozen=True)
class Processors:
    """How the workers' time depends on processors.

    Attributes:
        cores: how many there are.
        others: how many are wanted by others than the workers, the loop's own among them.
        cpu_share: the part of the time of making a batch in which the worker ran; None where that
            is not known, and may be any.
        queued_share: that in which it was ready, and waited for a processor.
    """

    cores: int
    others: float = 1.0
    cpu_share: float | None = None
    queued_share: float = 0.0

    def shared(self, workers: int) -> float:
        """How long it takes to make a batch where all share the processors, as a part of what it
        took."""
        runs = 1.0 if self.cpu_share is None else self.cpu_share
        asleep = max(0.0, 1.0 - runs - self.queued_share)
        wanted = workers * runs / max(runs + asleep, 1e-9) + self.others
        return runs * max(1.0, wanted / self.cores) + asleep

    def undisturbed(self, workers: int) -> float:
        """The same where a worker waits for no processor, unless there are too few for all
        workers."""
        runs = self.cpu_share or 0.0
        return max(1.0 - self.queued_share, runs, runs * workers / self.cores)


@dataclass(frozen=True)
class LoaderModel:
    """How batches were made and used.

    Attributes:
        making_ns: of each batch, in the order of the loop.
        using_ns: from when the loop had a batch to when it asked for the next one.
        handing_ns: from when a batch was made to when the loop had it.
        workers: how many there were; 0: the loop made its batches itself.
        prefetch: how many batches each makes ahead.
        wait_ns: what the loop waited for a batch, as it was measured.
    """

    making_ns: NDArray[np.int64]
    using_ns: NDArray[np.int64]
    handing_ns: int
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
        """Whether the replay with the workers that there were gives the wait that was measured."""
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
        using_ns = self.using_ns.tolist()
        return replayed_wait_ns(making_ns, using_ns, self.handing_ns, workers, self.prefetch)

    def predicted(self, workers: int) -> Prediction:
        """The wait with so many workers."""
        shared = self.processors.shared(workers)
        least = self.processors.undisturbed(workers)
        likely = max(least, shared / self.processors.shared(max(1, self.workers)))
        if self.processors.cpu_share is None:
            likely = (least + max(least, shared)) / 2
        waits_ns = [self.wait_with(workers, part) for part in (likely, least, max(likely, shared))]
        if not self.workers:
            # What it takes to hand over a batch is not known, and may be as much as workers save.
            waits_ns[2] = max(waits_ns[2] + _HANDING_NS, self.wait_ns)
        words = "1 worker" if workers == 1 else f"{workers} workers"
        return Prediction(words, workers, *waits_ns)

    def with_faster(self, stage: str, shares: tuple[float, float, float]) -> Prediction:
        """The wait if a stage took half as long.

        Args:
            shares: of the time of a batch that it takes: the likely one, the most and the least.
        """
        likely, most, least = (1 - share / 2 for share in shares)
        if self.workers:
            # What it no longer takes of processors others may have.
            most *= min(1.0, self.processors.undisturbed(self.workers))
        waits_ns = [self.wait_with(self.workers, part) for part in (likely, most, least)]
        return Prediction(f"{stage} twice as fast", self.workers, *waits_ns)

    def predictions(self) -> Iterator[Prediction]:
        """With fewer and more workers, and batches made ahead; nothing where the replay does not
        explain the run."""
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


def model_of(run: Run, found: LoaderBatches) -> LoaderModel | None:
    """How the batches of the steps were made; None where too little is known of them.

    What workers made is known of the loader with most batches, if it has as many workers as the one
    that feeds the steps.
    """
    facts, count = run.program_facts, min(len(found.asked_ns), _MOST_BATCHES)
    if facts.loader_workers is None or count < 2:
        return None
    asked_ns, given_ns = found.asked_ns[-count:], found.given_ns[-count:]
    prefetch = facts.loader_prefetch or _PREFETCH
    # For their first batches workers, or the loop, may have to load what later ones reuse.
    since = np.arange(count) - np.maximum.accumulate(
        np.where(found.is_start[-count:], np.arange(count), -count)
    )
    is_usual = since >= max(1, facts.loader_workers) * prefetch
    if not is_usual.any():
        return None
    waits_ns = (given_ns - asked_ns)[is_usual]
    making_ns, handing_ns, loader = waits_ns, 0, None
    if facts.loader_workers:
        known: Any = run.loader
        loader = known.loaders[0] if known is not None and known.loaders else None
        if loader is None or loader.workers != facts.loader_workers or not len(run.loader_batches):
            return None
        # The first ones may have to load what later ones reuse.
        made = run.loader_batches
        made = made[min(facts.loader_workers * prefetch, len(made) - 1) :]
        making_ns = made["host_end_ns"] - made["host_begin_ns"]
        ends_ns = np.sort(made["host_end_ns"])
        handing_ns = _handing_ns(asked_ns, given_ns, found.waited[-count:], ends_ns)
    return LoaderModel(
        making_ns=making_ns,
        using_ns=(asked_ns[1:] - given_ns[:-1])[is_usual[1:]],
        handing_ns=handing_ns,
        workers=facts.loader_workers,
        prefetch=prefetch,
        processors=_processors(run, loader),
        wait_ns=float(waits_ns.mean()),
    )


def _handing_ns(
    asked_ns: NDArray[np.int64],
    given_ns: NDArray[np.int64],
    waited: NDArray[np.bool_],
    ends_ns: NDArray[np.int64],
) -> int:
    """From the end of making a batch to when the loop had it, where it waited for that; at most
    what it waited."""
    last = np.searchsorted(ends_ns, given_ns, side="right") - 1
    is_late = (last >= 0) & waited
    usual_ns = float(np.median(given_ns - asked_ns))
    if not is_late.any():
        return int(usual_ns)
    return int(min(usual_ns, np.median(given_ns[is_late] - ends_ns[last[is_late]])))


def _processors(run: Run, loader: Any) -> Processors:
    known: Any = run.processor
    others = None if known is None else known.others
    cores = run.environment.get("cores") or 1
    if loader is None:
        return Processors(cores, 1.0 + (others or 0.0))
    return Processors(cores, 1.0 + (others or 0.0), loader.cpu_share, loader.queued_share or 0.0)


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
    count = min(len(making_ns), len(using_ns), _MOST_BATCHES)
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
