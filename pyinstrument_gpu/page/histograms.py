# SPDX-License-Identifier: Apache-2.0
"""How the times of phases are distributed, as histograms with eight columns per octave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.model.statistic import Statistic, bucket_bounds

_BUCKETS_PER_COLUMN = 4
COLUMNS_PER_OCTAVE = 32 // _BUCKETS_PER_COLUMN


@dataclass(frozen=True)
class Histogram:
    """The columns that hold something, ascending.

    Attributes:
        low_ns: where each begins.
        high_ns: where each ends, and the next one may begin.
        counts: how many durations are in each.
    """

    low_ns: tuple[int, ...]
    high_ns: tuple[int, ...]
    counts: tuple[int, ...]


def histogram(statistic: Statistic) -> Histogram:
    """The histogram of a statistic. Its counts are exact, and so are the bounds of its columns."""
    columns, place = np.unique(statistic.bucket_indices // _BUCKETS_PER_COLUMN, return_inverse=True)
    counts = np.zeros(len(columns), np.int64)
    np.add.at(counts, place, statistic.bucket_counts)
    first = (columns * _BUCKETS_PER_COLUMN).tolist()
    return Histogram(
        tuple(bucket_bounds(bucket)[0] for bucket in first),
        tuple(bucket_bounds(bucket + _BUCKETS_PER_COLUMN - 1)[1] + 1 for bucket in first),
        tuple(counts.tolist()),
    )


def plain_histograms(statistics: Mapping[str, Statistic | None]) -> dict[str, list[list[int]]]:
    """For each name with a statistic, the columns as lists of begin, end and count."""
    return {
        name: [list(column) for column in zip(of.low_ns, of.high_ns, of.counts, strict=True)]
        for name, statistic in statistics.items()
        if statistic is not None and statistic.count
        for of in [histogram(statistic)]
    }


def time_bounds(statistics: Iterable[Statistic | None]) -> tuple[float, float]:
    """The ends of a logarithmic axis (base 10, of ns) on which all of them have room."""
    known = [statistic for statistic in statistics if statistic is not None and statistic.count]
    if not known:
        return 0.0, 1.0
    low = math.log10(max(1, min(statistic.min_ns for statistic in known)))
    high = math.log10(max(1, max(statistic.max_ns for statistic in known)))
    return low - 0.05, max(high, low + 0.5) + 0.05


def spark_path(statistic: Statistic, bounds: tuple[float, float], width: int, height: int) -> str:
    """The histogram as the path of an SVG picture, on a logarithmic axis between the bounds."""
    of = histogram(statistic)
    low, high = bounds
    tallest = max(of.counts)

    def x(ns: int) -> str:
        share = (math.log10(max(1, ns)) - low) / (high - low)
        return f"{width * min(1, max(0, share)):.1f}"

    columns = zip(of.low_ns, of.high_ns, of.counts, strict=True)
    return "".join(
        # A column is at least a pixel high: what is rare is there, too.
        f"M{x(begin)},{height}V{height - max(1, height * count / tallest):.1f}H{x(end)}V{height}"
        for begin, end, count in columns
    )
