# SPDX-License-Identifier: Apache-2.0
"""A reading of an accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """Values as they were after some update.

    Attributes:
        values: by name, as `MetricAccumulator.compute` describes them.
        update: the number of the newest update in them, from 1 on. Numbers go on after a reset.
        step: index of the step that update was made in; None outside a step, while nothing is
            recorded, and where the host did not see the update (a replay of a CUDA graph).
    """

    values: dict[str, Any]
    update: int
    step: int | None
