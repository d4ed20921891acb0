# SPDX-License-Identifier: Apache-2.0
"""The confusion matrix of a MetricAccumulator: what a reading has of it, and that it is whole."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from tests.helpers.clock import fake_clock
from tests.helpers.metric_cases import assert_same, at_once

torch = pytest.importorskip("torch")

CLASSES = 20  # a reading leaves out the matrix of so many


def accumulator(classes: int = CLASSES) -> pig.MetricAccumulator:
    return pig.MetricAccumulator(topk=1, num_classes=classes, confusion=True)


def add(metrics: pig.MetricAccumulator, seed: int, kind: type[Any] = torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(50, CLASSES, generator=generator)
    # There is a class that no target has.
    target = torch.randint(CLASSES - 1, (50,), generator=generator)
    weight = torch.randint(0, 8, (50,), generator=generator) / 8
    metrics.update(logits.as_subclass(kind), target, weight=weight)


def check(metrics: pig.MetricAccumulator) -> None:
    """A reading has what `compute` gets from the matrix, but not the matrix."""
    reading, values = metrics.latest(), metrics.compute()
    assert reading is not None
    assert isinstance(values["f1_per_class"], np.ndarray)
    assert values.pop("confusion_matrix").sum() > 0
    assert_same(reading.values, values)


def test_a_reading_has_what_the_matrix_says() -> None:
    metrics = accumulator()
    for seed in range(3):
        add(metrics, seed)
        check(metrics)


def test_also_after_a_reset() -> None:
    metrics = accumulator()
    add(metrics, 0)
    metrics.reset()
    assert metrics.latest() is None
    add(metrics, 1)
    check(metrics)


def test_also_where_torch_operations_have_added() -> None:
    class Other(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    metrics = accumulator()
    for seed, kind in enumerate((torch.Tensor, Other, torch.Tensor, Other, Other)):
        add(metrics, seed, kind)
        if seed != 3:
            check(metrics)
    assert metrics.reference_updates == 3


def test_also_of_a_copy() -> None:
    metrics = accumulator()
    add(metrics, 0)
    copied = copy.deepcopy(metrics)
    check(copied)
    add(copied, 1)
    check(copied)
    check(metrics)


def test_in_a_recording() -> None:
    metrics = accumulator()
    with fake_clock() as advance_ns, pig.record() as recording:
        for seed in range(4):
            add(metrics, seed)
            advance_ns(1_000_000_000)
    run = recording.run
    rows = run.metrics[run.metrics["name"] == run.metric_names.index("f1_macro")]
    assert len(rows) == 4
    assert rows["value"][-1] == pytest.approx(metrics.compute()["f1_macro"], rel=1e-12)


def test_arrays_belong_to_the_caller() -> None:
    metrics = accumulator(2)
    metrics.update(torch.eye(2), torch.arange(2))
    metrics.compute()["confusion_matrix"][:] = 7
    assert metrics.compute()["confusion_matrix"].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("native", [True, False])
def test_what_is_read_is_never_torn(native: bool) -> None:
    """The batch is large enough for updates to give the GIL away."""
    metrics = accumulator(4)
    if not native:
        metrics._native = None
    rows = (1 << 22) // 16 + 1
    logits, target = torch.eye(4).repeat(rows // 4 + 1, 1)[:rows], torch.arange(rows) % 4
    ways: list[Callable[[], dict[str, Any] | None]] = [
        metrics.compute,
        lambda: None if (reading := metrics.latest()) is None else reading.values,
        lambda: copy.copy(metrics).compute(),
    ]

    def work() -> None:
        for _ in range(4):
            metrics.update(logits, target)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for read in ways:
            values = read()
            if values is not None:
                assert values["count"] % rows == 0
                assert values["confusion_matrix"].sum() == values["count"]
    for thread in threads:
        thread.join()
    assert metrics.compute()["confusion_matrix"].sum() == 8 * rows


def test_threads_that_update_in_both_ways() -> None:
    class Other(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    metrics = accumulator(4)
    logits, target = torch.eye(4).repeat(1000, 1), torch.arange(4).repeat(1000)

    def work(kind: type[Any]) -> None:
        own = logits.as_subclass(kind)
        for _ in range(50):
            metrics.update(own, target)
            metrics.update_scalar("x", 1.0)

    at_once(lambda: work(torch.Tensor), lambda: work(Other))
    values = metrics.compute()
    assert (values["count"], values["lost_updates"], values["x_sum"]) == (400_000, 0, 100)
    assert (values["confusion_matrix"] == 100_000 * np.eye(4)).all()
