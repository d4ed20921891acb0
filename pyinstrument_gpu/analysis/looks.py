# SPDX-License-Identifier: Apache-2.0
"""Looking at a comparison more than once, as runs are added, without being wrong more often.

Whoever looks at an interval of 95 % after every few runs, and stops as soon as it leaves out zero,
is wrong far more often than in 5 % of the cases. So there are a few looks, which are planned before
the first run, and each may spend a part of the error. With n of at most N runs of each side, the
looks so far have spent the share (n / N)**2 of it: the power family of spending functions with the
exponent 2 (Kim, DeMets: Design and analysis of group sequential tests based on the type I error
spending rate function, Biometrika 74, 1987), in the scheme of Lan and DeMets (Discrete sequential
boundaries for clinical trials, Biometrika 70, 1983). Most of the error is left for the last look.

The bounds that belong to these shares are usually computed from the joint distribution of the
looks, which is known for means of known variance and not for Welch's t of a few runs. Here each
look has an interval of its own at the confidence 1 - share. By Bonferroni's inequality, the chance
that any of them misses the truth is at most the sum of the shares, however the looks depend on each
other. That costs a little power, and holds wherever a single interval holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MOST_LOOKS = 4
_EXPONENT = 2


@dataclass(frozen=True)
class Look:
    """A comparison of what there is so far.

    Attributes:
        runs: of each side.
        confidence: of its interval.
    """

    runs: int
    confidence: float


def looks(runs: int, max_runs: int, confidence: float) -> tuple[Look, ...]:
    """The looks at `runs` to `max_runs` runs of each side, each at about as many times the runs of
    the one before. With `confidence`, the intervals of all of them hold together.

    Raises:
        ValueError: there is no such plan.
    """
    if not 1 <= runs <= max_runs:
        raise ValueError(f"runs must be 1 to max_runs, got {runs} and {max_runs}")
    growth, steps = max_runs / runs, _MOST_LOOKS - 1
    sizes = sorted({round(runs * growth ** (number / steps)) for number in range(_MOST_LOOKS)})
    spent = [(1 - confidence) * (size / max_runs) ** _EXPONENT for size in sizes]
    shares = np.diff(spent, prepend=0.0).tolist()
    return tuple(Look(size, 1 - share) for size, share in zip(sizes, shares, strict=True))
