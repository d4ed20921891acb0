# SPDX-License-Identifier: Apache-2.0
"""The times of a simulated program, drawn once for all runs of it, changed or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

_Drawn = TypeVar("_Drawn")


class Draws:
    """What was drawn, by rank and place.

    Each place of each rank has a sequence of random numbers of its own, so what is drawn there does
    not depend on what else the program does.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[tuple[int, int], Any] = {}

    def of(self, rank: int, place: int, draw: Callable[[np.random.Generator], _Drawn]) -> _Drawn:
        """What a place draws, now or earlier."""
        key = (rank, place)
        if key not in self._drawn:
            self._drawn[key] = draw(np.random.default_rng([self._seed, rank, place]))
        drawn: _Drawn = self._drawn[key]
        return drawn
