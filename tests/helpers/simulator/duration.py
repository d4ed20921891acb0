# SPDX-License-Identifier: Apache-2.0
"""How long something takes, from one time to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Duration:
    """A distribution of times.

    Attributes:
        typical_ns: the median, where there is no second mode.
        spread: the standard deviation of the logarithm.
        second_share, second_factor: so often it takes so many times as long.
        stall_share, stall_ns, stall_alpha: so often a stall comes on top, of Pareto's distribution
            with this scale and exponent.
        is_preempted: whether stalls are waits for a processor, which another program has.
    """

    typical_ns: float
    spread: float = 0.0
    second_share: float = 0.0
    second_factor: float = 1.0
    stall_share: float = 0.0
    stall_ns: float = 0.0
    stall_alpha: float = 1.5
    is_preempted: bool = False

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, ...], scale: NDArray[np.float64] | float
    ) -> NDArray[np.int64]:
        """So many times, each multiplied by a scale."""
        return self.draw_with_waits(rng, shape, scale)[0]

    def draw_with_waits(
        self, rng: np.random.Generator, shape: tuple[int, ...], scale: NDArray[np.float64] | float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same, and how long each waits for a processor."""
        waits_ns = np.zeros(shape)
        times_ns = np.broadcast_to(self.typical_ns * np.asarray(scale), shape)
        if self.spread:
            times_ns = times_ns * np.exp(self.spread * rng.standard_normal(shape))
        if self.second_share:
            is_second = rng.random(shape) < self.second_share
            times_ns = times_ns * np.where(is_second, self.second_factor, 1.0)
        if self.stall_share:
            stalls_ns = self.stall_ns * (1 + rng.pareto(self.stall_alpha, shape))
            # A stall of more than a few seconds is another kind of trouble.
            stalls_ns = np.minimum(stalls_ns, 100 * self.stall_ns)
            stalls_ns = np.where(rng.random(shape) < self.stall_share, stalls_ns, 0.0)
            times_ns = times_ns + stalls_ns
            waits_ns = stalls_ns if self.is_preempted else waits_ns
        return np.rint(times_ns).astype(np.int64), np.rint(waits_ns).astype(np.int64)
