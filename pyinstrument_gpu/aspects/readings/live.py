# SPDX-License-Identifier: Apache-2.0
"""Readings as `watch` shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from pyinstrument_gpu.core.live import SERIES, LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.choice import Choice, Sorts, as_recorded, sparkline
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, time_text

_SORTS: Sorts = {"first": as_recorded, "name": itemgetter("name")}


class LiveReadings(LiveView):
    """The last values of metrics."""

    key = "metrics"
    place = 3
    tab = "Metrics"
    sorts = _SORTS

    def look(self, run: Run, window: LiveWindow) -> tuple[dict[str, Any], ...]:
        return tuple(_readings(run))

    def parts(self, seen: tuple[dict[str, Any], ...], choice: Choice) -> list[Part]:
        if not seen:
            return [Sentence("no metric has been read so far: see MetricAccumulator")]
        rows = []
        for one in choice.of(seen, itemgetter("name"), self.sorts):
            step = UNKNOWN if one["step"] is None else f"{one['step']:,}"
            cells = [one["text"], step, time_text(one["age_ns"])]
            rows.append(Row(one["name"], cells, note=sparkline(one["series"], from_zero=False)))
        return choice.table(["metric", "value", "step", "age"], rows)


def _readings(run: Run) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if not len(readings):
            continue
        last = readings[-1]
        value, step = float(last["value"]), int(last["step"])
        yield {
            "name": name,
            "value": _finite(value),
            "text": f"{value:.6g}",
            "step": step if step >= 0 else None,
            "age_ns": max(0, run.duration_ns - int(last["host_ns"])),
            "series": tuple(map(_finite, readings["value"][-SERIES:].tolist())),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
