# SPDX-License-Identifier: Apache-2.0
"""A MetricAccumulator in a checkpoint: saved, loaded, and going on from there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same

torch = pytest.importorskip("torch")

from tests.helpers.metric_gpu import metric_gpu  # noqa: E402

LOGITS, TARGET = torch.eye(4), torch.tensor([0, 1, 2, 2])


def accumulator(**options: Any) -> pig.MetricAccumulator:
    return pig.MetricAccumulator(**{"topk": (1, 2), "num_classes": 4, "confusion": True, **options})


def trained(updates: int = 3, **options: Any) -> pig.MetricAccumulator:
    metrics = accumulator(**options)
    for number in range(updates):
        metrics.update(LOGITS, TARGET, torch.tensor(float(number)))
        metrics.update_scalar("lr", 0.5 * number)
    return metrics


def through_a_file(state: dict[str, Any], path: Path) -> dict[str, Any]:
    torch.save(state, path)
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


@pytest.mark.parametrize("updates_before", [0, 2])
@pytest.mark.parametrize("native", [True, False])
def test_it_goes_on_where_it_was(native: bool, updates_before: int, tmp_path: Path) -> None:
    metrics = trained(ema=0.9)
    resumed = trained(updates_before, ema=0.9)
    if not native:
        metrics._native = resumed._native = None
    resumed.load_state_dict(through_a_file(metrics.state_dict(), tmp_path / "state.pt"))

    assert_same(resumed.compute(), metrics.compute())
    if native:
        first, second = metrics.latest(), resumed.latest()
        assert first is not None and second is not None
        assert first.update == second.update == 3
        assert_same(first.values, second.values)
    for each in (metrics, resumed):
        each.update(LOGITS, TARGET, torch.tensor(math.nan))
        each.update_scalar("lr", 7)
        each.update_scalar("tokens", 1)
    assert resumed.compute()["first_nonfinite_update"] == 4
    assert_same(resumed.compute(), metrics.compute())
    resumed.reset()
    assert resumed.compute()["count"] == 0


def test_what_was_saved_does_not_change() -> None:
    metrics = trained()
    saved = metrics.state_dict()
    metrics.update(LOGITS, TARGET)
    resumed = accumulator()
    for _ in range(2):  # nor by those that load it
        resumed.load_state_dict(saved)
        assert resumed.compute()["count"] == 12
        resumed.update(LOGITS, TARGET)


def test_a_state_of_nothing() -> None:
    resumed = trained()
    resumed.load_state_dict(accumulator().state_dict())
    assert resumed.latest() is None
    assert resumed.compute()["count"] == 0 and math.isnan(resumed.compute()["lr"])


def test_steps_of_before_are_not_those_of_loaded_updates() -> None:
    metrics = accumulator()
    with pig.record(device_timing=False):
        for _ in pig.gpu_steps(range(3)):
            metrics.update(LOGITS, TARGET)
        metrics.load_state_dict(trained().state_dict())
        reading = metrics.latest()
        assert reading is not None and (reading.update, reading.step) == (3, None)
        with pig.gpu_step():
            metrics.update(LOGITS, TARGET)
            reading = metrics.latest()
        assert reading is not None and (reading.update, reading.step) == (4, 3)


def test_an_accumulator_keeps_the_places_of_its_running_values() -> None:
    saved = pig.MetricAccumulator()
    for number, name in enumerate(("a", "b", "c")):
        saved.update_scalar(name, number)
    metrics = pig.MetricAccumulator()
    for name in ("x", "c", "a"):
        metrics.update_scalar(name, 100)
    metrics.load_state_dict(saved.state_dict())
    values = metrics.compute()
    assert [values[name] for name in ("a", "b", "c")] == [0, 1, 2]
    assert math.isnan(values["x"])
    metrics.update_scalar("c", 4)
    assert (metrics.compute()["c"], metrics.compute()["a"]) == (3, 0)


def test_on_a_device() -> None:
    with metric_gpu() as gpu:
        metrics = trained()
        blocking, launches = gpu.blocking_calls, len(gpu.launches())
        saved = metrics.state_dict()
        assert gpu.blocking_calls == blocking

        address = metrics._state.data_ptr()
        for resumed in (metrics, accumulator()):
            resumed.load_state_dict(saved)
            assert resumed.latest() is None  # no kernel has published it yet
            assert resumed.compute()["count"] == 12
            resumed.update(LOGITS, TARGET)
            reading = resumed.latest()
            assert reading is not None
            assert (reading.update, reading.values["count"]) == (4, 16)
            assert_same(reading.values, resumed.compute())
            assert resumed.reference_updates == 0
        assert metrics._state.data_ptr() == address
        assert len(gpu.launches()) == launches + 2


def test_graphs_that_were_captured_go_on() -> None:
    with metric_gpu() as gpu:
        stream = gpu.devices[0].create_stream()
        with stream.as_current(), pig.record(device_timing=False):
            metrics = trained()
            stream.begin_capture()
            metrics.update(LOGITS, TARGET)
            with pytest.raises(RuntimeError, match="this can't be part of a CUDA graph"):
                metrics.load_state_dict({})
            graph = stream.end_capture()
            metrics.load_state_dict(trained(1).state_dict())
            graph.launch(stream)
            with pig.gpu_step():
                metrics.update(LOGITS, TARGET)
            reading = metrics.latest()
        assert reading is not None
        assert (reading.update, reading.step, reading.values["count"]) == (3, None, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "saved by another version of pyinstrument_gpu"),
        ({"fields": "updates"}, "saved by another version of pyinstrument_gpu"),
        ({"state": torch.zeros(8)}, "must be .* bytes, got a tensor of torch.float32 .*8"),
        ({"running_values": [f"x{number}" for number in range(40)]}, "41 running values together"),
        ({"running_values": ["lr_max"]}, "have keys in common"),
    ],
)
def test_what_is_no_state(change: dict[str, Any], message: str) -> None:
    metrics = trained()
    before = metrics.compute()
    with pytest.raises(ValueError, match=message):
        metrics.load_state_dict({**metrics.state_dict(), **change})
    with pytest.raises(ValueError, match=r"no state_dict\(\) .*: 'version' is missing"):
        metrics.load_state_dict({})
    assert_same(metrics.compute(), before)


def test_of_another_kind() -> None:
    saved = accumulator(topk=1, ignore_index=0).state_dict()
    message = r"made with topk=\[1\] instead of \[1, 2\], ignore_index=0 instead of -100: make"
    with pytest.raises(ValueError, match=message):
        accumulator().load_state_dict(saved)
