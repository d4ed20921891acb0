# SPDX-License-Identifier: Apache-2.0
"""The section on metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.analysis.advice import Finding, unpriced
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, counted


@dataclass(frozen=True)
class Metric:
    """A metric, as it was read during the run.

    Attributes:
        last: the last of its values.
        not_finite: in its place, where that is no finite number: "nan", "inf" or "-inf".
        min, max: the extremes of those that are finite.
        last_step, min_step, max_step: the step in which it was read; unknown outside steps.
    """

    name: str
    last: float | None
    not_finite: str | None
    last_step: int | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None


def metrics(run: Run) -> tuple[Metric, ...]:
    found = []
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if not len(readings):
            continue
        last, least, greatest = readings[-1], None, None
        value = float(last["value"])
        finite = readings[np.isfinite(readings["value"])]
        if len(finite):
            least = finite[finite["value"].argmin()]
            greatest = finite[finite["value"].argmax()]
        found.append(
            Metric(
                name=name,
                last=value if math.isfinite(value) else None,
                not_finite=None if math.isfinite(value) else str(value),
                last_step=_step(last),
                min=None if least is None else float(least["value"]),
                min_step=None if least is None else _step(least),
                max=None if greatest is None else float(greatest["value"]),
                max_step=None if greatest is None else _step(greatest),
            )
        )
    return tuple(found)


def _step(reading: np.void) -> int | None:
    step = int(reading["step"])
    return step if step >= 0 else None


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


def failures(run: Run) -> Iterator[Finding]:
    """The metrics whose last value is no finite number."""
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if len(readings) and not math.isfinite(readings["value"][-1]):
            last = readings[-1]
            read = "" if last["step"] < 0 else f", read in step {last['step']:,},"
            evidence = f"its last value{read} is {last['value']}"
            yield unpriced(
                "failure", f"metric {name}", evidence, None, "pyinstrument-gpu report RUN --html"
            )
