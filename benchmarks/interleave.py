# SPDX-License-Identifier: Apache-2.0
"""Arms that are measured in turn, and by how much one differs from another.

Each round measures every arm once, in an order drawn anew, so that what drifts (temperature, clock
rates, other programs) falls on all arms alike. An arm that is measured twice under two names gives
the floor: the difference that is seen where there is none.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.effort import size

_RESAMPLES = 10_000
_CONFIDENCE = 0.95


def interleaved(
    arms: Mapping[str, Callable[[], float]],
    *,
    rounds: int,
    seconds: float = float("inf"),
    warm_up: int = 1,
    seed: int = 0,
) -> dict[str, NDArray[np.float64]]:
    """What each arm gave, round by round.

    Args:
        rounds: how many at most.
        seconds: no round begins later than so long after the first; there is always one.
        warm_up: rounds that come before and do not count.
    """
    rounds, warm_up = size(rounds, 1), size(warm_up, 0)
    results: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    shuffle = random.Random(seed).shuffle
    deadline = monotonic() + seconds
    # What there is already need not be looked at again after each round.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in range(-warm_up, rounds):
            if number > 0 and monotonic() >= deadline:
                break
            shuffle(order)
            for name in order:
                result = arms[name]()
                if number >= 0:
                    results[name].append(result)
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: np.array(values, np.float64) for name, values in results.items()}


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def relative_difference(baseline: ArrayLike, other: ArrayLike, *, seed: int = 0) -> Estimate:
    """By how much `other` is above `baseline`, as a share of it: the median over the rounds.

    The interval is a bootstrap over rounds (percentiles of the medians of resampled rounds): it
    assumes nothing of how the noise is distributed, only that rounds are independent.

    Raises:
        ValueError: there are no rounds, or not as many of one as of the other.
    """
    before, after = np.asarray(baseline, np.float64), np.asarray(other, np.float64)
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise ValueError(
            f"both must have the same number of rounds, at least one; got {before.shape} "
            f"and {after.shape}"
        )
    shares = after / before - 1
    drawn = np.random.default_rng(seed).integers(0, len(shares), (_RESAMPLES, len(shares)))
    medians = np.median(shares[drawn], axis=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Estimate(float(np.median(shares)), float(low), float(high))
