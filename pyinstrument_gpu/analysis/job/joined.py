# SPDX-License-Identifier: Apache-2.0
"""The steps that all ranks have, next to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.job.findings import BETWEEN_STEPS, OUTSIDE_PHASES
from pyinstrument_gpu.model.job_data import JobData, RankData


@dataclass(frozen=True, eq=False)
class Joined:
    """The common steps of ranks, without the first of the run: it is longer for reasons of its
    own, and DDP only groups its gradients for good after it.

    Attributes:
        ranks: those that were joined, in the order of the second axis.
        steps: indices of the steps, in the order of the last axis.
        places: by rank and step the place of the step in `RankData.steps`.
        paths: the phases that any of them has, in the order of the first axis; last of all
            `OUTSIDE_PHASES` and `BETWEEN_STEPS`.
        self_ns: by path, rank and step the host time without nested phases (float64); 0 where a
            step does not have the phase.
    """

    ranks: tuple[RankData, ...]
    steps: NDArray[np.int64]
    places: NDArray[np.intp]
    paths: tuple[str, ...]
    self_ns: NDArray[np.float64]

    @property
    def period_ns(self) -> NDArray[np.float64]:
        """By rank and step the time from the end of the step before to the end of the step."""
        total: NDArray[np.float64] = self.self_ns.sum(axis=0)
        return total


def joined(job: JobData) -> Joined:
    """Ranks that have none of the steps are left out."""
    ranks = [rank for rank in job.ranks if (rank.steps > 0).any()]
    common = ranks[0].steps if ranks else np.empty(0, np.int64)
    for rank in ranks[1:]:
        common = common[np.isin(common, rank.steps, assume_unique=True)]
    common = common[common > 0]
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
    return Joined(tuple(ranks), common, places, (*paths, OUTSIDE_PHASES, BETWEEN_STEPS), self_ns)
