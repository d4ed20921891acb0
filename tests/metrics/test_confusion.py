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
from tests.helpers.metric_cases import at_once

torch = pytest.importorskip("torch")


def accumulator(classes: int) -> pig.MetricAccumulator:
    return pig.MetricAccumulator(topk=1, num_classes=classes, confusion=True)


@pytest.mark.parametrize("classes", [16, 17])
def test_a_reading_has_the_matrix_of_few_classes(classes: int) -> None:
    metrics = accumulator(classes)
    metrics.update(torch.eye(classes), torch.arange(classes))
    reading, values = metrics.latest(), metrics.compute()
    assert reading is not None and values["f1_macro"] == 1
    derived = {key for key in values if key.startswith(("confusion_", "precision", "recall", "f1"))}
    assert len(derived) == 10
    assert set(values) - set(reading.values) == (derived if classes > 16 else set())


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
