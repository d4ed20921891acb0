# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerts for what the Prometheus sink serves."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.sinks import KeepingSink

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

DOCS = Path(__file__).parents[2] / "docs" / "exporters"
DASHBOARD = DOCS / "grafana-dashboard.json"
ALERTS = DOCS / "prometheus-alerts.yml"

OF_PROMETHEUS = {"instance", "job"}
"""Labels that every time series gets when it is scraped."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def queries() -> list[str]:
    """Those of the dashboard, with a value for each of its variables."""
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in found]


def test_dashboard_fits_grafanas_schema() -> None:
    """All that it says is known to Grafana, which leaves out what it does not know."""
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed")
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(dashboard()), cls=encoder.JSONEncoder))

    assert list(differences(dashboard(), read)) == []


def differences(ours: Any, read: Any, place: str = "") -> Iterator[str]:
    """Where what was read lacks something; defaults may have been added."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for key, value in ours.items():
            if key in read:
                yield from differences(value, read[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is not known"
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for number, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif ours != read:
        yield f"{place} is {read!r}"


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """The labels of each metric that the sink serves of a run that has all of them."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sink, after = pig.PrometheusSink(port=0), KeepingSink()
    losses = pig.MetricAccumulator(topk=1)
    with attached_cuda() as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            recording.add_sink(sink, interval_s=0.001)
            recording.add_sink(after)
            recording.flush(0)
            with gpu_step(samples=8), program.phase("data"):
                program.work(1 << 20)
                losses.update(torch.eye(4), torch.arange(4), torch.tensor(1.0))
            cuda.run_dry()
            cuda.advance(3_000_000_000)
            after.wait_for(has_device_times)
            after.wait_for(lambda update: len(update.steps) == 1)
            families = list(sink.collect())
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, OF_PROMETHEUS)
    return found


def has_device_times(update: pig.RunUpdate) -> bool:
    if update.totals is None or not len(update.metric_names):
        return False
    return any(phase.device is not None for phase in update.totals.phases.values())


_METRIC = re.compile(r"(pyinstrument_gpu_\w+)(?:\{([^}]*)\})?")


def test_queries_are_of_what_the_sink_serves(served: dict[str, set[str]]) -> None:
    variables = [variable["query"] for variable in dashboard()["templating"]["list"][1:]]
    texts = [*queries(), *(each["query"] for each in variables), rules_text()]
    asked = [metric for text in texts for metric in _METRIC.findall(text)]

    assert {name for name, _ in asked} >= {
        "pyinstrument_gpu_last_step_timestamp_seconds",
        "pyinstrument_gpu_phase_device_seconds_sum",
        "pyinstrument_gpu_metric",
    }
    for name, selector in asked:
        assert name in served
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", selector)) <= served[name]


def rules_text() -> str:
    """The rules about what the sink serves, without their comments."""
    text = ALERTS.read_text(encoding="utf-8")
    lines = text[text.index("  - name: pyinstrument_gpu\n") :].splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


@needs_promtool
def test_queries_are_promql(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": each} for number, each in enumerate(queries())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
    checked = promtool("check", "rules", file)
    assert f"SUCCESS: {len(rules)} rules found" in checked


WHO = {"rank": "1", "host": "a"}


@needs_promtool
def test_alerts_are_raised_when_they_should_be(tmp_path: Path) -> None:
    """Steps took 4.3 to 8.6 s, so that ten times as long is at most 86 s. The last one ended in the
    first minute."""
    histogram = {"4.294967295": "0+0x9", "8.589934591": "10+0x9", "+Inf": "10+0x9"}
    series = {
        'run_info{rank="1", host="a"}': "1x9",
        "last_step_timestamp_seconds": "60 60 60 60 60 60 60 60 60 60",
        **{f'step_seconds_bucket{{le="{le}"}}': counts for le, counts in histogram.items()},
        'metric{name="loss"}': "0.5 0.5 0.5 NaN NaN +Inf +Inf 0.5 0.5 0.5",
        'metric{name="val/nonfinite"}': "0 0 0 0 0 0 0 0 1 1",
        'metric{name="accuracy"}': "NaN NaN NaN NaN NaN NaN NaN NaN NaN NaN",
    }
    loss = {3: "NaN", 4: "NaN", 5: "+Inf", 6: "+Inf"}
    wrong = {minute: ("loss", value) for minute, value in loss.items()}
    wrong |= {minute: ("val/nonfinite", "1") for minute in (8, 9)}
    expected = []
    for minute in range(10):
        stopped = 60 * minute - 60 > 0.99 * 85.9
        not_finite = [
            {
                "exp_labels": {"severity": "warning", "name": wrong[minute][0], **WHO},
                "exp_annotations": {"summary": ": {} is {}".format(*wrong[minute])},
            }
            for each in wrong
            if each == minute
        ]
        silence = f"{minute - 1}m 0s"
        expected += [
            {
                "eval_time": f"{minute}m",
                "alertname": "TrainingStopped",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "critical", **WHO},
                        "exp_annotations": {"summary": f": no step for {silence}"},
                    }
                ]
                * stopped,
            },
            {
                "eval_time": f"{minute}m",
                "alertname": "LossNotFinite",
                "exp_alerts": not_finite,
            },
        ]
    test = {
        "interval": "1m",
        "input_series": [
            {"series": f"pyinstrument_gpu_{name}", "values": each} for name, each in series.items()
        ],
        "alert_rule_test": expected,
    }
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": [test]}))

    assert "SUCCESS: 6 rules found" in promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", file)


def promtool(*arguments: object) -> str:
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
