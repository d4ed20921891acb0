# SPDX-License-Identifier: Apache-2.0
"""The values of a run's metrics as a table, in the order in which they were read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.table import Column, Part, on_axis, slices


def metrics(run: Run, offset_ns: int) -> Iterator[Part]:
    for rows in slices(len(run.metrics)):
        some = run.metrics[rows]
        yield {
            "metric": Column(some["name"], run.metric_names),
            "update": Column(some["update"]),
            "step": Column(some["step"]),
            "host_ns": Column(on_axis(some["host_ns"], offset_ns)),
            "value": Column(some["value"], gaps=np.zeros(len(some), np.bool_)),
        }
