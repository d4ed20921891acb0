# SPDX-License-Identifier: Apache-2.0
"""What it costs to mark a block of code once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one use of a phase, or of another context manager.

    Attributes:
        name: what was measured.
        is_ours: whether it is a phase of this package.
        best_ns, median_ns: the fastest and the median round, without the loop around it. None where
            it could not be measured.
        rounds: how many rounds these figures rest on; 0 where it could not be measured.
        missing: why it could not be measured, or None.
    """

    name: str
    is_ours: bool
    best_ns: float | None = None
    median_ns: float | None = None
    rounds: int = 0
    missing: str | None = None
