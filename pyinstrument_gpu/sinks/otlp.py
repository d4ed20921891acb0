# SPDX-License-Identifier: Apache-2.0
"""Metrics of OpenTelemetry; docs/exporters/data.md lists them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.errors import SinkError, needed_for
from pyinstrument_gpu.sinks.scalars import MAX_STEPS, PhasesOfStep, phases_of_steps
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink
from pyinstrument_gpu.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

_SCOPE = "pyinstrument_gpu"
_MAX_PATHS = 32
_MAX_METRICS = 64
_RESOURCE = {
    "host": "host.name",
    "pid": "process.pid",
    "run_id": "pyinstrument_gpu.run.id",
    "rank": "pyinstrument_gpu.rank",
    "world_size": "pyinstrument_gpu.world_size",
}
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = 60_000.0  # what the specification says
# Below what a recording waits for all of its sinks.
_LAST_EXPORT_S = 3.0

# Kind, unit and description, by the name that OpenTelemetry's conventions ask for.
_INSTRUMENTS = {
    "step.duration": ("histogram", "s", "Durations of steps."),
    "phase.duration": ("histogram", "s", "What a step spent in a phase, on the CPU."),
    "phase.device.duration": (
        *("histogram", "s", "What a step spent in a phase, on its device stream."),
    ),
    "step.index": ("gauge", "{step}", "The index of the newest step."),
    "step.throughput": ("gauge", "{sample}/s", "Samples per second of a step."),
    "metric.value": ("gauge", "1", "Metrics of the training, as last read."),
    "metric.step": ("gauge", "{step}", "The step that a metric's value is of."),
    "steps": ("counter", "{step}", "Steps that ended."),
    "samples": ("counter", "{sample}", "Samples of the steps of which they are known."),
    "dropped": ("counter", "{item}", "What was not recorded as asked, by cause."),
}
# Seconds. Those that OpenTelemetry has by default are meant for milliseconds.
_BOUNDS_S = [digit * 10.0**power for power in range(-5, 2) for digit in (1, 2, 5)]
_SCOPES = {Scope.STEP: "step", Scope.OTHER_THREADS: "other_threads"}


class OTLPSink(Sink):
    """Measures steps, phases and metrics with OpenTelemetry.

    Args:
        meter_provider: the provider of the instruments, such as that of
            `opentelemetry.metrics.get_meter_provider()`. It remains the caller's. None makes one
            that sends to a collector by OTLP over HTTP, as the environment says
            (`OTEL_EXPORTER_OTLP_ENDPOINT`, by default port 4318 of this machine;
            `OTEL_METRIC_EXPORT_INTERVAL`, by default a minute).
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        if meter_provider is not None and not callable(getattr(meter_provider, "get_meter", None)):
            raise TypeError(
                "meter_provider must be a MeterProvider of OpenTelemetry or None, got "
                f"{meter_provider!r}"
            )
        self._provider = meter_provider
        self._export: _OTLPExport | None = None
        self._instruments: _Instruments | None = None

    def open(self) -> None:
        """Make the exporter, unless the provider is the caller's. Nothing is sent yet.

        Raises:
            SinkError: the exporter doesn't take what the environment says.
            MissingDependencyError: the SDK of OpenTelemetry or its exporter is not installed.
        """
        if self._provider is not None:
            return
        packages = "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        with needed_for("the OTLP sink", packages, "opentelemetry"):
            import opentelemetry.exporter.otlp.proto.http.metric_exporter
            import opentelemetry.sdk.metrics.export  # noqa: F401
        try:
            self._export = _OTLPExport()
        except Exception as error:
            raise SinkError(f"can't make an OTLP exporter: {error}") from error

    def write(self, update: RunUpdate) -> None:
        """Measure new steps and readings. Sending is up to the provider."""
        instruments = self._instruments or self._make_instruments(update.environment)
        for step in phases_of_steps(update, _MAX_PATHS, MAX_STEPS):
            instruments.measure_step(step)
        if len(update.steps):
            instruments.set("step.index", int(update.steps["index"][-1]))
        if update.totals is not None:
            steps = update.totals.steps
            instruments.count("steps", steps.complete, {"step.complete": True})
            instruments.count("steps", steps.count - steps.complete, {"step.complete": False})
            if steps.sampled:
                instruments.count("samples", steps.samples)
        for cause, count in update.dropped.items():
            instruments.count("dropped", count, {"dropped.cause": cause})
        values = update.metrics[["name", "value"]].tolist()
        for index, (name, value) in zip(update.metric_steps.tolist(), values, strict=True):
            # OpenTelemetry takes no value that is not finite, and would warn of each.
            if name < _MAX_METRICS and math.isfinite(value):
                its_name = {"metric.name": without_surrogates(update.metric_names[name])}
                instruments.set("metric.value", value, its_name)
                if index >= 0:
                    instruments.set("metric.step", index, its_name)

    def close(self) -> None:
        """Send the rest and end the sink's own provider; leave another one as it is.

        Raises:
            SinkError: the collector did not answer in time.
        """
        if self._export is not None:
            self._export.stop()

    def _make_instruments(self, environment: Mapping[str, Any]) -> _Instruments:
        provider = self._provider
        if self._export is not None:
            provider = self._export.start(
                {
                    attribute: environment[fact]
                    for fact, attribute in _RESOURCE.items()
                    if environment.get(fact) is not None
                }
            )
        assert provider is not None
        self._instruments = _Instruments(provider.get_meter(_SCOPE, __version__))
        return self._instruments


class _Instruments:
    """The instruments of one meter. Their names and those of attributes begin with that of the
    package."""

    def __init__(self, meter: Meter) -> None:
        self._all: dict[str, Any] = {}
        for name, (kind, unit, description) in _INSTRUMENTS.items():
            make = getattr(meter, f"create_{kind}")
            others: dict[str, Any] = {}
            if kind == "histogram":
                others["explicit_bucket_boundaries_advisory"] = _BOUNDS_S
            self._all[name] = make(f"{_SCOPE}.{name}", unit, description, **others)
        self._counted: dict[tuple[object, ...], float] = {}

    def measure_step(self, step: PhasesOfStep) -> None:
        self._all["step.duration"].record((step.end_ns - step.begin_ns) / 1e9)
        if step.samples_per_s is not None:
            self.set("step.throughput", step.samples_per_s)
        for (scope, label, on_device), time_ns in step.phases_ns.items():
            name = "phase.device.duration" if on_device else "phase.duration"
            its_phase = _named({"phase.path": label, "phase.scope": _SCOPES[scope]})
            self._all[name].record(time_ns / 1e9, its_phase)

    def set(self, name: str, value: float, attributes: Mapping[str, str] | None = None) -> None:
        self._all[name].set(value, _named(attributes or {}))

    def count(
        self, name: str, total: float, attributes: Mapping[str, str | bool] | None = None
    ) -> None:
        """Count up to the total of the whole run so far."""
        named = _named(attributes or {})
        key = (name, *named.items())
        before = self._counted.get(key)
        if before is None or total > before:  # also 0, once: nothing dropped is not unknown
            self._all[name].add(total - (before or 0), named)
            self._counted[key] = total


def _named(attributes: Mapping[str, str | bool]) -> dict[str, str | bool]:
    return {f"{_SCOPE}.{name}": value for name, value in attributes.items()}


class _OTLPExport:
    """A provider of instruments that sends what they hold to a collector, at intervals, on a daemon
    thread of its own.

    Of its own, because a collector that doesn't answer must not hold up other sinks; and because
    the SDK's reader starts its thread again in every forked child, which would send what its parent
    had measured. Nothing piles up while the collector is away: an instrument holds sums.

    Raises what the exporter raises about the variables of the environment that it reads.
    """

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        interval_ms = float(os.environ.get(_INTERVAL) or _INTERVAL_MS)
        if not 0 < interval_ms < math.inf:
            raise ValueError(f"{_INTERVAL} must be above 0, got {interval_ms:g}")
        self._interval_s = min(interval_ms / 1e3, threading.TIMEOUT_MAX)
        self._exporter = OTLPMetricExporter()
        self._end = threading.Event()
        self._is_late = False
        self._reader: Any = None
        self._provider: Any = None
        self._thread = threading.Thread(target=self._run, name="pig-otlp", daemon=True)

    def start(self, facts: Mapping[str, Any]) -> MeterProvider:
        """Begin to send. `facts`: attributes of the resource, unless the environment has them
        (`OTEL_RESOURCE_ATTRIBUTES`)."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        self._reader = PeriodicExportingMetricReader(self._exporter, math.inf)
        # Not at exit: that would wait for a collector that is away, and children have it, too.
        self._provider = provider = MeterProvider(
            [self._reader], Resource(facts).merge(Resource.create()), shutdown_on_exit=False
        )
        self._thread.start()
        return provider

    def stop(self) -> None:
        """Send once more and end, after a few seconds in any case.

        Raises:
            SinkError: the collector did not answer meanwhile.
        """
        self._end.set()
        if self._provider is None:
            self._exporter.shutdown()
            return
        self._thread.join(_LAST_EXPORT_S)
        self._is_late = self._thread.is_alive()
        self._provider.shutdown()  # ends the exporter's attempts
        if self._is_late:
            raise SinkError(
                f"the OTLP collector did not take the last values within {_LAST_EXPORT_S:g} s"
            )

    def _run(self) -> None:
        while True:
            is_last = self._end.wait(self._interval_s)
            if self._is_late:
                return
            self._reader.collect()
            if is_last:
                return
