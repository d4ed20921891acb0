# SPDX-License-Identifier: Apache-2.0
"""A reading of an accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """The values after a certain update.

    Attributes:
        values: by name, as `MetricAccumulator.compute` describes them.
        update: the number of the newest update included, from 1. A reset does not restart it.
        step: the index of the step in which that update was made; None outside a step, while
            nothing is being recorded, or if the host did not see the update (a replay of a CUDA
            graph).
    """

    values: dict[str, Any]
    update: int
    step: int | None
