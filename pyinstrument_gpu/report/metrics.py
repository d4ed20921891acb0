# SPDX-License-Identifier: Apache-2.0
"""The part of the report about metrics: each one's last value, and its extremes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import MAX_PATHS, UNKNOWN, Row, counted, table


def metrics(run: RunData, width: int) -> Iterator[Text | Table]:
    """The table of a run's metrics; nothing where there are none."""
    if not len(run.metrics):
        return
    rows = []
    for name in range(len(run.metric_names)):
        values = run.metrics[run.metrics["name"] == name]
        if not len(values):
            continue
        cells = [_number(values["value"][-1]), _step(values["step"][-1])]
        finite = values[np.isfinite(values["value"])]
        for position in (finite["value"].argmin, finite["value"].argmax):
            if len(finite):
                extreme = finite[position()]
                cells += [_number(extreme["value"]), _step(extreme["step"])]
            else:
                cells += [UNKNOWN, UNKNOWN]
        rows.append(Row(run.metric_names[name], cells))
    yield Text()
    yield Text("Metrics, as they were read", "bold")
    headers = ["metric", "last", "step", "min", "step", "max", "step"]
    yield table(headers, [rows[:MAX_PATHS]], width)
    if len(rows) > MAX_PATHS:
        yield Text(f"... and {counted(len(rows) - MAX_PATHS, 'more metric')}", "yellow")


def _number(value: float) -> str:
    return f"{value:.6g}"


def _step(index: int) -> str:
    return UNKNOWN if index < 0 else str(index)
