# SPDX-License-Identifier: Apache-2.0
"""Numbers that each step has one of, as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import places_in

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

TOKENS, WITHOUT_PADDING = "step/tokens", "step/tokens_without_padding"
"""Padding included, where only the first is known."""
ELEMENTS = "step/batch_elements"
"""Those of batches that are rows of integers, where rows differ in length and are no tokens."""
ELEMENTS_WITHOUT_PADDING = "step/batch_elements_without_padding"
"""Those of them that are not zeros at the ends of rows."""
SIZES = TOKENS, WITHOUT_PADDING, ELEMENTS, ELEMENTS_WITHOUT_PADDING


def values_of_steps(run: Run, name: str, steps: NDArray[np.void]) -> NDArray[np.float64]:
    """The number of that name of each of some steps; NaN unknown."""
    found = np.full(len(steps), np.nan)
    if name in run.metric_names:
        readings = run.metrics[run.metrics["name"] == run.metric_names.index(name)]
        places = places_in(steps["index"], readings["step"])
        found[places[places >= 0]] = readings["value"][places >= 0]
    return found
