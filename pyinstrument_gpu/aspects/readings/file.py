# SPDX-License-Identifier: Apache-2.0
"""The values of metrics that were read in a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Records, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import columns
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.core.schema import METRIC_DTYPE


def known_metrics(
    records: Records, numbering: StepNumbering, names: int, state: State
) -> NDArray[np.void]:
    """The values up to the first that can't be true."""
    items = records.items
    is_time = (items["host_ns"] >= 0) & (items["host_ns"] < TIME_LIMIT_NS)
    items = items[: true_prefix((items["name"] < names) & is_time)]
    serials = np.ascontiguousarray(items["step"])
    certain = numbering.is_certain(serials, state.metrics - records.first)
    return columns(items, METRIC_DTYPE, step=np.where(certain, numbering.indices(serials), -1))
