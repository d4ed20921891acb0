# SPDX-License-Identifier: Apache-2.0
"""A probabilistic bisection: at which of many commits did steps become longer?

A bisection that makes a fixed number of runs at each of its steps has to make so many that none of
its answers is wrong. Here each run shifts the probabilities of all places at which the change may
be, and the next runs are made where they tell most: at quantiles of these probabilities. That is
the scheme of Horstein (Sequential transmission using noiseless feedback, IEEE Transactions on
Information Theory 9, 1963), analysed by Waeber, Frazier and Henderson (Bisection search with noisy
responses, SIAM Journal on Control and Optimization 51, 2013). Where their answers are bits of known
reliability, ours are times: the likelihood is that of one step in the mean of normal noise, with
the size of both unknown (Smith, A Bayesian approach to inference about a change-point in a sequence
of random variables, Biometrika 62, 1975).

The machine drifts meanwhile. So runs are made in blocks, in an order drawn at random or at once,
and only differences within a block count: each has a mean of its own.

These probabilities are a guide, and no proof: they suppose that one commit alone changed the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import needed_for

BLOCK = 4
"""Runs that share a mean: so few that a drift within them is small, and so many that little of what
they tell is spent on the mean."""
_CLIP = 1.5
"""Standard deviations from the mean of its block beyond which a time counts as so far away (Huber,
Robust estimation of a location parameter, 1964): other programs make a few runs far longer."""
_MAD_TO_SD = 1.4826


@dataclass(frozen=True)
class Places:
    """The places at which steps may have become longer: place i lies between the runnable commits
    i and i + 1.

    Attributes:
        runnable: the commits that can be run, as indices of all.
        chances: the probability of each place; they add up to 1.
        effects: if the change is at that place, the difference of the logarithms of the times.
        noise: in that case, the standard deviation of a run's logarithm.
    """

    runnable: Sequence[int]
    chances: NDArray[np.float64]
    effects: NDArray[np.float64]
    noise: NDArray[np.float64]

    @property
    def best(self) -> int:
        return int(self.chances.argmax())

    def likely(self, probability: float) -> list[int]:
        """The fewest places among which the change is with that probability."""
        order = np.argsort(-self.chances)
        count = int(np.searchsorted(np.cumsum(self.chances[order]), probability)) + 1
        return [int(place) for place in order[:count]]

    def next_commits(self, random: Random) -> list[int]:
        """Return the runnable commits that a block should run, in that order."""
        below = np.append(0.0, np.cumsum(self.chances))
        quantiles = [(part + random.random()) / BLOCK for part in range(BLOCK)]
        chosen = [int(np.abs(below - quantile).argmin()) for quantile in quantiles]
        return random.sample(chosen, len(chosen))


def places(
    commits: Sequence[int],
    times_ns: Sequence[float],
    runnable: Sequence[int],
    blocks: Sequence[int],
) -> Places:
    """Return where the change may be, given the runs, by Bayes' rule.

    Args:
        commits: of each run, the number of its commit among those that can be run; in the order in
            which they were made.
        times_ns: what a step took in each of them.
        runnable: the commits that can be run, as indices of all. Before any run, each commit is
            as suspect as any other.
        blocks: the number of the block of each run, in ascending order.

    Raises:
        MissingDependencyError: scipy is not installed.
    """
    with needed_for("comparing runs", "scipy"):
        from scipy import special
    of_run = np.unique(np.asarray(blocks), return_inverse=True)[1].astype(np.int64)
    times = _within(np.log(np.asarray(times_ns, np.float64)), of_run)
    reach = _CLIP * _MAD_TO_SD * float(np.median(np.abs(times)))
    times = _within(np.clip(times, -reach, reach), of_run)
    is_later = np.asarray(commits) > np.arange(len(runnable) - 1)[:, None]  # one row for each place
    steps = _within(is_later.astype(np.float64), of_run)
    weights = (steps**2).sum(axis=1)
    freedom = max(len(commits) - int(of_run[-1]) - 2, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effects = np.where(weights > 0, steps @ times / weights, 0.0)
        rests = np.maximum(times @ times - effects**2 * weights, np.finfo(float).tiny)
        noise = np.sqrt(rests / freedom)
        # With flat priors of the means, the effect and the logarithm of the noise.
        logs = np.log(np.diff(runnable)) - freedom / 2 * np.log(rests) - np.log(weights) / 2
        is_slower = special.stdtr(freedom, effects * np.sqrt(weights) / noise)
        logs = np.where(weights > 0, logs + np.log(is_slower), -np.inf)
    chances = np.exp(logs - logs.max())
    return Places(runnable, chances / chances.sum(), effects, noise)


def _within(values: NDArray[np.float64], blocks: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values less the mean of their block, along the last axis."""
    begins = np.flatnonzero(np.diff(blocks, prepend=-1))
    means = np.add.reduceat(values, begins, axis=-1) / np.bincount(blocks)
    return values - means[..., blocks]
