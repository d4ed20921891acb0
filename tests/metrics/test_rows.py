# SPDX-License-Identifier: Apache-2.0
"""MetricAccumulator.update_rows: results without logits."""

from __future__ import annotations

import math
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same, both_ways

torch = pytest.importorskip("torch")
nan, inf = math.nan, math.inf


def ranks_of(logits: Any, target: Any) -> Any:
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices
    return (order == target[:, None]).int().argmax(dim=1)


@pytest.mark.parametrize("seed", range(8))
def test_ranks_and_losses_give_what_the_logits_give(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(50, 7, generator=generator)
    target = torch.randint(-2, 9, (50,), generator=generator).masked_fill_(
        torch.rand(50, generator=generator) < 0.1, -100
    )
    weight = torch.randint(0, 9, (50,), generator=generator) / 8
    weight[:2] = torch.tensor([nan, inf])
    loss = torch.randint(0, 9, (50,), generator=generator) / 4
    loss[5:8] = torch.tensor([nan, inf, -inf])
    valid = (target >= 0) & (target < 7)
    rank = torch.where(valid, ranks_of(logits, target.clamp(0, 6)), -1)

    by_logits = pig.MetricAccumulator(topk=(1, 2, 5), ema=0.5)
    by_logits.update(logits, target, loss, weight)
    wanted = by_logits.compute()
    for metrics in both_ways(topk=(1, 2, 5), ema=0.5):
        metrics.update_rows(loss=loss, rank=rank, weight=weight, mask=target != -100)
        assert_same(metrics.compute(), wanted)


def test_accuracies_are_of_the_rows_whose_rank_is_known() -> None:
    for metrics in both_ways(topk=(1, 3), cross_entropy=False):
        metrics.update_rows(loss=torch.ones(4))
        assert math.isnan(metrics.compute()["accuracy@1"])
        metrics.update_rows(correct=torch.tensor([True, False]))
        values = metrics.compute()
        assert values["accuracy@1"] == 0.5 and math.isnan(values["accuracy@3"])
        metrics.update_rows(rank=torch.tensor([0, 2, 3, 9], dtype=torch.int32))
        values = metrics.compute()
        assert (values["accuracy@1"], values["accuracy@3"]) == (2 / 6, 2 / 4)
        metrics.update(torch.eye(3), torch.arange(3))
        values = metrics.compute()
        assert (values["accuracy@1"], values["accuracy@3"]) == (5 / 9, 5 / 7)
        assert (values["count"], values["loss"]) == (13, 1)


def test_entropy_and_perplexity() -> None:
    for metrics in both_ways(topk=1):
        assert math.isnan(metrics.compute()["entropy"])
        metrics.update_rows(
            loss=torch.tensor([1.0, 2.0, 9.0]),
            entropy=torch.tensor([0.5, nan, 7.0]),
            weight=torch.tensor([2.0, 4.0, 0.0]),
        )
        metrics.update_rows(loss=torch.tensor([2.0]))
        values = metrics.compute()
        assert values["entropy"] == 0.5
        assert values["perplexity"] == pytest.approx(math.exp(12 / 7))


def test_without_accuracy_at_1_correct_says_nothing() -> None:
    for metrics in both_ways(topk=(2,)):
        metrics.update_rows(correct=torch.ones(3))
        assert math.isnan(metrics.compute()["accuracy@2"])


def test_what_makes_a_row_invalid() -> None:
    for metrics in both_ways(topk=1):
        metrics.update_rows(correct=torch.tensor([1.0, 0.5, nan, 0.0, 2.0]))
        metrics.update_rows(rank=torch.tensor([0.0, -1.0, nan, 5.0, inf]))
        metrics.update_rows(loss=torch.zeros(2), weight=torch.tensor([nan, 1.0]))
        values = metrics.compute()
        assert (values["count"], values["invalid"], values["ignored"]) == (6, 6, 0)
        assert values["accuracy@1"] == 2 / 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_shapes_strides_and_types(dtype: Any) -> None:
    loss = torch.arange(24).reshape(2, 3, 4).to(dtype).transpose(0, 2)
    mask = (torch.arange(24).reshape(2, 3, 4) % 2 == 0).transpose(0, 2)
    for metrics in both_ways(topk=1):
        metrics.update_rows(loss=loss, mask=mask)
        values = metrics.compute()
        assert (values["loss"], values["count"], values["ignored"]) == (11, 12, 12)


def test_many_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    loss = torch.rand(400_003, generator=generator, dtype=torch.float64)
    for metrics in both_ways(topk=1):
        metrics.update_rows(loss=loss, correct=loss < 0.25)
        values = metrics.compute()
        assert values["loss"] == pytest.approx(math.fsum(loss.tolist()) / 400_003, rel=1e-12)
        assert values["accuracy@1"] == int((loss < 0.25).sum()) / 400_003


def test_a_matrix_knows_nothing_of_them() -> None:
    for metrics in both_ways(topk=1, num_classes=20, confusion=True):
        metrics.update(torch.eye(20), torch.arange(20))
        metrics.update_rows(correct=torch.zeros(5))
        values = metrics.compute()
        assert (values["accuracy@1"], values["recall_macro"]) == (0.8, 1)


def test_no_rows_at_all() -> None:
    for metrics in both_ways(topk=1):
        metrics.update_rows(loss=torch.ones(0), correct=torch.ones(0))
        values = metrics.compute()
        assert values["count"] == 0 and math.isnan(values["loss"])
        assert math.isnan(values["loss_last"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "give loss, correct, rank or entropy"),
        ({"mask": torch.ones(3)}, "give loss, correct, rank or entropy"),
        ({"rank": torch.ones(2), "correct": torch.ones(2)}, "either correct or rank"),
        ({"loss": torch.ones(2), "mask": torch.ones(3)}, r"mask must have the shape of loss"),
        ({"loss": 1.0}, "loss must be a tensor, got float"),
        ({"entropy": torch.ones(2, dtype=torch.cfloat)}, "entropy must hold real numbers"),
    ],
)
def test_what_does_not_fit(rows: dict[str, Any], message: str) -> None:
    metrics = pig.MetricAccumulator()
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=message):
            metrics.update_rows(**rows)
        metrics.update_rows(loss=torch.ones(1))
    assert metrics.compute()["count"] == 2
