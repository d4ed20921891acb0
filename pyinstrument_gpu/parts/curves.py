# SPDX-License-Identifier: Apache-2.0
"""Values over the steps of a run, for pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyinstrument_gpu.parts.words import printable


class Curves(NamedTuple):
    """Some values over one axis.

    Attributes:
        title: what they are.
        data: what the script draws: the names of the axis and of the curves, their unit, the places
            on the axis, ascending, and for each curve a value at each of them; None where it is
            unknown or not finite.
        remark: what the picture does not show.
    """

    title: str
    data: Mapping[str, Any]
    remark: str = ""


def curve_data(
    axis: str, unit: str, x: Iterable[int], curves: Mapping[str, Iterable[float]]
) -> dict[str, Any]:
    """The data of curves of these names, over the steps or updates `x`."""
    return {
        "x_name": axis,
        "unit": unit,
        "names": [*map(printable, curves)],
        "x": [*map(int, x)],
        "y": [[*map(_finite, of)] for of in curves.values()],
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None
