# SPDX-License-Identifier: Apache-2.0
"""Windows of a MetricAccumulator: what was added since a reading."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same

torch = pytest.importorskip("torch")

from tests.helpers.metric_gpu import metric_gpu  # noqa: E402

LOGITS, TARGET = torch.eye(4), torch.tensor([0, 1, 2, 2])
KERNEL = "pig_metric_update_float32_thread"
OF_MATRIX = ("precision", "recall", "f1")


def random_update(metrics: pig.MetricAccumulator, seed: int) -> None:
    """With losses per row, weights and running values."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, metrics._options.num_classes or 4, generator=generator)
    target = torch.randint(-1, 4, (6,), generator=generator)
    weight = torch.rand(6, generator=generator)
    if seed % 3 == 0:
        logits[seed % 6, 0] = math.nan
    metrics.update(logits, target, None if seed % 5 else weight * 3, weight)
    metrics.update_scalar("norm", float(weight[0]) * 10 + 5)
    if seed % 2:
        metrics.update_scalar("tokens", seed)


def without_extremes(values: dict[str, Any]) -> dict[str, Any]:
    ends = ("_min", "_max", "first_nonfinite_update")
    return {name: value for name, value in values.items() if not name.endswith(ends)}


def assert_close(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Sums that were subtracted are rounded otherwise."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("classes", [4, 20])
@pytest.mark.parametrize("how", ["compute", "latest", "in turn"])
def test_a_window_is_what_an_accumulator_of_the_new_updates_has(how: str, classes: int) -> None:
    options: Any = {"topk": (1, 2), "num_classes": classes, "confusion": True}
    options["label_smoothing"] = 0.1
    metrics = pig.MetricAccumulator(**options)
    window = metrics.window()
    seed = 0
    for reading in range(6):
        fresh = pig.MetricAccumulator(**options)
        for _ in range(1 + reading % 3):
            seed += 1
            random_update(metrics, seed)
            random_update(fresh, seed)
        wanted = without_extremes(fresh.compute())
        if how == "compute" or (how == "in turn" and reading % 2):
            got = window.compute()
        else:
            newest = window.latest()
            assert newest is not None and newest.update == seed
            got = newest.values
        # A running value of before has no numbers in a window, but it is there.
        for name in [name for name in got if name.startswith("tokens") and name not in wanted]:
            assert got[name] == 0 or math.isnan(got[name])
            del got[name]
        if classes > 16 and how != "compute":
            # Readings without waiting do not have it, nor those that follow one.
            derived = [name for name in wanted if name.startswith(("confusion_", *OF_MATRIX))]
            assert derived and (reading == 0 or not set(derived) & set(got))
            for name in derived:
                got.pop(name, None)
                del wanted[name]
        assert_close(got, wanted)


def test_moving_averages_are_those_of_all_updates() -> None:
    metrics = pig.MetricAccumulator(ema=0.5)
    window = metrics.window()
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        fresh = pig.MetricAccumulator()
        numbers = torch.randn(7, generator=generator)
        for each in (metrics, fresh):
            each.update_scalar("x", numbers * 2 + 3, numbers.exp())
            each.update_rows(loss=numbers)
        got = window.compute()
        averages = {name: got.pop(name) for name in ("loss_ema", "x_ema")}
        assert averages.items() <= metrics.compute().items()
        assert_close(got, without_extremes(fresh.compute()))


def test_nothing_new() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    window = metrics.window()
    assert window.latest() is None
    assert window.compute()["count"] == 0
    metrics.update(LOGITS, TARGET)
    assert window.latest() is not None
    assert window.latest() is None
    values = window.compute()
    assert (values["count"], values["lost_updates"]) == (0, 0) and math.isnan(values["accuracy@1"])
    metrics.update_scalar("lr", 0.5)
    reading = window.latest()
    assert reading is not None and (reading.update, reading.values["lr"]) == (1, 0.5)
    metrics.update(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert window.latest() is not None  # an update without rows is one


def test_windows_do_not_know_of_each_other() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    first = metrics.window()
    metrics.update(LOGITS, TARGET, 1.0)
    second = metrics.window()
    metrics.update(LOGITS, TARGET, 2.0)
    assert (first.compute()["loss"], second.compute()["loss"]) == (1.5, 2)
    metrics.update(LOGITS, TARGET, 4.0)
    assert (first.compute()["loss"], second.compute()["loss"]) == (4, 4)
    assert metrics.compute()["loss"] == 7 / 3


def test_the_last_loss_is_that_of_the_window() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    window = metrics.window()
    metrics.update(LOGITS, TARGET, 3.0)
    assert window.compute()["loss_last"] == 3
    metrics.update(LOGITS, TARGET)
    values = window.compute()
    assert "loss_min" not in values and "first_nonfinite_update" not in values
    metrics.update(LOGITS, TARGET, 5.0)
    assert window.compute()["loss_last"] == 5


def test_after_a_reset() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    window = metrics.window()
    for _ in range(3):
        metrics.update(LOGITS, TARGET, 1.0)
        metrics.update_scalar("lr", 0.5)
    assert window.compute()["count"] == 12
    metrics.reset()
    assert window.latest() is None
    metrics.update(LOGITS, TARGET, 7.0)
    reading = window.latest()
    assert reading is not None
    assert (reading.update, reading.values["count"], reading.values["loss"]) == (4, 4, 7)


def test_after_a_state_was_loaded() -> None:
    metrics, saved = pig.MetricAccumulator(topk=1), pig.MetricAccumulator(topk=1)
    for _ in range(3):
        saved.update(LOGITS, TARGET, 1.0)
        saved.update_scalar("lr", 0.5)
    window = metrics.window()
    metrics.load_state_dict(saved.state_dict())
    assert window.latest() is None
    metrics.update(LOGITS, TARGET, 5.0)
    metrics.update_scalar("lr", 2)
    values = window.compute()
    assert (values["count"], values["loss"], values["lr"]) == (4, 5, 2)


def test_a_state_is_loaded_while_a_thread_reads() -> None:
    """Neither waits for the other, and nothing that was loaded is taken for an update."""
    saved = pig.MetricAccumulator(topk=1)
    for _ in range(3):
        saved.update(LOGITS, TARGET)
    metrics, state = pig.MetricAccumulator(topk=1), saved.state_dict()
    window, ended = metrics.window(), threading.Event()
    counts: list[int] = []

    def read() -> None:
        while not ended.is_set():
            counts.append(window.compute()["count"])

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        metrics.load_state_dict(state)
    ended.set()
    reader.join()
    assert set(counts) <= {0}


def test_step_of_a_reading() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    window = metrics.window()
    with pig.record(device_timing=False):
        for _ in pig.gpu_steps(range(3)):
            metrics.update(LOGITS, TARGET)
        reading = window.latest()
    assert reading is not None and (reading.update, reading.step) == (3, 2)


def test_without_native_code_it_computes() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    metrics._native = None
    window = metrics.window()
    metrics.update(LOGITS, TARGET, 1.0)
    assert window.latest() is None
    assert window.compute()["count"] == 4


def test_on_a_device_it_is_what_has_arrived() -> None:
    with metric_gpu() as gpu:
        metrics = pig.MetricAccumulator(topk=1)
        window = metrics.window()
        metrics.update(LOGITS, TARGET, torch.tensor(1.0))
        assert window.latest() is not None
        gpu.run_nothing_on_launch(KERNEL)  # this one is not done yet
        metrics.update(LOGITS, TARGET, torch.tensor(2.0))
        blocking = gpu.blocking_calls
        assert window.latest() is None
        metrics.update(LOGITS.double(), TARGET, torch.tensor(4.0))  # another kernel, which is
        reading = window.latest()
        assert reading is not None
        assert (reading.values["count"], reading.values["loss"]) == (4, 4)
        assert gpu.blocking_calls == blocking
        assert_same(without_extremes(metrics.window().compute()), window.compute())


def test_made_while_a_graph_is_captured() -> None:
    with metric_gpu() as gpu:
        stream = gpu.devices[0].create_stream()
        with stream.as_current():
            metrics = pig.MetricAccumulator(topk=1)
            metrics.update(LOGITS, TARGET)
            metrics.reset()  # so nothing can be read without waiting
            stream.begin_capture()
            with pytest.raises(RuntimeError, match="this can't be part of a CUDA graph"):
                metrics.window()
            metrics.update(LOGITS, TARGET)
            graph = stream.end_capture()
            window = metrics.window()
            for _ in range(3):
                graph.launch(stream)
        reading = window.latest()
        assert reading is not None and reading.values["count"] == 12
