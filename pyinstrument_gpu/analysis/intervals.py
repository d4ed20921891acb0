# SPDX-License-Identifier: Apache-2.0
"""Sums and look-ups over intervals of time that ascend and do not overlap; quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def joined(
    begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The time that is covered by spans, which may nest and repeat, as begins and ends of such
    intervals."""
    order = np.argsort(begins_ns, kind="stable")
    begins_ns = begins_ns[order]
    latest_ns = np.maximum.accumulate(ends_ns[order])
    first = np.ones(len(begins_ns), dtype=bool)
    first[1:] = begins_ns[1:] > latest_ns[:-1]
    return begins_ns[first], latest_ns[np.flatnonzero(np.append(first, True)[1:])]


def covered_before(
    begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64], times_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how much of the intervals lies before each time."""
    lengths_ns = np.append(0, np.cumsum(ends_ns - begins_ns))
    begun = np.searchsorted(begins_ns, times_ns, side="right")
    beyond_ns = np.append(np.iinfo(np.int64).min, ends_ns)[begun]
    covered_ns: NDArray[np.int64] = lengths_ns[begun] - np.maximum(
        np.where(begun > 0, beyond_ns, times_ns) - times_ns, 0
    )
    return covered_ns


def interval_at(
    begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64], times_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The position of the interval in which each time lies; -1 where it lies in none."""
    place = np.searchsorted(begins_ns, times_ns, side="right") - 1
    inside = times_ns < np.append(ends_ns, np.iinfo(np.int64).min)[place]
    return np.where((place >= 0) & inside, place, -1)


def quantiles(values: NDArray[Any], shares: Sequence[float]) -> list[Any]:
    """Return quantiles by nearest rank: for each share, the least value that this share of the
    values does not exceed. There must be a value. Sorts a copy.

    As `np.quantile` with `inverted_cdf`, for which numpy imports `numpy.ma` (see `distinct`).
    """
    ascending = np.sort(values)
    count = len(ascending)
    return [ascending[max(math.ceil(share * count), 1) - 1].item() for share in shares]
