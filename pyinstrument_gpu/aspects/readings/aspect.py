# SPDX-License-Identifier: Apache-2.0
"""Readings as an aspect of a run: numbers that have a name, of one step or of all so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.aspects.readings import section as sections
from pyinstrument_gpu.aspects.readings.curves import metric_curves
from pyinstrument_gpu.aspects.readings.file import known_metrics
from pyinstrument_gpu.aspects.readings.live import LiveReadings
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.items import METRIC_ITEM
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.parts.parts import Curves, Part


class ReadingsAspect(Aspect):
    """The values of metrics that were read."""

    name = "metrics"
    live = LiveReadings()
    section_type = tuple[sections.Metric, ...]
    about = "as they were read during the run."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        metrics = given.get("metrics")
        return {
            "metric_names": tuple(given.get("metric_names", ())),
            "metrics": np.empty(0, METRIC_DTYPE) if metrics is None else metrics,
        }

    def read(self, found: Found) -> dict[str, Any]:
        names = found.tables.metric_names
        records = found.blocks.table(BlockType.METRICS, METRIC_ITEM)
        metrics = known_metrics(records, found.numbering, len(names), found.state)
        what, written = "values of metrics", found.state.metrics
        found.note_lacking(BlockType.METRICS, what, records, len(metrics), written)
        return {"metric_names": names, "metrics": metrics}

    def join_history(self, run: Run, earlier: Run) -> None:
        run.metric_names, run.metrics = earlier.metric_names, earlier.metrics

    def section(self, run: Run) -> tuple[sections.Metric, ...]:
        return sections.metrics(run)

    def parts(self, metrics: tuple[sections.Metric, ...], document: Any) -> Iterable[Part]:
        return sections.metrics_section(metrics)

    def failures(self, run: Run) -> Iterable[Finding]:
        return sections.failures(run)

    def curves(self, run: Run) -> Iterable[Curves]:
        return metric_curves(run)


ASPECT = ReadingsAspect()
