# SPDX-License-Identifier: Apache-2.0
"""Distributions of the times of phases, as histograms with eight columns per octave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pyinstrument_gpu.core.statistics import Statistic, bucket_bounds
from pyinstrument_gpu.parts.words import printable

_BUCKETS_PER_COLUMN = 4


def columns_of(statistic: Statistic) -> list[list[int]]:
    """The columns that hold something, ascending: where each begins, where it ends and the next one
    may begin, and how many durations are in it. The numbers are exact."""
    columns, place = np.unique(statistic.bucket_indices // _BUCKETS_PER_COLUMN, return_inverse=True)
    counts = np.zeros(len(columns), np.int64)
    np.add.at(counts, place, statistic.bucket_counts)
    return [
        [bucket_bounds(first)[0], bucket_bounds(first + _BUCKETS_PER_COLUMN - 1)[1] + 1, count]
        for first, count in zip(
            (columns * _BUCKETS_PER_COLUMN).tolist(), counts.tolist(), strict=True
        )
    ]


def plain_histograms(label: str, sides: Mapping[str, Statistic | None]) -> dict[str, Any]:
    """Histograms over one axis as the page's script has them: the columns of each side."""
    of = {name: columns_of(side) for name, side in sides.items() if side is not None and side.count}
    return {"label": printable(label), "of": of}


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
    columns = columns_of(statistic)
    low, high = bounds
    tallest = max(count for *_, count in columns)

    def x(ns: int) -> str:
        share = (math.log10(max(1, ns)) - low) / (high - low)
        return f"{width * min(1, max(0, share)):.1f}"

    return "".join(
        # A column is at least a pixel high: what is rare is there, too.
        f"M{x(begin)},{height}V{height - max(1, height * count / tallest):.1f}H{x(end)}V{height}"
        for begin, end, count in columns
    )
