# SPDX-License-Identifier: Apache-2.0
"""The instruments with which the OTLP sink measures, named as OpenTelemetry's conventions ask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_totals import StepTotals
from pyinstrument_gpu.sinks.scalars import StepTimes

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Meter

_SCOPES = {Scope.STEP: "step", Scope.OTHER_THREADS: "other_threads"}
_PATH = "pyinstrument_gpu.phase.path"
_PHASE_SCOPE = "pyinstrument_gpu.phase.scope"
_COMPLETE = "pyinstrument_gpu.step.complete"
_CAUSE = "pyinstrument_gpu.dropped.cause"
_METRIC = "pyinstrument_gpu.metric.name"

# Seconds. Those that OpenTelemetry has by default are meant for milliseconds.
_BOUNDS_S = [digit * 10.0**power for power in range(-5, 2) for digit in (1, 2, 5)]

Attributes = dict[str, str | bool]


class Instruments:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._step_duration = meter.create_histogram(
            "pyinstrument_gpu.step.duration",
            "s",
            "Durations of steps.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._phase_duration = meter.create_histogram(
            "pyinstrument_gpu.phase.duration",
            "s",
            "What a step spent in a phase, on the CPU.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._device_duration = meter.create_histogram(
            "pyinstrument_gpu.phase.device.duration",
            "s",
            "What a step spent in a phase, on its device stream.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._step_index = meter.create_gauge(
            "pyinstrument_gpu.step.index", "{step}", "The index of the newest step."
        )
        self._throughput = meter.create_gauge(
            "pyinstrument_gpu.step.throughput", "{sample}/s", "Samples per second of a step."
        )
        self._metric = meter.create_gauge(
            "pyinstrument_gpu.metric.value", "1", "Metrics of the training, as last read."
        )
        self._metric_step = meter.create_gauge(
            "pyinstrument_gpu.metric.step", "{step}", "The step that a metric's value is of."
        )
        self._steps = meter.create_counter("pyinstrument_gpu.steps", "{step}", "Steps that ended.")
        self._samples = meter.create_counter(
            "pyinstrument_gpu.samples", "{sample}", "Samples of the steps of which they are known."
        )
        self._dropped = meter.create_counter(
            "pyinstrument_gpu.dropped", "{item}", "What was not recorded as asked, by cause."
        )
        self._counted: dict[tuple[object, ...], float] = {}

    def measure_step(self, step: StepTimes) -> None:
        self._step_duration.record((step.end_ns - step.begin_ns) / 1e9)
        if step.samples_per_s is not None:
            self._throughput.set(step.samples_per_s)
        for (scope, label, on_device), time_ns in step.phases_ns.items():
            histogram = self._device_duration if on_device else self._phase_duration
            histogram.record(time_ns / 1e9, {_PATH: label, _PHASE_SCOPE: _SCOPES[scope]})

    def set_newest_step(self, index: int) -> None:
        self._step_index.set(index)

    def count_steps(self, totals: StepTotals) -> None:
        """Of the whole run so far."""
        self._count_up_to(self._steps, totals.complete, {_COMPLETE: True})
        self._count_up_to(self._steps, totals.count - totals.complete, {_COMPLETE: False})
        if totals.sampled:
            self._count_up_to(self._samples, totals.samples, {})

    def count_dropped(self, dropped: Mapping[str, int]) -> None:
        """Of the whole run so far."""
        for cause, count in dropped.items():
            self._count_up_to(self._dropped, count, {_CAUSE: cause})

    def set_metric(self, name: str, value: float, step: int) -> None:
        """A `step` below 0 is none. OpenTelemetry takes no value that is not finite, and would warn
        of each."""
        if not math.isfinite(value):
            return
        self._metric.set(value, {_METRIC: name})
        if step >= 0:
            self._metric_step.set(step, {_METRIC: name})

    def _count_up_to(self, counter: Counter, total: float, attributes: Attributes) -> None:
        key = (counter, *attributes.items())
        before = self._counted.get(key)
        if before is None or total > before:  # also 0, once: nothing dropped is not unknown
            counter.add(total - (before or 0), attributes)
            self._counted[key] = total
