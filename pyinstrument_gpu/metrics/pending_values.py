# SPDX-License-Identifier: Apache-2.0
"""Values of an accumulator that are under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.metrics.across_ranks import Gathering, MergedState
from pyinstrument_gpu.metrics.torch_modes import outside_modes


class PendingValues:
    """What `compute_async()` returns: the values of that moment, once the other ranks' are here."""

    def __init__(
        self, gathering: Gathering, values_of: Callable[[MergedState], dict[str, Any]]
    ) -> None:
        self._gathering: Gathering | None = gathering
        self._values_of = values_of
        self._values: dict[str, Any] = {}

    def done(self) -> bool:
        """Whether the states of all ranks have arrived. Never waits."""
        return self._gathering is None or self._gathering.is_done()

    def result(self) -> dict[str, Any]:
        """Return the values, as `compute(across_ranks=True)` does. Waits for them.

        All ranks have to call it if the accumulator keeps a confusion matrix or bins, which are
        summed only then, by a collective call on the current stream.

        Raises:
            ValueError: the accumulators of the ranks were made with different arguments.
        """
        if self._gathering is not None:
            with outside_modes():
                merged = self._gathering.merged()
            self._values = self._values_of(merged)
            self._gathering = None
        return self._values
