# SPDX-License-Identifier: Apache-2.0
"""The part of the report about metrics: each one's last value, and its extremes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.aspects.readings.section import Metric
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, counted


def metrics_section(metrics: Sequence[Metric]) -> Iterator[Part]:
    """The table of a run's metrics; nothing where there are none."""
    if not metrics:
        return
    rows = [
        Row(
            one.name,
            [
                *_cells(one.last, one.last_step, one.not_finite or UNKNOWN),
                *_cells(one.min, one.min_step),
                *_cells(one.max, one.max_step),
            ],
        )
        for one in metrics
    ]
    yield Sentence()
    yield Sentence("Metrics, as read during the run", "title")
    headers = ["metric", "last", "step", "min", "step", "max", "step"]
    yield table(headers, [rows[:MAX_PATHS]])
    if len(rows) > MAX_PATHS:
        yield Sentence(f"... and {counted(len(rows) - MAX_PATHS, 'more metric')}", "warn")


def _cells(value: float | None, step: int | None, otherwise: str = UNKNOWN) -> tuple[str, str]:
    return (
        otherwise if value is None else f"{value:.6g}",
        UNKNOWN if step is None else str(step),
    )
