# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases, offline: what its client has written is read back from its own file."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from tests.helpers.clock import fake_clock
from tests.helpers.sink_training import CURVES, LOSSES, STEP_ENDS_NS, Curves, metric_curves, train
from tests.helpers.sinks import KeepingSink

Row = dict[str, Any]
STEP = "pyinstrument_gpu/step_index"


@pytest.fixture(scope="module")
def wandb() -> Any:
    return pytest.importorskip("wandb", reason="wandb is not installed")


@pytest.fixture
def offline(wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield tmp_path
    wandb.teardown()


def begin() -> Any:
    import wandb

    quiet = {"console": "off", "disable_git": True, "x_disable_stats": True, "x_disable_meta": True}
    return wandb.init(project="test", settings=wandb.Settings(**quiet))


def records(folder: Path) -> Iterator[Any]:
    """What the one run in a folder has written: records in a log of LevelDB's format."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service has then written all of it

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # no header fits: filled up
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def rows_in(folder: Path) -> list[Row]:
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


def curves_in(rows: list[Row]) -> Curves:
    curves: Curves = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith("pyinstrument_gpu/") and key != STEP:
                points = curves.setdefault(key.removeprefix("pyinstrument_gpu/"), {})
                assert row[STEP] not in points
                points[row[STEP]] = value
    return curves


@pytest.mark.thorough
def test_rows_of_a_recording(offline: Path) -> None:
    """Beside those of the program, and late values at their step."""
    run = begin()
    sink = pig.WandbSink(run)
    with fake_clock() as tick, pig.record(sinks=[sink]) as recording:
        run.log({"mine": 1})
        _accumulator = train(tick)
        run.log({"mine": 2})
    run.log({"mine": 3})  # it is still open
    run.finish()

    rows = rows_in(offline)
    curves = curves_in(rows)
    np.testing.assert_equal(curves, CURVES | metric_curves(recording.run))
    assert curves["metrics/loss"] == LOSSES
    assert [row["mine"] for row in rows if "mine" in row] == [1, 2, 3]
    # One row after the other, though steps come back.
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    steps = [row[STEP] for row in rows if STEP in row]
    assert steps != sorted(steps)
    began_ns = recording.run.environment["anchor"]["realtime_ns"]
    for row in rows:
        if "pyinstrument_gpu/step/time_ms" in row:
            end_s = (began_ns + STEP_ENDS_NS[row[STEP]]) / 1e9
            assert row["_timestamp"] == pytest.approx(end_s, abs=1e-6, rel=0)


def test_step_axis(offline: Path) -> None:
    run = begin()
    with pig.record(sinks=[pig.WandbSink(run)]):
        pass
    run.finish()

    metrics = [record.metric for record in records(offline) if record.HasField("metric")]
    assert [(metric.name, metric.glob_name, metric.step_metric) for metric in metrics] == [
        (STEP, "", ""),
        ("", "pyinstrument_gpu/*", STEP),
    ]


def test_run_that_is_finished_too_early(offline: Path) -> None:
    run, after = begin(), KeepingSink()
    with pytest.warns(RuntimeWarning, match="WandbSink failed and was switched off"):  # noqa: SIM117
        with pig.record(sinks=[pig.WandbSink(run), after]) as recording:
            run.finish()
            with gpu_step(), gpu_phase("forward"):
                pass

    assert after.steps == [0]
    assert recording.run.phases["forward"].count == 1


def test_run_that_was_finished_before(offline: Path) -> None:
    run = begin()
    run.finish()
    with pytest.raises(pig.SinkError, match="can't write to the wandb run"):
        pig.start(sinks=[pig.WandbSink(run)])
