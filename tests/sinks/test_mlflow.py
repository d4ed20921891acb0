# SPDX-License-Identifier: Apache-2.0
"""MLflow with a store in a file of SQLite, read back with its client."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.sinks import scalars
from tests.helpers.clock import fake_clock
from tests.helpers.sink_training import CURVES, LOSSES, STEP_ENDS_NS, Curves, metric_curves, train
from tests.helpers.sinks import KeepingSink

# What it and SQLAlchemy say about each other is not ours.
pytestmark = pytest.mark.filterwarnings("ignore:::mlflow", "ignore:::sqlalchemy")

PREFIX = "pyinstrument_gpu/"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client of a store of its own: making one takes seconds."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        experiment = mlflow.create_experiment("test", str(folder / "artifacts"))
        mlflow.set_experiment(experiment_id=experiment)
        yield mlflow.MlflowClient()


@pytest.fixture
def run_id(store: Any) -> Iterator[str]:
    import mlflow

    with mlflow.start_run() as run:
        yield run.info.run_id


def curves_in(store: Any, run_id: str) -> Curves:
    curves: Curves = {}
    for key in store.get_run(run_id).data.metrics:
        if key.startswith(PREFIX):
            history = store.get_metric_history(run_id, key)
            points = {metric.step: metric.value for metric in history}
            assert len(points) == len(history)
            curves[key.removeprefix(PREFIX)] = points
    return curves


def in_its_characters(curves: Curves) -> Curves:
    return {tag.replace("@", "_"): points for tag, points in curves.items()}


@pytest.mark.thorough
def test_metrics_of_a_recording(store: Any, run_id: str) -> None:
    """In the run that is active, and late values at their step."""
    import mlflow

    with fake_clock() as tick, pig.record(sinks=[pig.MLflowSink()]) as recording:
        _accumulator = train(tick)
    mlflow.log_metric("mine", 1.0)  # it is still open

    curves = curves_in(store, run_id)
    expected = in_its_characters(CURVES | metric_curves(recording.run))
    np.testing.assert_equal(curves, expected)
    assert curves["metrics/loss"] == LOSSES
    began_ns = recording.run.environment["anchor"]["realtime_ns"]
    times = store.get_metric_history(run_id, f"{PREFIX}step/time_ms")
    # To the nearest millisecond; either one where a float of seconds can't tell which that is.
    apart_ns = {m.step: m.timestamp * 10**6 - began_ns - STEP_ENDS_NS[m.step] for m in times}
    assert list(apart_ns) == list(range(len(STEP_ENDS_NS)))
    assert all(abs(ns) <= 501_000 for ns in apart_ns.values())


@pytest.mark.thorough
def test_run_by_its_id_and_more_values_than_one_call_takes(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run(store.get_experiment_by_name("test").experiment_id).info.run_id
    monkeypatch.setattr(scalars, "MAX_STEPS", 10_000)
    sink = pig.MLflowSink(run_id)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=3600)
        for number in range(1_200):
            with gpu_step(), gpu_phase("forward"):
                tick(number * 1_000_000)

    expected = {step: float(step) for step in range(1_200)}
    assert curves_in(store, run_id) == {"step/time_ms": expected, "phase/forward": expected}


def test_names_in_characters_that_it_takes(store: Any, run_id: str) -> None:
    """Every path has a metric of its own."""
    names = ["a@b", "a#b", "..", "x" * 230, "x" * 229 + "y", "ä ö"]
    with fake_clock() as tick, pig.record(sinks=[pig.MLflowSink()]), gpu_step():
        for number, name in enumerate(names, 1):
            with gpu_phase(name):
                tick(number * 1_000_000)

    curves = curves_in(store, run_id)
    assert curves.pop("step/time_ms") == {0: 21.0}
    room = 250 - len(PREFIX) - len("phase/")
    assert curves == {
        "phase/a_b": {0: 1.0},
        "phase/a_b_2": {0: 2.0},
        "phase/_..": {0: 3.0},
        f"phase/{'x' * room}": {0: 4.0},
        f"phase/{'x' * (room - 2)}_2": {0: 5.0},
        "phase/_ _": {0: 6.0},
    }


def test_run_that_is_deleted_meanwhile(store: Any, run_id: str) -> None:
    after = KeepingSink()
    with pytest.warns(RuntimeWarning, match="MLflowSink failed and was switched off"):  # noqa: SIM117
        with pig.record(sinks=[pig.MLflowSink(run_id), after]) as recording:
            store.delete_run(run_id)
            with gpu_step(), gpu_phase("forward"):
                pass
    store.restore_run(run_id)

    assert after.steps == [0]
    assert recording.run.phases["forward"].count == 1


def test_what_a_server_does_not_take_is_not_queued(
    store: Any, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the program has its own values queued."""
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    with mock.patch("mlflow.MlflowClient.log_batch") as log_batch:  # noqa: SIM117
        with pig.record(sinks=[pig.MLflowSink()]), gpu_step():
            pass

    assert {call.kwargs["synchronous"] for call in log_batch.call_args_list} == {True}


def test_no_run(store: Any) -> None:
    with pytest.raises(pig.SinkError, match=r"no run of MLflow is active.*start_run"):
        pig.start(sinks=[pig.MLflowSink()])
    with pytest.raises(pig.SinkError, match="can't log to the MLflow run 0123"):
        pig.start(sinks=[pig.MLflowSink("0123")])
