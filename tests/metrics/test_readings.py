# SPDX-License-Identifier: Apache-2.0
"""Readings of metrics as time series of a run: recorded, saved, reported, exported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.report.document import document_of
from tests.helpers.clock import fake_clock
from tests.helpers.run_writer import save

torch = pytest.importorskip("torch")

LOGITS, TARGET = torch.eye(4), torch.arange(4)
MS = 1_000_000


def series(run: Run, name: str) -> list[tuple[int, int, float]]:
    """Update, step and value of each reading of a metric."""
    rows = run.metrics[run.metrics["name"] == run.metric_names.index(name)]
    return [(row["update"], row["step"], row["value"]) for row in rows]


def test_readings_while_a_recording_is_active() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with fake_clock() as advance_ns, pig.record() as recording:
        for number in pig.gpu_steps(range(1, 25)):
            metrics.update(LOGITS, TARGET, torch.tensor(float(number)))
            metrics.update_scalar("tokens", 10)
            advance_ns(40 * MS)

    run = recording.run
    # The first update, then the first one 100 ms or more after the last reading; and the end.
    assert series(run, "loss_last") == [
        *((number, number - 1, number) for number in range(1, 25, 3)),
        (24, 23, 24),
    ]
    assert series(run, "accuracy@1")[-1] == (24, 23, 1)
    assert series(run, "loss")[-1] == (24, 23, 12.5)
    assert series(run, "tokens_last")[-1] == (24, 23, 10)
    assert (np.diff(run.metrics["host_ns"]) >= 0).all()
    assert run.dropped["metrics"] == 0
    assert run.notes == ()


def test_a_last_value_that_is_nan_is_recorded_and_one_that_is_unknown_is_not() -> None:
    metrics = pig.MetricAccumulator(topk=1, cross_entropy=False)
    losses = [None, 1.0, float("nan"), float("nan"), 2.0, float("inf"), float("nan")]
    with pig.record() as recording:
        for loss in losses:
            metrics.update(LOGITS, TARGET, None if loss is None else torch.tensor(loss))
            if loss is not None:
                metrics.update_scalar("norm", loss)
            metrics.record_reading()

    run = recording.run
    for name in ("loss_last", "norm_last"):
        assert [str(value) for _, _, value in series(run, name)] == [str(x) for x in losses[1:]]
    assert [value for _, _, value in series(run, "loss")] == [1, 1, 1, 1.5, 1.5, 1.5]
    failures = [one for one in document_of(run).findings if one.kind == "failure"]
    assert [one.about for one in failures] == ["metric loss_last", "metric norm_last"]
    assert failures[0].evidence == "its last value is nan"


def test_accumulators_of_one_name_have_series_of_their_own() -> None:
    unnamed = [pig.MetricAccumulator(topk=1) for _ in range(2)]
    named = [pig.MetricAccumulator(topk=1, name="val") for _ in range(2)]
    pig.MetricAccumulator(name="unused")
    with pig.record() as recording:
        for number, metrics in enumerate(unnamed + named):
            metrics.update(LOGITS, TARGET, torch.tensor(float(number)))
            metrics.record_reading()
        unnamed[0].update(LOGITS, TARGET, torch.tensor(9.0))
        snapshot = recording.snapshot()

    prefixes = ("", "metrics-2/", "val/", "val-2/")
    for run in (snapshot, recording.run):
        last = [series(run, f"{prefix}loss_last")[-1][2] for prefix in prefixes]
        assert last == [9, 1, 2, 3]
        assert not [name for name in run.metric_names if name.startswith("unused")]


def test_a_running_value_does_not_share_the_series_of_another_accumulator() -> None:
    val, train = pig.MetricAccumulator(topk=1, name="val"), pig.MetricAccumulator(topk=1)
    with pig.record() as recording:
        val.update(LOGITS, TARGET, torch.tensor(1.0))
        val.record_reading()
        train.update_scalar("val/loss", 2.0)
        train.record_reading()

    assert [value for _, _, value in series(recording.run, "val/loss")] == [1]
    assert {value for _, _, value in series(recording.run, "val/loss-2")} == {2}


def test_an_accumulator_goes_on_with_the_series_of_one_that_is_gone() -> None:
    with pig.record() as recording:
        for epoch in range(3):
            metrics = pig.MetricAccumulator(topk=1)
            metrics.update(LOGITS, TARGET, torch.tensor(float(epoch)))
            metrics.record_reading()

    assert [value for _, _, value in series(recording.run, "loss_last")] == [0, 1, 2]
    assert not [name for name in recording.run.metric_names if name.startswith("metrics")]


def test_series_of_averages() -> None:
    metrics = pig.MetricAccumulator(1, num_classes=4, confusion=True, ema=0.5, name="m")
    with pig.record() as recording:
        for _ in pig.gpu_steps(range(3)):
            metrics.update(LOGITS, TARGET, torch.tensor(2.5))
            metrics.update_scalar("noise", torch.tensor([1.0, 2.0]))
    run = recording.run

    last = {name: series(run, name)[-1][1:] for name in run.metric_names}
    assert last.items() >= {"m/loss_ema": (2, 2.5), "m/f1_macro": (2, 1)}.items()
    assert last.items() >= {"m/noise": (2, 1.5), "m/noise_ema": (2, 1.5)}.items()
    assert not [name for name in last if "micro" in name or "per_class" in name]


def test_in_a_long_run_readings_become_rarer() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with fake_clock() as advance_ns, pig.record() as recording:
        for _ in range(4000):
            metrics.update(LOGITS, TARGET)
            advance_ns(1_000_000 * MS)

    # Each thousandth of the time so far: from 10**6 s on not at every update any more.
    times_ns = [row[0] for row in series(recording.run, "count")]
    assert times_ns[:1001] == list(range(1, 1002))
    assert 2000 < len(times_ns) < 2400


def test_step_of_a_reading() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record():
        for number in pig.gpu_steps(range(3)):
            metrics.update(LOGITS, TARGET)
            reading = metrics.latest()
            assert reading is not None
            assert (reading.update, reading.step) == (number + 1, number)
        with pig.gpu_step():  # a dropped step went before
            metrics.update(LOGITS, TARGET)
            reading = metrics.latest()
            assert reading is not None and reading.step == 3
        metrics.update(LOGITS, TARGET)
        reading = metrics.latest()
        assert reading is not None and reading.step is None
    reading = metrics.latest()
    assert reading is not None and reading.step is None


def test_a_running_value_has_its_own_step() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record() as recording:
        for number in pig.gpu_steps(range(4)):
            if number == 1:
                metrics.update(LOGITS, TARGET)
            if number != 2:
                metrics.update_scalar("norm", float(number))
            reading = metrics.latest()
            if number >= 1:
                assert reading is not None
                assert (reading.update, reading.step) == (1, 1)
    run = recording.run
    last = {run.metric_names[row["name"]]: row["step"] for row in run.metrics}
    assert (last["count"], last["norm"], last["norm_last"]) == (1, 3, 3)


@pytest.mark.parametrize("by_reset", [False, True])
def test_steps_of_running_values_alone(by_reset: bool) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with pig.record() as recording:
        for number in pig.gpu_steps(range(2)):
            if by_reset:
                metrics.reset()
            metrics.update_scalar("norm", float(number))
    rows = recording.run.metrics
    assert rows[-1]["step"] == 1


def test_nothing_is_recorded_in_a_run_without_metrics() -> None:
    with pig.record() as recording, pig.gpu_phase("a"):
        pass

    assert len(recording.run.metrics) == 0
    assert "Metrics" not in recording.run.report(verbose=True, width=100)


def made_run() -> Run:
    metrics = np.array(
        [
            (1, 0, 1_000_001, 0, 2.5),
            (1, 0, 1_000_001, 1, 0.25),
            (9, 7, 2_000_002, 0, math.nan),
            (9, -1, 2_000_002, 1, 0.75),
        ],
        dtype=METRIC_DTYPE,
    )
    return Run(metric_names=("loss", 'a,"b'), metrics=metrics, duration_ns=3_000_000)


def test_saved_and_loaded(tmp_path: Path) -> None:
    save(made_run(), tmp_path / "a.gpurun")
    loaded = Run.load(tmp_path / "a.gpurun")

    assert loaded.metric_names == ("loss", 'a,"b')
    assert loaded.metrics.tobytes() == made_run().metrics.tobytes()
    assert loaded.notes == ()


def test_report() -> None:
    lines = made_run().report(verbose=True, width=100, color=False).splitlines()
    begin = lines.index("Metrics, as read during the run")

    assert [line.split() for line in lines[begin + 1 : begin + 5]] == [
        ["metric", "last", "step", "min", "step", "max", "step"],
        ["------", *["----"] * 6],
        ["loss", "nan", "7", "2.5", "0", "2.5", "0"],
        ['a,"b', "0.75", "-", "0.25", "0", "0.75", "-"],
    ]


def test_csv(tmp_path: Path) -> None:
    made_run().export(tmp_path / "metrics.csv", metrics=True)

    assert (tmp_path / "metrics.csv").read_bytes().decode() == (
        "metric,update,step,host_ns,value\r\n"
        "loss,1,0,1000001,2.5\r\n"
        '"a,""b",1,0,1000001,0.25\r\n'
        "loss,9,7,2000002,nan\r\n"
        '"a,""b",9,,2000002,0.75\r\n'
    )
    with pytest.raises(pig.ExportError, match="are separate tables"):
        made_run().export(tmp_path / "metrics.csv", metrics=True, summary=True)


def test_perfetto_counters(tmp_path: Path) -> None:
    made_run().export(tmp_path / "trace.json")
    events: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("metrics/loss", 1000.001, {"value": 2.5}),
        ('metrics/a,"b', 1000.001, {"value": 0.25}),
        ('metrics/a,"b', 2000.002, {"value": 0.75}),
    ]
