# SPDX-License-Identifier: Apache-2.0
"""The distribution of durations, and those of phases by path and scope.

Exact sums stand beside a histogram; both merge by addition. The sums are integers, so mean and
standard deviation do not depend on the order of durations. The histogram has log-linear buckets, 32
per octave: a value below 32 ns has a bucket of its own, and above that a bucket [low, high] is at
most low / 32 wide. A quantile is the middle of its bucket, so it differs from the exact sample
quantile by at most 1.6 % (1 / 64).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields, groups

_Key = TypeVar("_Key")

BUCKET_COUNT = 1920
"""Number of buckets that 64-bit values need."""

_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def bucket_index(values: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The histogram bucket of each non-negative value of up to 64 bits."""
    values = values.astype(np.uint64)
    exponent = np.minimum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1, 63)
    exponent = np.maximum(exponent, 0)
    # A value just below a power of two rounds up to it as a float.
    exponent -= (values >> exponent.astype(np.uint64) == 0) & (exponent > 0)
    shift = np.maximum(exponent - 5, 0).astype(np.uint64)
    mantissa = ((values >> shift) & np.uint64(31)).astype(np.int64)
    return np.where(exponent < 5, values.astype(np.int64), (exponent - 4) * 32 + mantissa)


def bucket_bounds(index: int) -> tuple[int, int]:
    """The smallest and the largest value of a histogram bucket, both inclusive."""
    if not 0 <= index < BUCKET_COUNT:
        raise ValueError(f"{index = } must be in 0 ... {BUCKET_COUNT - 1}")
    if index < 32:
        return index, index
    shift = index // 32 - 1
    low = (32 + index % 32) << shift
    return low, low + (1 << shift) - 1


@dataclass(frozen=True, eq=False)
class Statistic(ArrayFields):
    """The distribution of some durations.

    Attributes:
        count: number of durations.
        total_ns: their exact sum.
        sum_of_squares: the exact sum of their squares, in ns².
        min_ns: the shortest; 0 when there is none.
        max_ns: the longest; 0 when there is none.
        bucket_indices: histogram buckets that hold something, ascending (see `bucket_bounds`).
        bucket_counts: number of durations in each of those buckets.
    """

    count: int
    total_ns: int
    sum_of_squares: int
    min_ns: int
    max_ns: int
    bucket_indices: NDArray[np.int64]
    bucket_counts: NDArray[np.int64]

    @classmethod
    def of(cls, durations_ns: NDArray[np.integer[Any]]) -> Statistic:
        """The statistic of the given non-negative durations; linear in their number."""
        if len(durations_ns) == 0:
            return _EMPTY
        values = durations_ns.astype(np.uint64)
        counts = np.bincount(bucket_index(values))
        indices = np.flatnonzero(counts)
        return cls(
            count=len(values),
            total_ns=_exact_sum(values),
            sum_of_squares=_exact_sum_of_squares(values),
            min_ns=int(values.min()),
            max_ns=int(values.max()),
            bucket_indices=indices,
            bucket_counts=counts[indices],
        )

    @classmethod
    def merge(cls, statistics: Iterable[Statistic]) -> Statistic:
        """The statistic of all durations together. Exact: it equals that of the concatenation."""
        parts = [statistic for statistic in statistics if statistic.count]
        if not parts:
            return _EMPTY
        if len(parts) == 1:
            return parts[0]
        counts = np.zeros(BUCKET_COUNT, dtype=np.int64)
        for part in parts:
            counts[part.bucket_indices] += part.bucket_counts
        indices = np.flatnonzero(counts)
        return cls(
            count=sum(part.count for part in parts),
            total_ns=sum(part.total_ns for part in parts),
            sum_of_squares=sum(part.sum_of_squares for part in parts),
            min_ns=min(part.min_ns for part in parts),
            max_ns=max(part.max_ns for part in parts),
            bucket_indices=indices,
            bucket_counts=counts[indices],
        )

    def without(self, part: Statistic) -> Statistic | None:
        """The statistic without durations that it counts, or None if it can't have counted them.
        All is exact but the extremes, which may be those of their buckets, within 3.1 %."""
        counts = np.zeros(BUCKET_COUNT, dtype=np.int64)
        counts[self.bucket_indices] += self.bucket_counts
        counts[part.bucket_indices] -= part.bucket_counts
        indices = np.flatnonzero(counts)
        if (counts < 0).any() or part.total_ns > self.total_ns:
            return None
        if not len(indices):
            return _EMPTY
        low_ns, high_ns = bucket_bounds(int(indices[0]))[0], bucket_bounds(int(indices[-1]))[1]
        return Statistic(
            count=self.count - part.count,
            total_ns=self.total_ns - part.total_ns,
            sum_of_squares=self.sum_of_squares - part.sum_of_squares,
            min_ns=self.min_ns if part.min_ns > self.min_ns else max(low_ns, self.min_ns),
            max_ns=self.max_ns if part.max_ns < self.max_ns else min(high_ns, self.max_ns),
            bucket_indices=indices,
            bucket_counts=counts[indices],
        )

    @property
    def mean_ns(self) -> float:
        """Arithmetic mean; NaN when there is no duration."""
        return self.total_ns / self.count if self.count else math.nan

    @property
    def std_ns(self) -> float:
        """Population standard deviation; NaN when there is no duration."""
        if not self.count:
            return math.nan
        return math.sqrt(self.count * self.sum_of_squares - self.total_ns**2) / self.count

    def quantile_ns(self, q: float) -> int:
        """The duration that a share `q` of all durations does not exceed, within 1.6 %.

        Args:
            q: the share, 0 to 1; 0 gives the minimum and 1 the maximum exactly.

        Raises:
            ValueError: `q` is out of range, or there is no duration.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"{q = } must be between 0 and 1")
        if not self.count:
            raise ValueError("a statistic of no durations has no quantiles: check `count` first")
        rank = math.ceil(q * self.count)
        if rank <= 1:
            return self.min_ns
        if rank >= self.count:
            return self.max_ns
        position = int(np.searchsorted(np.cumsum(self.bucket_counts), rank))
        low, high = bucket_bounds(int(self.bucket_indices[position]))
        return min(max((low + high) // 2, self.min_ns), self.max_ns)

    @property
    def p50_ns(self) -> int:
        """The median, within 1.6 %."""
        return self.quantile_ns(0.5)

    @property
    def p95_ns(self) -> int:
        """The 95th percentile, within 1.6 %."""
        return self.quantile_ns(0.95)

    @property
    def p99_ns(self) -> int:
        """The 99th percentile, within 1.6 %."""
        return self.quantile_ns(0.99)


def of_known(durations_ns: NDArray[np.int64]) -> Statistic | None:
    """The statistic of those durations that are known, which are not below 0; None if none is."""
    known_ns = durations_ns[durations_ns >= 0]
    return Statistic.of(known_ns) if len(known_ns) else None


def merge_known(statistics: Iterable[Statistic | None]) -> Statistic | None:
    """The statistic of all durations together; None if there is no statistic."""
    known = [statistic for statistic in statistics if statistic is not None]
    return Statistic.merge(known) if known else None


def known_mean_ns(statistic: Statistic | None) -> float | None:
    """The mean, if there is any duration."""
    return None if statistic is None or not statistic.count else statistic.mean_ns


_NO_BUCKETS = np.empty(0, dtype=np.int64)
_EMPTY = Statistic(0, 0, 0, 0, 0, _NO_BUCKETS, _NO_BUCKETS)


def _exact_sum(values: NDArray[np.uint64]) -> int:
    return (int((values >> _32).sum()) << 32) + int((values & _LOW_32_BITS).sum())


def _exact_sum_of_squares(values: NDArray[np.uint64]) -> int:
    high, low = values >> _32, values & _LOW_32_BITS
    return (_exact_sum(high * high) << 64) + (_exact_sum(high * low) << 33) + _exact_sum(low * low)


@dataclass(frozen=True)
class PhaseStatistics:
    """The statistics of one phase path; each is None where nothing was measured.

    Attributes:
        host: time on the CPU's clock between begin and end.
        self_host: the same without the time in nested phases.
        device: time on the stream between begin and end.
        blocked: the part of the host time in which the CPU waited for the device.
    """

    host: Statistic | None = None
    self_host: Statistic | None = None
    device: Statistic | None = None
    blocked: Statistic | None = None

    @property
    def count(self) -> int:
        """The number of times that the phase was executed (and ended)."""
        return self.host.count if self.host is not None else 0

    @classmethod
    def merge(cls, parts: Iterable[PhaseStatistics]) -> PhaseStatistics:
        """The statistics of all parts together, each with its like."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        return cls(*(merge_known(getattr(part, f.name) for part in parts) for f in fields(cls)))


class Scope(enum.IntEnum):
    """The place where a phase ran, seen from the training step."""

    STEP = 0
    """On the thread that opened the step."""
    OTHER_THREADS = 1
    """On another thread, while a step was open."""
    OUTSIDE = 2
    """While no step was open."""
    PROFILED_STEP = 3
    """As `STEP`, in a step that torch.profiler has slowed."""
    PROFILED_OTHER_THREADS = 4
    """As `OTHER_THREADS`, in a step that torch.profiler has slowed."""

    @property
    def is_profiled(self) -> bool:
        return self >= Scope.PROFILED_STEP


def merged(parts: Iterable[tuple[_Key, PhaseStatistics]]) -> dict[_Key, PhaseStatistics]:
    """The statistics of all parts with the same key together, in order of first appearance."""
    by_key: dict[_Key, list[PhaseStatistics]] = {}
    for key, phase in parts:
        by_key.setdefault(key, []).append(phase)
    return {key: PhaseStatistics.merge(phases) for key, phases in by_key.items()}


def over_scopes(
    statistics: Mapping[tuple[int, Scope], PhaseStatistics],
) -> dict[int, PhaseStatistics]:
    """Statistics by path and scope as those of each path over all scopes, ascending by path. Steps
    that were profiled are left out."""
    return merged(
        (path, phase)
        for (path, scope), phase in sorted(statistics.items())
        if not scope.is_profiled
    )


def as_if_not_profiled(
    statistics: Mapping[tuple[int, Scope], PhaseStatistics],
) -> dict[tuple[int, Scope], PhaseStatistics]:
    """Statistics by path and scope in which profiled steps count as others do."""
    return merged(
        ((path, Scope(scope - Scope.PROFILED_STEP) if scope.is_profiled else scope), phase)
        for (path, scope), phase in statistics.items()
    )


def fold_spans(
    paths: NDArray[np.integer[Any]],
    scopes: NDArray[np.integer[Any]],
    **times_ns: NDArray[np.int64],
) -> dict[tuple[int, Scope], PhaseStatistics]:
    """Statistics of spans by path and scope. Times have the names that `PhaseStatistics` has for
    them; -1 is unknown."""
    folded = {}
    for key, places in groups(paths.astype(np.int64) * len(Scope) + scopes):
        path, scope = divmod(key, len(Scope))
        folded[path, Scope(scope)] = PhaseStatistics(
            **{name: of_known(column[places]) for name, column in times_ns.items()}
        )
    return folded
