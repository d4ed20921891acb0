# SPDX-License-Identifier: Apache-2.0
"""The values of metrics that were read in a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.format.blocks import true_prefix
from pyinstrument_gpu.format.state import State
from pyinstrument_gpu.format.steps import StepNumbering
from pyinstrument_gpu.model.schema import METRIC_DTYPE


def metric_columns(items: NDArray[np.void], steps: NDArray[np.int64]) -> NDArray[np.void]:
    """Items of the METRICS log as `METRIC_DTYPE`; `steps` are indices."""
    metrics = np.empty(len(items), METRIC_DTYPE)
    for column in ("update", "host_ns", "name", "value"):
        metrics[column] = items[column]
    metrics["step"] = steps
    return metrics


def known_metrics(
    items: NDArray[np.void], numbering: StepNumbering, names: int, state: State
) -> NDArray[np.void]:
    """The values up to the first that can't be true."""
    items = items[: true_prefix((items["name"] < names) & (items["host_ns"] >= 0))]
    serials = np.ascontiguousarray(items["step"])
    certain = numbering.is_certain(serials, state.metrics)
    return metric_columns(items, np.where(certain, numbering.indices(serials), -1))
