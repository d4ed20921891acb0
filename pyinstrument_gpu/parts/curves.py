# SPDX-License-Identifier: Apache-2.0
"""Values over the steps of a run, for pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.parts.words import printable


@dataclass(frozen=True)
class Curves:
    """Some values over one axis.

    Attributes:
        title: what they are.
        x_name: "step", or "update" where the steps are not known.
        unit: of the values; empty for plain numbers.
        names: of the curves.
        x: ascending.
        y: for each curve a value at each x; None where it is unknown or not finite.
        remark: what the picture does not show.
    """

    title: str
    x_name: str
    unit: str
    names: tuple[str, ...]
    x: tuple[int, ...]
    y: tuple[tuple[float | None, ...], ...]
    remark: str = ""

    def plain(self) -> dict[str, Any]:
        """The curves as the page's script has them."""
        return {
            "x_name": self.x_name,
            "unit": self.unit,
            "names": [printable(name) for name in self.names],
            "x": self.x,
            "y": self.y,
        }


def finite(values: Iterable[float]) -> tuple[float | None, ...]:
    """The values to seven digits, and None for each that is not finite."""
    return tuple(float(f"{value:.7g}") if math.isfinite(value) else None for value in values)
