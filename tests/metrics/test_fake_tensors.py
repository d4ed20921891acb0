# SPDX-License-Identifier: Apache-2.0
"""A MetricAccumulator and tensors that stand for a shape only, as in torch.export."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

LOGITS, TARGET = torch.eye(3), torch.tensor([0, 1, 0])


def check_it_works(metrics: pig.MetricAccumulator, count: int) -> None:
    """It has so many rows, none lost, and an update adds to it and to a copy."""
    copied = copy.deepcopy(metrics)
    for each in (metrics, copied):
        values = each.compute()
        assert (values["count"], values["lost_updates"]) == (count, 0)
        each.update(LOGITS, TARGET)
        assert each.compute()["count"] == count + 3


@pytest.mark.parametrize("before", [0, 1])
def test_fake_updates_do_nothing(before: int) -> None:
    logits, rows = pig.MetricAccumulator(topk=1), pig.MetricAccumulator(topk=1)

    def add() -> None:
        logits.update(torch.zeros(3, 3), torch.zeros(3, dtype=torch.int64))
        rows.update_rows(loss=torch.zeros(3))
        rows.update_scalar("x", torch.zeros(3), torch.ones(3))

    for _ in range(before):
        add()
    with FakeTensorMode():
        add()
        logits.update_scalar("norm", torch.zeros(()))
    assert "norm" not in logits.compute()
    for each in (logits, rows):
        values = copy.deepcopy(each).compute()
        assert (values["count"], values["lost_updates"]) == (3 * before, 0)
    add()
    assert rows.compute()["x_weight"] == 3 * (before + 1)


def test_fake_tensors_that_do_not_fit_are_a_mistake_too() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    with FakeTensorMode(), pytest.raises(ValueError, match="target must have the shape"):
        metrics.update(torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64))


def test_made_where_tensors_are_fake() -> None:
    with FakeTensorMode():
        metrics = pig.MetricAccumulator(topk=1)
        metrics.update_scalar("lr", 0.5)
    assert metrics.compute()["lr"] == 0.5
    check_it_works(metrics, 0)


def test_class_weights_where_tensors_are_fake() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    with FakeTensorMode():
        metrics = pig.MetricAccumulator(topk=1, class_weight=weight)
        saved = metrics.state_dict()
        with pytest.raises(ValueError, match="class_weight has no values"):
            pig.MetricAccumulator(class_weight=torch.ones(3))
    metrics.load_state_dict(saved)
    metrics.update(LOGITS, TARGET)
    wanted = torch.nn.functional.cross_entropy(LOGITS, TARGET, weight=weight)
    assert metrics.compute()["loss"] == pytest.approx(float(wanted), rel=1e-6)


def test_read_copied_and_reset_where_tensors_are_fake() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(LOGITS, TARGET)
    with FakeTensorMode():
        assert metrics.compute()["count"] == 3
        copied = copy.deepcopy(metrics)
        metrics.reset()
    check_it_works(copied, 3)
    check_it_works(metrics, 0)


def test_export_adds_nothing() -> None:
    metrics = pig.MetricAccumulator(topk=1)

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, logits: Any, target: Any) -> Any:
            metrics.update(logits, target)
            return logits.sum()

    torch.export.export(Model(), (LOGITS, TARGET), strict=False)
    check_it_works(metrics, 0)
