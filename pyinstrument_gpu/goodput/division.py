# SPDX-License-Identifier: Apache-2.0
"""The division of a job's wall time: each nanosecond belongs to exactly one bucket.

Several ranks do several things at once, and their intervals overlap. A moment belongs to the first
bucket of `Bucket` that any interval claims it for; one that nobody claims is of no attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Bucket(enum.IntEnum):
    """The uses of a job's time. A moment belongs to the first of those that claim it."""

    HUNG = 0
    """Nothing happened any more on any rank, until the attempt was ended."""
    STARTUP = 1
    """Some rank has not come to its first step yet."""
    CHECKPOINT = 2
    """Some rank writes one, and its loop waits for that."""
    EVALUATION = 3
    STRAGGLERS = 4
    """In a step, what the last rank works longer than the median one."""
    PRODUCTIVE = 5
    """In a step that no attempt had done before."""
    RECOMPUTED = 6
    """In a step that was done before, or that the end of its attempt has cut off."""
    OUTSIDE = 7
    """Some rank was recorded, in none of these."""
    DEAD = 8
    """Nothing was recorded: between attempts."""

    @property
    def words(self) -> str:
        """The bucket's name in a report."""
        return _WORDS[self]


_WORDS = {
    Bucket.PRODUCTIVE: "productive steps",
    Bucket.RECOMPUTED: "steps again or cut off",
    Bucket.STARTUP: "start-up",
    Bucket.CHECKPOINT: "checkpoints",
    Bucket.EVALUATION: "evaluation",
    Bucket.STRAGGLERS: "waiting for stragglers",
    Bucket.HUNG: "hung",
    Bucket.OUTSIDE: "outside steps",
    Bucket.DEAD: "between attempts",
}
IN_ORDER = tuple(_WORDS)
"""The buckets as a report lists them."""


@dataclass(frozen=True, eq=False)
class Division:
    """The division of a job's time among buckets.

    Attributes:
        boundaries_ns: where pieces begin, ascending, and then where the last one ends (int64).
        buckets: of each piece (int8); neighbours differ.
    """

    boundaries_ns: NDArray[np.int64]
    buckets: NDArray[np.int8]

    @property
    def totals_ns(self) -> dict[Bucket, int]:
        """The time of each bucket. They add up to the whole, to the nanosecond."""
        lengths_ns = np.diff(self.boundaries_ns)
        return {
            bucket: int(lengths_ns[self.buckets == bucket].sum(dtype=np.int64))
            for bucket in IN_ORDER
        }


def divided(begin_ns: int, end_ns: int, claims: Mapping[Bucket, NDArray[np.int64]]) -> Division:
    """Divide the time from `begin_ns` to `end_ns`.

    Args:
        claims: by bucket intervals as rows of begin and end, in any order. They may overlap, or
            reach beyond the time; those that end before they begin claim nothing.
    """
    inside = {bucket: _within(begin_ns, end_ns, rows) for bucket, rows in claims.items()}
    ends = [np.array([begin_ns, end_ns], np.int64), *(rows.reshape(-1) for rows in inside.values())]
    boundaries_ns = np.unique(np.concatenate(ends))
    buckets = np.full(len(boundaries_ns) - 1, Bucket.DEAD, np.int8)
    for bucket in sorted(inside, reverse=True):  # the first bucket has the last word
        begins, ends_of = np.searchsorted(boundaries_ns, inside[bucket]).T
        changes = np.bincount(begins, minlength=len(boundaries_ns))
        changes = changes - np.bincount(ends_of, minlength=len(boundaries_ns))
        buckets[np.cumsum(changes)[:-1] > 0] = bucket
    is_first = np.append(True, buckets[1:] != buckets[:-1])[: len(buckets)]
    return Division(np.append(boundaries_ns[:-1][is_first], boundaries_ns[-1]), buckets[is_first])


def _within(begin_ns: int, end_ns: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    clipped = np.clip(rows.reshape(-1, 2), begin_ns, end_ns)
    return clipped[clipped[:, 0] < clipped[:, 1]]


def covered_ns(
    rows: NDArray[np.int64], since_ns: NDArray[np.int64], until_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how much of the time between each two moments is covered by any of some intervals."""
    begins_ns, ends_ns = _joined(rows)
    sums_ns = np.append(0, np.cumsum(ends_ns - begins_ns))

    def before(moments_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        begun = np.searchsorted(begins_ns, moments_ns, side="right")
        over_ns = np.append(0, ends_ns)[begun] - moments_ns
        covered: NDArray[np.int64] = sums_ns[begun] - np.where(begun, np.maximum(over_ns, 0), 0)
        return covered

    return before(until_ns) - before(since_ns)


def end_of_cover_ns(rows: NDArray[np.int64], moments_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The end of what covers each moment without a gap; the moment where nothing does."""
    begins_ns, ends_ns = _joined(rows)
    begun = np.searchsorted(begins_ns, moments_ns, side="right")
    found: NDArray[np.int64] = np.maximum(np.append(0, ends_ns)[begun], moments_ns)
    return found


def _joined(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The intervals without what they have in common, ascending: their begins and ends."""
    if not len(rows):
        return rows[:, 0], rows[:, 1]
    division = divided(int(rows.min()), int(rows.max()), {Bucket.CHECKPOINT: rows})
    covers = division.buckets == Bucket.CHECKPOINT
    return division.boundaries_ns[:-1][covers], division.boundaries_ns[1:][covers]
