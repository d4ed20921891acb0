# SPDX-License-Identifier: Apache-2.0
"""What it costs to mark a block of code once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one use of a phase, or of another context manager, without the loop around it.

    What could not be measured has the reason in `missing`, and no times.
    """

    name: str
    is_ours: bool
    best_ns: float | None = None
    median_ns: float | None = None
    rounds: int = 0
    missing: str | None = None
