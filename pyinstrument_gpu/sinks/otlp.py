# SPDX-License-Identifier: Apache-2.0
"""Metrics of OpenTelemetry; docs/exporters/otlp.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.errors import SinkError, needed_for
from pyinstrument_gpu.sinks.otlp_instruments import Instruments
from pyinstrument_gpu.sinks.scalars import STEPS_PER_UPDATE, step_times
from pyinstrument_gpu.sinks.sink import Sink
from pyinstrument_gpu.sinks.update import RunUpdate
from pyinstrument_gpu.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from pyinstrument_gpu.sinks.otlp_export import OTLPExport

_SCOPE = "pyinstrument_gpu"
_MAX_PATHS = 32
_MAX_METRICS = 64
_RESOURCE = {
    "host": "host.name",
    "pid": "process.pid",
    "run_id": "pyinstrument_gpu.core.run.id",
    "rank": "pyinstrument_gpu.rank",
    "world_size": "pyinstrument_gpu.world_size",
}


class OTLPSink(Sink):
    """Measures steps, phases and metrics with OpenTelemetry.

    Args:
        meter_provider: the provider of the instruments, such as that of
            `opentelemetry.metrics.get_meter_provider()`. It remains the caller's. None makes one
            that sends to a collector by OTLP over HTTP, as the environment says
            (`OTEL_EXPORTER_OTLP_ENDPOINT`, by default port 4318 of this machine;
            `OTEL_METRIC_EXPORT_INTERVAL`, by default a minute).
        max_paths: the number of paths that have time series of their own. Later ones are summed up
            as "other", so that the number of time series is bounded.
        max_metrics: the number of metrics to pass on. Later ones are left out.
        steps_per_update: the most steps to measure per update. If there are more, evenly spaced
            ones are measured.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        max_paths: int = _MAX_PATHS,
        max_metrics: int = _MAX_METRICS,
        steps_per_update: int = STEPS_PER_UPDATE,
    ) -> None:
        if meter_provider is not None and not callable(getattr(meter_provider, "get_meter", None)):
            raise TypeError(
                "meter_provider must be a MeterProvider of OpenTelemetry or None, got "
                f"{meter_provider!r}"
            )
        self._provider = meter_provider
        self._max_paths = max_paths
        self._max_metrics = max_metrics
        self._steps_per_update = steps_per_update
        self._export: OTLPExport | None = None
        self._instruments: Instruments | None = None

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
            from pyinstrument_gpu.sinks.otlp_export import OTLPExport
        try:
            self._export = OTLPExport()
        except Exception as error:
            raise SinkError(f"can't make an OTLP exporter: {error}") from error

    def write(self, update: RunUpdate) -> None:
        """Measure new steps and readings. Sending is up to the provider."""
        instruments = self._instruments or self._make_instruments(update.environment)
        for step in step_times(update, self._max_paths, self._steps_per_update):
            instruments.measure_step(step)
        if len(update.steps):
            instruments.set_newest_step(int(update.steps["index"][-1]))
        if update.totals is not None:
            instruments.count_steps(update.totals.steps)
        instruments.count_dropped(update.dropped)
        values = update.metrics[["name", "value"]].tolist()
        for index, (name, value) in zip(update.metric_steps.tolist(), values, strict=True):
            if name < self._max_metrics:
                text = without_surrogates(update.metric_names[name])
                instruments.set_metric(text, value, index)

    def close(self) -> None:
        """Send the rest and end the sink's own provider; leave another one as it is.

        Raises:
            SinkError: the collector did not answer in time.
        """
        if self._export is not None:
            self._export.stop()

    def _make_instruments(self, environment: Mapping[str, Any]) -> Instruments:
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
        self._instruments = Instruments(provider.get_meter(_SCOPE, __version__))
        return self._instruments
