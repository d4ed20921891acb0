# SPDX-License-Identifier: Apache-2.0
"""How likely it is to hit so often."""

from __future__ import annotations

import math


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """The chance of at least so many hits in independent trials."""
    if hits <= 0:
        return 1.0
    if hits > trials or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    odds = math.log(chance) - math.log1p(-chance)
    term = (
        math.lgamma(trials + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(trials - hits + 1)
        + hits * math.log(chance)
        + (trials - hits) * math.log1p(-chance)
    )
    logs = [term]
    for count in range(hits, trials):
        term += math.log((trials - count) / (count + 1)) + odds
        logs.append(term)
        # Beyond the middle the terms become ever smaller.
        if count > trials * chance and term < max(logs) - 40:
            break
    most = max(logs)
    return min(1.0, math.exp(most) * math.fsum(math.exp(each - most) for each in logs))
