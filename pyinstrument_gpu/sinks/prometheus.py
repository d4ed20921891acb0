# SPDX-License-Identifier: Apache-2.0
"""Statistics of the run so far for Prometheus; docs/exporters/data.md lists the metrics."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyinstrument_gpu.analysis.slow_sums import SlowSums
from pyinstrument_gpu.core.file.follower import RunFollower
from pyinstrument_gpu.core.paths import labels_of, without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import PhaseStatistics, Statistic, bucket_index
from pyinstrument_gpu.core.steps import StepTotals
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink

if TYPE_CHECKING:
    from prometheus_client import Metric

_MAX_PATHS = 32
_MAX_METRICS = 64
_PREFIX = "pyinstrument_gpu"
_SLOW_STEPS_S = 15.0
_MOST_OF_THE_TIME = 0.01
"""How often slow steps are looked for at most, and what share of the time that may take."""
_FACTS = ("host", "rank", "world_size", "run_id", "version")

# Ends of the recorder's own buckets, so that counts are exact: 2^k - 1 ns, from 16 us to 69 s.
_BOUNDS_NS = np.array([(1 << power) - 1 for power in range(14, 37)])
_BOUND_TEXTS = [*(repr(bound_ns / 1e9) for bound_ns in _BOUNDS_NS.tolist()), "+Inf"]

_servers: weakref.WeakSet[Any] = weakref.WeakSet()


class PrometheusSink(Sink):
    """Serves the statistics of the run on `http://host:port/metrics` during the recording.

    It has at most eight connections at a time, for at most five seconds each. The causes of slow
    steps are read from the run file, every quarter of a minute; of a run in memory there are none.

    Args:
        port: the port to listen on; 0 picks a free one.
        host: the address to listen on. With the default, only this machine can reach it.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port = port
        self._host = host
        self._metrics: dict[str, float] = {}
        self._last_step_s: float | None = None
        self._slow_ns: dict[str, int] = {}
        self._slow_steps: _SlowSteps | None = None
        self._families: Iterable[Metric] = ()
        self._server: Any = None

    @property
    def port(self) -> int:
        """The port it listens on, once it has been added to a recording."""
        return self._port

    def open(self) -> None:
        """Start listening.

        Raises:
            SinkError: the port is taken, or there is no such address.
            MissingDependencyError: prometheus_client is not installed.
        """
        # Not above: whoever only imports the package needs no web server.
        from pyinstrument_gpu.sinks.scrape_server import serve

        self._server = serve(self, self._host, self._port, "the Prometheus sink")
        self._port = self._server.server_port
        _servers.add(self._server)

    def write(self, update: RunUpdate) -> None:
        """Prepare the answer to the next scrapes."""
        for name, value in update.metrics[["name", "value"]].tolist():
            if name < _MAX_METRICS:
                self._metrics[without_surrogates(update.metric_names[name])] = value
        if len(update.steps):
            end_ns = int(update.steps["end_ns"][-1])
            self._last_step_s = (update.began_realtime_ns + end_ns) / 1e9
        if update.path is not None:
            self._slow_steps = self._slow_steps or _SlowSteps(update.path)
            self._slow_ns = self._slow_steps.look()
        self._families = [
            *_families(update, self._metrics, self._last_step_s),
            *_of_slow_steps(self._slow_ns),
        ]

    def collect(self) -> Iterable[Metric]:
        """Collect the metrics for prometheus_client, which calls this on a thread of its own."""
        return self._families

    def close(self) -> None:
        """Stop listening."""
        _servers.discard(self._server)
        self._server.close()
        if self._slow_steps is not None:
            self._slow_steps.close()


class _SlowSteps:
    """The excess of slow steps in the run file over others of their kind, by cause."""

    def __init__(self, path: str) -> None:
        self._follower = RunFollower(path)
        self._sums = SlowSums()
        self._next_s = 0.0

    def look(self) -> dict[str, int]:
        """Return all so far. Reads the newest part of the history, but not in each call."""
        began_s = time.monotonic()
        if began_s >= self._next_s:
            self._sums.add(Run.from_blocks(self._follower.look()))
            took_s = time.monotonic() - began_s
            self._next_s = began_s + max(_SLOW_STEPS_S, took_s / _MOST_OF_THE_TIME)
        return self._sums.excess_ns

    def close(self) -> None:
        self._follower.close()


def _of_slow_steps(excess_ns: Mapping[str, int]) -> Iterator[Metric]:
    if excess_ns:
        what = "Time that slow steps took beyond others of their kind, by cause."
        seconds = {cause: time_ns / 1e9 for cause, time_ns in excess_ns.items()}
        yield _family("Counter", "slow_step_seconds", what, _each_alone(seconds), "cause")


def _families(
    update: RunUpdate, metrics: Mapping[str, float], last_step_s: float | None
) -> Iterator[Metric]:
    facts = {fact: update.environment.get(fact) for fact in _FACTS}
    info = {fact: str(value) for fact, value in facts.items() if value is not None}
    yield _family("Info", "run", "The recording.", {"": (info,)})
    what = "Events that were not recorded as asked, by cause."
    yield _family("Counter", "dropped", what, _each_alone(update.dropped), "cause")
    yield _family("Counter", "spans", "Executions of phases.", {"": (update.phases_recorded,)})
    if update.totals is not None:
        yield from _of_steps(update.totals.steps)
        labels = dict(zip(update.paths, labels_of(update.paths, _MAX_PATHS), strict=True))
        yield from _of_phases(update.totals.phases, labels)
    if metrics:
        what = "Metrics of the training, as last read."
        yield _family("Gauge", "metric", what, _each_alone(metrics), "name")
    if last_step_s is not None:
        what = "When the last step ended, by the clock of its machine."
        yield _family("Gauge", "last_step_timestamp_seconds", what, {"": (last_step_s,)})


def _family(
    kind: str, name: str, what: str, samples: Mapping[str, tuple[Any, ...]], label: str = ""
) -> Metric:
    """A family with a sample for each value of a label; without a label, with one sample."""
    from prometheus_client import core

    labels = [label] if label else []
    family: Any = getattr(core, f"{kind}MetricFamily")(f"{_PREFIX}_{name}", what, labels=labels)
    for value, sample in samples.items():
        family.add_metric([value] if label else [], *sample)
    metric: Metric = family
    return metric


def _each_alone(values: Mapping[str, float]) -> dict[str, tuple[float]]:
    return {name: (value,) for name, value in values.items()}


def _of_steps(totals: StepTotals) -> Iterator[Metric]:
    counts = {"true": totals.complete, "false": totals.count - totals.complete}
    yield _family("Counter", "steps", "Steps that ended.", _each_alone(counts), "complete")
    what = "Durations of steps."
    yield _family("Histogram", "step_seconds", what, {"": _buckets_and_sum(totals.duration)})
    if totals.sampled:
        what = "Samples of the steps of which they are known."
        yield _family("Counter", "samples", what, {"": (totals.samples,)})


def _of_phases(
    phases: Mapping[str, PhaseStatistics], labels: Mapping[str, str]
) -> Iterator[Metric]:
    for clock, name, what in (
        ("host", "phase_seconds", "Durations of phases on the CPU."),
        ("device", "phase_device_seconds", "Durations of phases on their device stream."),
    ):
        by_label: dict[str, list[Statistic]] = {}
        for path, phase in phases.items():
            statistic = getattr(phase, clock)
            if statistic is not None:
                by_label.setdefault(labels[path], []).append(statistic)
        if by_label:
            samples = {
                label: _buckets_and_sum(Statistic.merge(some)) for label, some in by_label.items()
            }
            yield _family("Histogram", name, what, samples, "path")


def _buckets_and_sum(statistic: Statistic) -> tuple[list[tuple[str, float]], float]:
    up_to = np.append(0, np.cumsum(statistic.bucket_counts))
    places = np.searchsorted(statistic.bucket_indices, bucket_index(_BOUNDS_NS), side="right")
    counts = [*up_to[places].tolist(), statistic.count]
    return list(zip(_BOUND_TEXTS, counts, strict=True)), statistic.total_ns / 1e9


def _close_in_child() -> None:
    # The parent's socket stays open as long as any process holds it: a scrape of a parent that was
    # killed would then wait instead of being refused.
    for server in _servers:
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
