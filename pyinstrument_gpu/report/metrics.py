# SPDX-License-Identifier: Apache-2.0
"""The part of the report about metrics: each one's last value, and its extremes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import MAX_PATHS
from pyinstrument_gpu.report.table import UNKNOWN, Row, counted, table


@dataclass(frozen=True)
class Reading:
    """A value of a metric, and the index of the step in which it was read; None outside of all."""

    value: float
    step: int | None

    @classmethod
    def of(cls, row: np.void) -> Reading:
        """A row of `Run.metrics`."""
        return cls(float(row["value"]), int(row["step"]) if row["step"] >= 0 else None)


@dataclass(frozen=True)
class MetricSummary:
    """A metric's last value and its extremes; those are None where no value is finite."""

    name: str
    last: Reading
    min: Reading | None
    max: Reading | None


def metric_summaries(run: RunData) -> list[MetricSummary]:
    """The metrics of a run that were read, in the order of their first readings."""
    summaries = []
    for number, name in enumerate(run.metric_names):
        values = run.metrics[run.metrics["name"] == number]
        if not len(values):
            continue
        finite = values[np.isfinite(values["value"])]
        least = most = None
        if len(finite):
            least, most = (
                Reading.of(finite[place])
                for place in (finite["value"].argmin(), finite["value"].argmax())
            )
        summaries.append(MetricSummary(name, Reading.of(values[-1]), least, most))
    return summaries


def metrics(run: RunData, width: int) -> Iterator[Text | Table]:
    """The table of a run's metrics; nothing where there are none."""
    rows = [
        Row(one.name, [*_cells(one.last), *_cells(one.min), *_cells(one.max)])
        for one in metric_summaries(run)
    ]
    if not rows:
        return
    yield Text()
    yield Text("Metrics, as they were read", "bold")
    headers = ["metric", "last", "step", "min", "step", "max", "step"]
    yield table(headers, [rows[:MAX_PATHS]], width)
    if len(rows) > MAX_PATHS:
        yield Text(f"... and {counted(len(rows) - MAX_PATHS, 'more metric')}", "yellow")


def _cells(reading: Reading | None) -> tuple[str, str]:
    if reading is None:
        return UNKNOWN, UNKNOWN
    return f"{reading.value:.6g}", UNKNOWN if reading.step is None else str(reading.step)
