# SPDX-License-Identifier: Apache-2.0
"""How likely it is to hit so often."""

from __future__ import annotations

import math

import numpy as np


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """The chance of at least so many hits in independent trials, by a chance below 1."""
    if hits <= 0 or chance <= 0:
        return float(hits <= 0)
    counts = np.arange(hits, trials)
    odds = math.log(chance) - math.log1p(-chance)
    first = (
        math.lgamma(trials + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(trials - hits + 1)
        + hits * math.log(chance)
        + (trials - hits) * math.log1p(-chance)
    )
    logs = first + np.append(0, np.cumsum(np.log((trials - counts) / (counts + 1)) + odds))
    return min(1.0, float(np.exp(logs).sum()))
