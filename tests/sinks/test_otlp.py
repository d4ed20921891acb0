# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: what a collector gets from the real exporter, and a provider of the program's."""

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.sinks import otlp
from tests.helpers.clock import fake_clock
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.script import run_script
from tests.helpers.sink_training import train
from tests.helpers.sinks import HANGS_AFTER_S, KeepingSink

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="opentelemetry-exporter-otlp-proto-http is not installed",
)

PREFIX = "pyinstrument_gpu."
Points = dict[tuple[tuple[str, Any], ...], Any]


class Collector(ThreadingHTTPServer):
    """Keeps the requests that it gets, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.requests: list[Any] = []
        self.asked = threading.Event()

    @property
    def last(self) -> Any:
        """What came last, of one resource and one scope."""
        (resource_metrics,) = self.requests[-1].resource_metrics
        return resource_metrics

    def points(self, name: str) -> Points:
        """The last points of an instrument by attributes, without their common prefix."""
        (scope_metrics,) = self.last.scope_metrics
        (metric,) = [m for m in scope_metrics.metrics if m.name == PREFIX + name]
        data = getattr(metric, metric.WhichOneof("data"))
        return {attributes_of(point): point for point in data.data_points}

    def values(self, name: str) -> dict[tuple[tuple[str, Any], ...], float]:
        return {
            attributes: getattr(point, point.WhichOneof("value"))
            for attributes, point in self.points(name).items()
        }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

        assert isinstance(self.server, Collector)
        assert self.path == "/v1/metrics"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        if self.server.status == 200:
            self.server.requests.append(request)
        self.server.asked.set()
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def attributes_of(of: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(
        sorted(
            (pair.key.removeprefix(PREFIX), getattr(pair.value, pair.value.WhichOneof("value")))
            for pair in of.attributes
        )
    )


def phase(path: str, scope: str = "step") -> tuple[tuple[str, Any], ...]:
    return (("phase.path", path), ("phase.scope", scope))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", str(10**9))  # not before the end
    for name in ("RESOURCE_ATTRIBUTES", "SERVICE_NAME"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_a_collector_gets(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=training,host.name=mine")
    with fake_clock() as tick, pig.record(sinks=[pig.OTLPSink()]) as recording:
        gpu_phase("no begin").end()
        _accumulator = train(tick)
    run = recording.run

    resource = dict(attributes_of(collector.last.resource))
    facts = {"service.name": "training", "host.name": "mine", "run.id": run.environment["run_id"]}
    assert resource.items() >= (facts | {"process.pid": run.environment["pid"]}).items()
    (scope_metrics,) = collector.last.scope_metrics
    assert scope_metrics.scope.name == "pyinstrument_gpu"
    assert scope_metrics.scope.version == pig.__version__
    assert {(m.name.removeprefix(PREFIX), m.unit) for m in scope_metrics.metrics} == {
        ("step.duration", "s"),
        ("step.index", "{step}"),
        ("step.throughput", "{sample}/s"),
        ("phase.duration", "s"),
        ("metric.value", "1"),
        ("metric.step", "{step}"),
        ("steps", "{step}"),
        ("samples", "{sample}"),
        ("dropped", "{item}"),
    }

    steps = collector.points("step.duration")[()]
    assert steps.count == 4
    assert steps.sum == pytest.approx(0.251)
    within = dict(zip([*steps.explicit_bounds, math.inf], steps.bucket_counts, strict=True))
    assert {bound: count for bound, count in within.items() if count} == {
        0.001: 1,
        0.05: 1,
        0.1: 2,
    }
    phases = collector.points("phase.duration")
    assert {key: point.count for key, point in phases.items()} == {
        phase("data"): 3,
        phase("forward"): 3,
        phase("forward/attention"): 3,
        phase("evaluate"): 1,
    }
    assert phases[phase("forward")].sum == pytest.approx(3 * 0.001750001)
    assert phases[phase("evaluate")].sum == 0.001

    assert collector.values("step.index") == {(): 3}
    assert collector.values("step.throughput") == {(): 80.0}
    assert collector.values("steps") == {
        (("step.complete", True),): 4,
        (("step.complete", False),): 0,
    }
    assert collector.values("samples") == {(): 24}
    assert collector.values("dropped")[("dropped.cause", "unmatched_ends"),] == 1
    # Read long after its step.
    metrics = collector.values("metric.value")
    assert metrics[("metric.name", "loss"),] == 7 / 3
    assert collector.values("metric.step")[("metric.name", "loss"),] == 2
    assert {name for ((_, name),) in metrics} == set(run.metric_names)


def test_device_times(collector: Collector) -> None:
    with attached_cuda() as cuda:
        program = Program(cuda)
        sink = pig.OTLPSink()
        with program.recording() as recording:
            recording.add_sink(sink)
            with gpu_step(), program.phase("forward"):
                program.work(2_000_000)
            cuda.run_dry()

    points = collector.points("phase.device.duration")
    device_ns = int(recording.run.span_device_ns[0])
    assert points[phase("forward")].sum == device_ns / 1e9


def test_it_sends_at_intervals(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    with pig.record(sinks=[pig.OTLPSink()]):
        with gpu_step():
            pass
        assert collector.asked.wait(HANGS_AFTER_S)


def test_collector_that_takes_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither training nor other sinks wait for it, and a try that is under way is given up."""
    monkeypatch.setattr("pyinstrument_gpu.sinks.otlp._LAST_EXPORT_S", 0.01)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    collector.status = 503
    after = KeepingSink()
    recording = pig.start(sinks=[pig.OTLPSink(), after])
    with gpu_step(), gpu_phase("forward"):
        pass
    assert collector.asked.wait(HANGS_AFTER_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "pig-otlp"]
    with pytest.warns(RuntimeWarning, match=r"OTLPSink could not be closed: .*within 0\.01 s"):
        run = recording.stop()
    thread.join(HANGS_AFTER_S)

    assert not thread.is_alive()
    assert after.steps == [0]
    assert run.phases["forward"].count == 1


def test_provider_of_the_program() -> None:
    """It stays as it is, and two recordings may share it."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    for _ in range(2):
        with fake_clock() as tick, pig.record(sinks=[pig.OTLPSink(provider)]), gpu_step():
            tick(2_000_000_000)

    data: Any = reader.get_metrics_data()
    (resource_metrics,) = data.resource_metrics
    (scope_metrics,) = resource_metrics.scope_metrics
    points = {metric.name: metric.data.data_points[0] for metric in scope_metrics.metrics}
    assert points["pyinstrument_gpu.step.duration"].sum == 4.0
    assert points["pyinstrument_gpu.steps"].value == 2
    provider.shutdown()


def test_number_of_series_is_bounded(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    accumulator = pig.MetricAccumulator()
    monkeypatch.setattr(otlp, "MAX_STEPS", 2)
    monkeypatch.setattr(otlp, "_MAX_PATHS", 1)
    monkeypatch.setattr(otlp, "_MAX_METRICS", 2)
    sink = pig.OTLPSink()
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=3600)
        for _ in range(4):
            with gpu_step():
                for name in ("a", "b", "c"):
                    with gpu_phase(name):
                        tick(1_000_000)
                accumulator.update(torch.eye(2), torch.tensor([0, 1]), torch.tensor(0.5))

    phases = collector.points("phase.duration")
    assert {key: (point.count, point.sum) for key, point in phases.items()} == {
        phase("a"): (2, 0.002),
        phase("other"): (2, 0.004),
    }
    assert collector.values("step.index") == {(): 3}  # also where it was not measured
    assert len(collector.values("metric.value")) == 2


def test_a_loss_that_is_not_finite_leaves_its_last_value(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record(sinks=[pig.OTLPSink()]):
        for loss in (0.5, math.nan, math.inf):
            with gpu_step():
                metrics.update(torch.eye(2), torch.tensor([0, 1]), torch.tensor(loss))
            metrics.record_reading()

    last = (("metric.name", "loss_last"),)
    assert (collector.values("metric.value")[last], collector.values("metric.step")[last]) == (
        0.5,
        0,
    )
    assert "finite" not in caplog.text


def test_child_sends_nothing(collector: Collector) -> None:
    """The SDK's own reader would, from a thread that it starts again in every child."""
    script = """
import os, sys, threading, warnings
import pyinstrument_gpu as pig

warnings.simplefilter("ignore", DeprecationWarning)  # of the fork
written = threading.Event()
class After(pig.Sink):
    def write(self, update):
        written.set()

with pig.record() as recording:
    recording.add_sink(pig.OTLPSink(), interval_s=0.001)
    recording.add_sink(After())
    assert written.wait(600)
    print(sorted(thread.name for thread in threading.enumerate() if "tel" in thread.name.lower()
                 or thread.name.startswith("pig-otlp")), flush=True)
    child = os.fork()
    if child == 0:
        print([thread.name for thread in threading.enumerate()], flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
    done = run_script(script)
    assert done.stdout == "['pig-otlp']\n['MainThread']\n"
    assert len(collector.requests) == 1


def test_environment_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for interval in ("soon", "0"):
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
        with pytest.raises(pig.SinkError, match="can't make an OTLP exporter"):
            pig.start(sinks=[pig.OTLPSink()])
