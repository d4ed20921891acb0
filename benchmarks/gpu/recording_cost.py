# SPDX-License-Identifier: Apache-2.0
"""What a recording makes of a step, as figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.figure import Figure
from benchmarks.interleave import relative_difference


def recording_figures(
    results: Mapping[str, NDArray[np.float64]], *, goal: float | None = None
) -> Iterator[Figure]:
    """What a recording makes of a step, in percent, beside the floor.

    Args:
        results: of the arms "off", "off again" and "on".
        goal: of the difference.
    """
    for label, other, goal_of_row in (
        ("A/A: without, twice", "off again", None),
        ("A/B: with less without", "on", goal),
    ):
        share = relative_difference(results["off"], results[other])
        yield Figure(
            label,
            100 * share.value,
            "% of the step",
            low=100 * share.low,
            high=100 * share.high,
            goal=goal_of_row,
        )
