# SPDX-License-Identifier: Apache-2.0
"""A provider of OpenTelemetry's instruments that sends what they hold to a collector."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from pyinstrument_gpu.errors import SinkError

_INTERVAL_MS = 60_000.0  # what the specification says
# Below what a recording waits for all of its sinks.
_LAST_EXPORT_S = 3.0


class OTLPExport:
    """Sends at intervals, on a daemon thread of its own.

    Of its own, because a collector that doesn't answer must not hold up other sinks; and because
    the SDK's reader starts its thread again in every forked child, which would send what its parent
    had measured. Nothing piles up while the collector is away: an instrument holds sums.

    Raises what the exporter raises about the variables of the environment that it reads.
    """

    def __init__(self) -> None:
        interval_ms = float(os.environ.get(OTEL_METRIC_EXPORT_INTERVAL) or _INTERVAL_MS)
        if not 0 < interval_ms < math.inf:
            raise ValueError(f"{OTEL_METRIC_EXPORT_INTERVAL} must be above 0, got {interval_ms:g}")
        self._interval_s = min(interval_ms / 1e3, threading.TIMEOUT_MAX)
        self._exporter = OTLPMetricExporter()
        self._end = threading.Event()
        self._is_late = False
        self._reader: PeriodicExportingMetricReader | None = None
        self._provider: MeterProvider | None = None
        self._thread = threading.Thread(target=self._run, name="pig-otlp", daemon=True)

    def start(self, facts: Mapping[str, Any]) -> MeterProvider:
        """Begin to send. `facts`: attributes of the resource, unless the environment has them
        (`OTEL_RESOURCE_ATTRIBUTES`)."""
        self._reader = PeriodicExportingMetricReader(self._exporter, math.inf)
        # Not at exit: that would wait for a collector that is away, and children have it, too.
        self._provider = MeterProvider(
            [self._reader], Resource(facts).merge(Resource.create()), shutdown_on_exit=False
        )
        self._thread.start()
        return self._provider

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
        assert self._reader is not None
        while True:
            is_last = self._end.wait(self._interval_s)
            if self._is_late:
                return
            self._reader.collect()
            if is_last:
                return
