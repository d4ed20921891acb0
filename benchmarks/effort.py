# SPDX-License-Identifier: Apache-2.0
"""How much is measured: enough for a figure, or just enough to show that a benchmark still runs.

With `BENCHMARKS_SMALL=1` in the environment, as `make bench-small` has it, each benchmark does all
that it does otherwise, once and with little of it. Its figures say nothing then.

A file of its own, since what takes turns and what is measured once both ask for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeVar

_T = TypeVar("_T")

IS_SMALL = os.environ.get("BENCHMARKS_SMALL") == "1"

_LEAST_ROUNDS = 20
_SETTLED = 0.01


def size(full: _T, small: _T) -> _T:
    """How much of something there is."""
    return small if IS_SMALL else full


def is_settled(series: Iterable[Sequence[float]]) -> bool:
    """Whether further rounds say nothing new: of each series of at least twenty values, the medians
    of the first and the second half differ by at most a hundredth."""
    for values in series:
        middle = len(values) // 2
        if len(values) < _LEAST_ROUNDS:
            return False
        before, after = median(values[:middle]), median(values[middle:])
        if abs(after - before) > _SETTLED * before:
            return False
    return True
