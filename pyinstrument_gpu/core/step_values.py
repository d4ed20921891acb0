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
ELEMENTS, WITHOUT_ZEROS = "step/batch_elements", "step/batch_elements_without_zeros"
"""Those of the batch's first tensor with rows, where samples differ in size and are no tokens; the
second of integers alone."""
SIZES = TOKENS, WITHOUT_PADDING, ELEMENTS, WITHOUT_ZEROS


def values_of_steps(run: Run, name: str, steps: NDArray[np.void]) -> NDArray[np.float64]:
    """The number of that name of each of some steps; NaN unknown."""
    found = np.full(len(steps), np.nan)
    if name in run.metric_names:
        readings = run.metrics[run.metrics["name"] == run.metric_names.index(name)]
        places = places_in(steps["index"], readings["step"])
        found[places[places >= 0]] = readings["value"][places >= 0]
    return found
