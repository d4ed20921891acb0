# SPDX-License-Identifier: Apache-2.0
"""The section on metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.core.run import Run


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
