# SPDX-License-Identifier: Apache-2.0
"""Prometheus: what a scrape gets, by prometheus_client's own parser and by a real Prometheus."""

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.sinks import prometheus
from tests.helpers.clock import fake_clock
from tests.helpers.device_program import Program, assert_exact, attached_cuda
from tests.helpers.script import run_script
from tests.helpers.sinks import HANGS_AFTER_S, KeepingSink

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="prometheus_client is not installed"
)

SOON_S = 0.001
T = TypeVar("T")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(sink: pig.PrometheusSink, host: str = "127.0.0.1") -> Samples:
    """Every sample by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    url = f"http://{host}:{sink.port}/metrics"
    with urllib.request.urlopen(url, timeout=HANGS_AFTER_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"pyinstrument_gpu_{name}", tuple(sorted(labels.items()))]


def wait_for_steps(recording: pig.Recording, count: int) -> None:
    """Until sinks that were added before know so many steps."""
    after = KeepingSink()
    recording.add_sink(after)
    after.wait_for(lambda update: update.totals is not None and update.totals.steps.count == count)


def train(tick: Any) -> None:
    """Ends with statistics being due."""
    for _ in gpu_steps(range(2), samples=8):
        with gpu_phase("forward"):
            tick(1 << 20)
            with gpu_phase("attention"):
                tick((1 << 20) - 1)
    with gpu_step():
        tick(3_000_000_000)


def test_slow_steps_by_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinstrument_gpu.sinks.prometheus._SLOW_STEPS_S", 0.0)
    monkeypatch.setattr("pyinstrument_gpu.sinks.prometheus._MOST_OF_THE_TIME", math.inf)
    sink = pig.PrometheusSink(port=0)
    with fake_clock() as tick, pig.record(tmp_path / "run.gpurun") as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        for step in gpu_steps(range(9)):
            tick(1_000_000)
            if step == 8:
                with gpu_phase("evaluate"):
                    tick(1_500_000_000)
        recording.flush()
        # The file may be behind what sinks are told.
        samples: Samples = {}
        while not any("slow_step" in name for name, _ in samples):
            samples = scrape(sink)
    assert of(samples, "slow_step_seconds_total", cause="evaluation") == 1.5


def test_scrape() -> None:
    sink = pig.PrometheusSink(port=0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        gpu_phase("no begin").end()
        train(tick)
        wait_for_steps(recording, 3)
        samples = scrape(sink)

    assert of(samples, "steps_total", complete="true") == 3
    assert of(samples, "steps_total", complete="false") == 0
    assert of(samples, "samples_total") == 16
    assert of(samples, "spans_total") == 6
    assert of(samples, "dropped_total", cause="unmatched_ends") == 1
    assert of(samples, "dropped_total", cause="ring_full") == 0
    assert of(samples, "step_seconds_count") == 3
    assert of(samples, "step_seconds_sum") == (4 * (1 << 20) - 2 + 3_000_000_000) / 1e9
    environment = recording.run.environment
    identity = {key: str(environment[key]) for key in ("host", "run_id", "version")}
    identity |= {key: str(environment[key]) for key in ("rank", "world_size") if key in environment}
    assert of(samples, "run_info", **identity) == 1

    forward, attention = "forward", "forward/attention"
    assert of(samples, "phase_seconds_count", path=forward) == 2
    assert of(samples, "phase_seconds_sum", path=attention) == 2 * ((1 << 20) - 1) / 1e9
    assert of(samples, "phase_seconds_sum", path=forward) == 2 * ((1 << 21) - 1) / 1e9
    # Bounds are 2^k - 1 ns: exactly on a bound is within.
    for path, power in ((attention, 20), (forward, 21)):
        bounds = {k: repr(((1 << k) - 1) / 1e9) for k in range(14, 37)}
        counts = {
            k: of(samples, "phase_seconds_bucket", path=path, le=le) for k, le in bounds.items()
        }
        assert counts == {k: 2.0 * (k >= power) for k in range(14, 37)}
        assert of(samples, "phase_seconds_bucket", path=path, le="+Inf") == 2
    assert not [name for name, _ in samples if "device" in name]


def test_device_histograms() -> None:
    sink, after = pig.PrometheusSink(port=0), KeepingSink()
    with attached_cuda() as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            recording.add_sink(sink, interval_s=SOON_S)
            recording.add_sink(after)
            recording.flush(0)  # the device's clock has its first anchor
            for work_ns in (1 << 14, 1 << 20, 1 << 21):
                with gpu_step(), program.phase("forward"):
                    program.work(work_ns)
                cuda.run_dry()
            cuda.advance(3_000_000_000)  # statistics are due
            after.wait_for(lambda update: device_times(update, "forward") == 3)
            samples = scrape(sink)
        assert_exact(recording.run, program)

    durations_ns = recording.run.span_device_ns
    assert of(samples, "phase_device_seconds_count", path="forward") == 3
    assert of(samples, "phase_device_seconds_sum", path="forward") == durations_ns.sum() / 1e9
    for power in range(14, 37):
        bound_ns = (1 << power) - 1
        within = of(samples, "phase_device_seconds_bucket", path="forward", le=repr(bound_ns / 1e9))
        assert within == (durations_ns <= bound_ns).sum()


def test_silent_connections_take_few_threads_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = pig.PrometheusSink(port=0)
    with contextlib.ExitStack() as end, pig.record() as recording:
        recording.add_sink(sink)
        before = threading.active_count(), len(os.listdir("/proc/self/fd"))
        silent = [
            end.enter_context(socket.create_connection(("127.0.0.1", sink.port), HANGS_AFTER_S))
            for _ in range(40)
        ]
        assert all(one.recv(1) == b"" for one in silent[8:])  # these were too many
        after = threading.active_count(), len(os.listdir("/proc/self/fd"))
        assert after[0] - before[0] <= 8
        assert after[1] - before[1] <= len(silent) + 8
        (tmp_path / "checkpoint").write_bytes(b"a file can be opened")

        monkeypatch.setattr("pyinstrument_gpu.sinks.scrape_server._CONNECTION_S", 0.0)
        assert all(one.recv(1) == b"" for one in silent[:8])
        monkeypatch.undo()
        assert scrape(sink)
        last = end.enter_context(socket.create_connection(("127.0.0.1", sink.port), HANGS_AFTER_S))
        recording.stop()
        # The kernel resets a connection which the server had not yet accepted.
        with contextlib.suppress(ConnectionResetError):
            assert last.recv(1) == b""


def test_when_the_last_step_ended() -> None:
    sink = pig.PrometheusSink(port=0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        before = scrape(sink)
        for _ in range(2):
            with gpu_step():
                tick(1_000_000_000)
    # The port is closed, but this is what it served last.
    last = {sample.name: sample.value for family in sink.collect() for sample in family.samples}

    name = "pyinstrument_gpu_last_step_timestamp_seconds"
    assert (name, ()) not in before
    began_ns = recording.run.began_realtime_ns
    assert began_ns is not None
    end_s = (began_ns + recording.run.steps[1].end_ns) / 1e9
    assert last[name] == pytest.approx(end_s, rel=0, abs=1e-6)


def device_times(update: pig.RunUpdate, path: str) -> int:
    if update.totals is None or path not in update.totals.phases:
        return 0
    device = update.totals.phases[path].device
    return 0 if device is None else device.count


def metrics_in(samples: Samples) -> dict[str, float]:
    return {
        dict(labels)["name"]: value
        for (name, labels), value in samples.items()
        if name == "pyinstrument_gpu_metric"
    }


def test_metrics_have_their_newest_values() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sink, after = pig.PrometheusSink(port=0), KeepingSink()
    train, validation = pig.MetricAccumulator(topk=1), pig.MetricAccumulator(topk=1, name="val")
    logits, target = torch.eye(4), torch.tensor([0, 1, 2, 0])
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        recording.add_sink(after)
        after.wait_for(lambda update: True)
        assert metrics_in(scrape(sink)) == {}
        validation.update(logits, target, torch.tensor(0.1, dtype=torch.float64))
        for loss in (3.0, 1.0):
            train.update(logits, target, torch.tensor(loss))
            tick(100_000_000)
        after.wait_for(lambda update: 2 in update.metrics["update"])
        samples = metrics_in(scrape(sink))

    names = ("count", "loss", "loss_last", "accuracy@1", "nonfinite")
    values = {"": (8, 2, 1, 0.75, 0), "val/": (4, 0.1, 0.1, 0.75, 0)}
    assert samples == {
        prefix + name: value
        for prefix, of_prefix in values.items()
        for name, value in zip(names, of_prefix, strict=True)
    }


def test_number_of_metrics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(prometheus, "_MAX_METRICS", 2)
    sink, after = pig.PrometheusSink(port=0), KeepingSink()
    metrics = pig.MetricAccumulator(topk=1, name="a\n")
    with fake_clock(), pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        recording.add_sink(after)
        metrics.update(torch.eye(4), torch.arange(4), torch.tensor(math.inf))
        after.wait_for(lambda update: len(update.metrics) > 2)
        names = list(recording.snapshot().metric_names)
        samples = metrics_in(scrape(sink))

    assert list(samples) == names[:2]


def test_before_the_first_statistics() -> None:
    """Nothing is shown as 0 that is not known yet."""
    sink, after = pig.PrometheusSink(0), KeepingSink()
    with fake_clock(), pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        recording.add_sink(after)
        after.wait_for(lambda _: True)
        samples = scrape(sink)

    assert of(samples, "spans_total") == 0
    assert not [name for name, _ in samples if "step" in name or "samples" in name]


def test_samples_that_are_not_known() -> None:
    sink = pig.PrometheusSink(0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        with gpu_step():
            tick(3_000_000_000)
        wait_for_steps(recording, 1)
        samples = scrape(sink)

    assert of(samples, "steps_total", complete="true") == 1
    assert ("pyinstrument_gpu_samples_total", ()) not in samples


def test_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_MAX_PATHS", 2)
    sink = pig.PrometheusSink(0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        with gpu_step():
            for number in range(50):
                with gpu_phase(f"phase {number}"):
                    tick(1_000)
            tick(3_000_000_000)
        wait_for_steps(recording, 1)
        samples = scrape(sink)

    counts = {
        dict(labels)["path"]: value
        for (name, labels), value in samples.items()
        if name == "pyinstrument_gpu_phase_seconds_count"
    }
    assert counts == {"phase 0": 1, "phase 1": 1, "other": 48}
    assert of(samples, "phase_seconds_sum", path="other") == 48_000 / 1e9


def test_labels_of_any_characters() -> None:
    name = 'a "quoted"\\\n\ud800<\N{SNOWMAN}>'
    sink = pig.PrometheusSink(0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        with gpu_step(), gpu_phase(name):
            tick(3_000_000_000)
        wait_for_steps(recording, 1)
        samples = scrape(sink)

    shown = name.replace("\ud800", "\ufffd")
    assert of(samples, "phase_seconds_count", path=shown) == 1


def test_what_else_the_process_exports_stays_out() -> None:
    sink, after = pig.PrometheusSink(0), KeepingSink()
    with pig.record() as recording:
        recording.add_sink(sink)
        recording.add_sink(after)
        after.wait_for(lambda _: True)
        names = {name for name, _ in scrape(sink)}

    assert all(name.startswith("pyinstrument_gpu_") for name in names)


# --- the port ---


def test_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pig.record() as recording:
        port = taken.getsockname()[1]
        with pytest.raises(pig.SinkError, match=rf"can't listen on 127\.0\.0\.1:{port}: .*in use"):
            recording.add_sink(pig.PrometheusSink(port))
    assert recording.run.complete


@pytest.mark.parametrize("port, host", [(70_000, "127.0.0.1"), (0, "192.0.2.1")])
def test_place_that_is_none(port: int, host: str) -> None:
    with pig.record() as recording, pytest.raises(pig.SinkError, match="can't listen on"):
        recording.add_sink(pig.PrometheusSink(port, host))


def test_port_is_free_again_after_the_recording() -> None:
    host = "127.77.0.1"  # where nobody else is given the port meanwhile
    sink = pig.PrometheusSink(0, host)
    with pig.record() as recording:
        recording.add_sink(sink)
        assert sink.port > 0

    with pytest.raises(urllib.error.URLError):
        scrape(sink, host)
    with pig.record() as recording:
        recording.add_sink(pig.PrometheusSink(sink.port, host))


def test_child_of_a_process_that_was_killed_does_not_hold_the_port() -> None:
    script = """
import os, signal, socket, warnings
import pyinstrument_gpu as pig

warnings.simplefilter("ignore", DeprecationWarning)
port_to_read, port_to_write = os.pipe()
end_to_read, end_to_write = os.pipe()
trainer = os.fork()
if trainer == 0:
    os.close(end_to_write)
    recording = pig.start()
    sink = pig.PrometheusSink(0, "127.77.0.2")
    recording.add_sink(sink)
    if os.fork() == 0:
        os.write(port_to_write, str(sink.port).encode())
        os.read(end_to_read, 1)
        os._exit(0)
    signal.pause()
port = int(os.read(port_to_read, 10))
os.kill(trainer, signal.SIGKILL)
os.waitpid(trainer, 0)
try:
    socket.create_connection(("127.77.0.2", port))
except ConnectionRefusedError:
    print("refused")
"""
    assert run_script(script).stdout == "refused\n"


# --- the real thing ---


def ask(port: int, query: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=HANGS_AFTER_S) as answer:
            results: list[Any] = json.load(answer)["data"]["result"]
            return results
    except urllib.error.URLError:  # it is not up yet
        return []


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed (Debian: prometheus)"
)
def test_real_prometheus(tmp_path: Path) -> None:
    sink = pig.PrometheusSink(0)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        train(tick)
        wait_for_steps(recording, 3)
        config = {
            "scrape_configs": [
                {
                    "job_name": "training",
                    "scrape_interval": "100ms",
                    "static_configs": [{"targets": [f"127.0.0.1:{sink.port}"]}],
                }
            ]
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        command = [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen(command, stderr=log) as server,
        ):
            try:
                port = listening_port(tmp_path / "log")
                # It says to nobody when it has scraped.
                results = poll(lambda: ask(port, "pyinstrument_gpu_phase_seconds_sum"))
                steps = ask(port, "pyinstrument_gpu_steps_total")
                quantile = ask(
                    port,
                    "histogram_quantile(1, pyinstrument_gpu_phase_seconds_bucket"
                    '{path="forward/attention"})',
                )
            finally:
                server.terminate()

    sums = {result["metric"]["path"]: float(result["value"][1]) for result in results}
    assert sums == {
        "data": 0,
        "forward": 2 * ((1 << 21) - 1) / 1e9,
        "forward/attention": 2 * ((1 << 20) - 1) / 1e9,
    }
    assert {s["metric"]["complete"]: s["value"][1] for s in steps} == {"true": "3", "false": "0"}
    assert float(quantile[0]["value"][1]) == ((1 << 20) - 1) / 1e9


def listening_port(log: Path) -> int:
    """The port that Prometheus chose, as soon as it says so."""
    found = poll(lambda: re.search(r'"Listening on" address=\S+:(\d+)', log.read_text()))
    return int(found[1])


def poll(look: Callable[[], T | None]) -> T:
    """What there is to see, as soon as there is something."""
    pause = threading.Event()
    for _ in range(10 * HANGS_AFTER_S):
        if results := look():
            return results
        pause.wait(0.1)
    pytest.fail("Prometheus never got there")
