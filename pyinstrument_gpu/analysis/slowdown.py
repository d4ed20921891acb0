# SPDX-License-Identifier: Apache-2.0
"""Whether a comparison shows that the second side is slower, shows that it is not, or neither."""

from __future__ import annotations

import enum

from pyinstrument_gpu.analysis.compare import Comparison


class Slowdown(enum.Enum):
    SLOWER = "SLOWER"
    NOT_SLOWER = "NOT SLOWER"
    UNCLEAR = "UNCLEAR"
    """The runs show neither."""


def slowdown(comparison: Comparison, limit: float) -> Slowdown:
    """Judged by where the interval of the elapsed time's change lies.

    NOT_SLOWER: it does not reach beyond the limit, or beyond the margin of the comparison, if that
    is more: differences as small as the margin are not called any. SLOWER: it lies above the limit
    as a whole, and reaches beyond the margin.

    Args:
        limit: relative change up to which being slower is accepted; 0.05 is 5 %.
    """
    interval = comparison.elapsed.interval
    if interval is None:
        return Slowdown.UNCLEAR
    low, high = interval
    if high <= max(limit, comparison.margin):
        return Slowdown.NOT_SLOWER
    return Slowdown.SLOWER if low > limit else Slowdown.UNCLEAR
