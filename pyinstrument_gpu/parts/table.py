# SPDX-License-Identifier: Apache-2.0
"""Names and numbers as text.

Names are shown as they are, except that what would not print (line breaks, escape sequences) is
written as an escape.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu.parts.words import UNKNOWN as UNKNOWN
from pyinstrument_gpu.parts.words import confidence_percent as confidence_percent
from pyinstrument_gpu.parts.words import counted as counted
from pyinstrument_gpu.parts.words import duration as duration
from pyinstrument_gpu.parts.words import percent as percent
from pyinstrument_gpu.parts.words import rate as rate
from pyinstrument_gpu.parts.words import rounded_percent as rounded_percent
from pyinstrument_gpu.parts.words import share as share
from pyinstrument_gpu.parts.words import size as size
from pyinstrument_gpu.parts.words import small_percent as small_percent


def printable(text: str) -> str:
    """The text with an escape (as in a Python literal) for each character that does not print."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


@dataclass(frozen=True)
class Unit:
    """How the durations of one table are written: fixed, so that they compare at a glance."""

    name: str
    ns: int
    decimals: int

    @classmethod
    def fitting(cls, largest_ns: float, total_ns: float = 0) -> Unit:
        """The unit for durations of which this is the largest, and totals of up to `total_ns`."""
        if total_ns >= 1e9:
            largest_ns = max(largest_ns, 1e6)
        if largest_ns >= 10e9:
            return cls("s", 1_000_000_000, 3)
        if largest_ns >= 1e6:
            return cls("ms", 1_000_000, 3 if largest_ns < 1e9 else 1)
        return cls("us", 1_000, 2)

    def text(self, duration_ns: float | None) -> str:
        """The number without the unit; "-" where it is not known."""
        return UNKNOWN if duration_ns is None else f"{duration_ns / self.ns:.{self.decimals}f}"
