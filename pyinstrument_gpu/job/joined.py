# SPDX-License-Identifier: Apache-2.0
"""The steps that all ranks have, next to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.data import JobData, RankData
from pyinstrument_gpu.job.findings import BETWEEN_STEPS, OUTSIDE_PHASES

_LEAST_SHARE = 0.5
"""Of the steps that most ranks have, what a rank has to have to be joined."""


@dataclass(frozen=True, eq=False)
class Joined:
    """The common steps of ranks, without the first of the run: it is longer for reasons of its
    own, and DDP only groups its gradients for good after it.

    Attributes:
        ranks: those that were joined, in the order of the second axis.
        left_out: the numbers of the others: they have few of the steps that most ranks have.
        steps: indices of the steps, in the order of the last axis.
        places: by rank and step the place of the step in `RankData.steps`.
        paths: the phases that any of them has, in the order of the first axis; last of all
            `OUTSIDE_PHASES` and `BETWEEN_STEPS`.
        self_ns: by path, rank and step the host time without nested phases (float64); 0 where a
            step does not have the phase.
    """

    ranks: tuple[RankData, ...]
    left_out: tuple[int, ...]
    steps: NDArray[np.int64]
    places: NDArray[np.intp]
    paths: tuple[str, ...]
    self_ns: NDArray[np.float64]

    @property
    def period_ns(self) -> NDArray[np.float64]:
        """By rank and step the time from the end of the step before to the end of the step."""
        total: NDArray[np.float64] = self.self_ns.sum(axis=0)
        return total

    @property
    def uncommon(self) -> NDArray[np.bool_]:
        """Of each path whether some ranks lack it; if there are such, outside of phases as well:
        the same work may be in the one or in the other."""
        lacking = [any(path not in rank.paths for rank in self.ranks) for path in self.paths[:-2]]
        return np.array([*lacking, any(lacking), False], dtype=bool)

    def of_phase(self, column: str, path: str) -> NDArray[np.int64]:
        """A column of `RankData` by rank and step; -1 where a rank lacks the phase."""
        found = np.full((len(self.ranks), len(self.steps)), -1, np.int64)
        for row, rank, places in zip(found, self.ranks, self.places, strict=True):
            if path in rank.paths:
                row[:] = getattr(rank, column)[rank.paths.index(path), places]
        return found

    def stream_means_ns(self, path: str) -> NDArray[np.float64]:
        """By rank the mean stream time of a phase, in the steps that tell it; NaN if none does."""
        stream_ns = self.of_phase("stream_ns", path)
        known = stream_ns >= 0
        counts = np.count_nonzero(known, axis=1)
        sums_ns: NDArray[np.float64] = np.where(known, stream_ns, 0).sum(axis=1, dtype=np.float64)
        return sums_ns / np.where(counts > 0, counts, np.nan)


def traded_ns(joined: Joined, own_ns: NDArray[np.float64], place: int) -> float:
    """How much less a rank works per step than the others in the paths that some ranks lack: it may
    be what it works more in others of these, under another name.

    Args:
        own_ns: by path, rank and step.
    """
    rows = np.flatnonzero(joined.uncommon)
    if not len(rows):
        return 0.0
    means_ns = own_ns[rows].mean(axis=2)
    others_ns = np.median(np.delete(means_ns, place, axis=1), axis=1)
    return float(np.maximum(others_ns - means_ns[:, place], 0).sum())


def joined(job: JobData) -> Joined:
    """The ranks of a job, those left out that ended early, so that the others can be compared."""
    usual = _usual_steps(job)
    ranks, left_out = [], []
    for rank in job.ranks:
        has = np.count_nonzero(np.isin(usual, rank.steps, assume_unique=True))
        if has and has >= _LEAST_SHARE * len(usual):
            ranks.append(rank)
        else:
            left_out.append(rank.rank)
    common = usual
    for rank in ranks:
        common = common[np.isin(common, rank.steps, assume_unique=True)]
    paths = tuple(dict.fromkeys(path for rank in ranks for path in rank.paths))
    row = {path: place for place, path in enumerate(paths)}
    self_ns = np.zeros((len(paths) + 2, len(ranks), len(common)))
    places = np.empty((len(ranks), len(common)), np.intp)
    for number, rank in enumerate(ranks):
        place = places[number] = np.searchsorted(rank.steps, common)
        rows = [row[path] for path in rank.paths]
        self_ns[rows, number] = rank.self_ns[:, place]
        rest_ns = rank.step_ns[place] - self_ns[:, number].sum(axis=0)
        # A phase that outlasts its step takes some of the next.
        self_ns[-2, number] = np.maximum(rest_ns, 0)
        before = np.maximum(place - 1, 0)
        follows = rank.steps[before] == common - 1
        gaps_ns = rank.step_begin_ns[place] - rank.step_begin_ns[before] - rank.step_ns[before]
        self_ns[-1, number] = np.where(follows, gaps_ns, 0)
    return Joined(
        tuple(ranks),
        tuple(left_out),
        common,
        places,
        (*paths, OUTSIDE_PHASES, BETWEEN_STEPS),
        self_ns,
    )


def _usual_steps(job: JobData) -> NDArray[np.int64]:
    """The steps that at least half of the ranks have, ascending, without the first of the run."""
    if not job.ranks:
        return np.empty(0, np.int64)
    found, counts = np.unique(
        np.concatenate([rank.steps for rank in job.ranks]), return_counts=True
    )
    usual: NDArray[np.int64] = found[(2 * counts >= len(job.ranks)) & (found > 0)]
    return usual
