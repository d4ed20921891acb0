# SPDX-License-Identifier: Apache-2.0
"""The part of the report about metrics: each one's last value, and its extremes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import MAX_PATHS
from pyinstrument_gpu.report.table import UNKNOWN, Row, counted, table


def metric_readings(run: RunData) -> Iterator[tuple[str, list[np.void | None]]]:
    """Each metric with three of its readings (`METRIC_DTYPE`): the last, and the least and the
    greatest of those that are finite; None where none is."""
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        finite = readings[np.isfinite(readings["value"])]
        by_value = finite["value"]
        if len(finite):
            yield name, [readings[-1], finite[by_value.argmin()], finite[by_value.argmax()]]
        elif len(readings):
            yield name, [readings[-1], None, None]


def metrics(run: RunData, width: int) -> Iterator[Text | Table]:
    """The table of a run's metrics; nothing where there are none."""
    rows = [
        Row(name, [cell for reading in readings for cell in _cells(reading)])
        for name, readings in metric_readings(run)
    ]
    if not rows:
        return
    yield Text()
    yield Text("Metrics, as read during the run", "bold")
    headers = ["metric", "last", "step", "min", "step", "max", "step"]
    yield table(headers, [rows[:MAX_PATHS]], width)
    if len(rows) > MAX_PATHS:
        yield Text(f"... and {counted(len(rows) - MAX_PATHS, 'more metric')}", "yellow")


def _cells(reading: np.void | None) -> tuple[str, str]:
    if reading is None:
        return UNKNOWN, UNKNOWN
    return f"{reading['value']:.6g}", UNKNOWN if reading["step"] < 0 else str(reading["step"])
