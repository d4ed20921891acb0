# SPDX-License-Identifier: Apache-2.0
"""Updates without logits, of all kinds, and their values: the same on every device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import LOGIT_DTYPES


def eighths(generator: torch.Generator, *shape: int, low: int = -40, high: int = 41) -> Tensor:
    """Numbers whose sums, and those of their squares, are exact in any order."""
    return torch.randint(low, high, shape, generator=generator).double() / 8


def with_odd_ones(numbers: Tensor) -> Tensor:
    numbers.view(-1)[1::17] = math.nan
    numbers.view(-1)[2::19] = math.inf
    return numbers


def added_rows(metrics: pig.MetricAccumulator, seed: int, at: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shape = (13, 7)
    rank = torch.randint(-1, 6, shape, generator=generator)
    loss = with_odd_ones(eighths(generator, *shape)).to(LOGIT_DTYPES[seed % 4])
    weight = eighths(generator, *shape, low=0)
    weight[0, 0] = math.nan
    mask = torch.rand(shape, generator=generator) < 0.8
    rank, loss, weight, mask = (each.to(at) for each in (rank, loss, weight, mask))
    entropy = with_odd_ones(eighths(generator, *shape, low=0)).to(at)
    many = eighths(generator, 3000).float().to(at)
    metrics.update_rows(loss=loss, rank=rank, weight=weight, mask=mask)
    metrics.update_rows(loss=loss.t().contiguous().t(), correct=rank > 2)
    metrics.update_rows(entropy=entropy, rank=rank.int())
    metrics.update_rows(loss=loss[:0])
    metrics.update_rows(loss=many, mask=torch.ones_like(many))
    return metrics.compute()


def added_values(metrics: pig.MetricAccumulator, seed: int, at: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    numbers = (with_odd_ones(eighths(generator, 40, 30)) + 1000).to(at)
    weight = eighths(generator, 30, 40, low=-1).to(at)
    lengths = torch.randint(100, (50,), generator=generator).to(at)
    metrics.update_scalar("margin", numbers.to(LOGIT_DTYPES[seed % 2]))
    metrics.update_scalar("margin", numbers.t(), weight)
    metrics.update_scalar("margin", numbers[:0])
    metrics.update_scalar("length", lengths)
    metrics.update_scalar("bad", torch.tensor([math.nan, math.nan], device=at))
    metrics.update_scalar("length", 7)
    return metrics.compute()


def added_pairs(metrics: pig.RegressionAccumulator, seed: int, at: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    target = eighths(generator, 600) + 512
    prediction = with_odd_ones(target + eighths(generator, 600)).to(at)
    target, weight = target.to(at), eighths(generator, 600, low=-1).to(at)
    metrics.update(prediction, target, weight)
    metrics.update(prediction.reshape(20, 30).t(), target.reshape(20, 30).t())
    metrics.update(prediction[:0], target[:0])
    metrics.update_scalar("lr", 0.5)
    return metrics.compute()


def added_labels(
    metrics: pig.BinaryAccumulator, seed: int, at: str, labels: int | None = None
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = 90
    shape = (rows,) if labels is None else (rows, labels)
    logits = with_odd_ones(eighths(generator, *shape)).to(LOGIT_DTYPES[seed % 4])
    target = torch.randint(-1, 2, shape, generator=generator)
    target[target < 0] = (-100, 3)[seed % 2]
    logits, target = logits.to(at), target.to(at)
    metrics.update(logits, target, eighths(generator, rows, low=-1).to(at))
    metrics.update(logits, target.float())
    metrics.update(logits[:0], target[:0])
    return metrics.compute()


CASES: list[tuple[str, Callable[[], Any], Callable[[Any, int, str], dict[str, Any]]]] = [
    ("rows", lambda: pig.MetricAccumulator(topk=(1, 3), ema=0.5), added_rows),
    ("values", lambda: pig.MetricAccumulator(ema=0.5), added_values),
    ("pairs", lambda: pig.RegressionAccumulator(ema=0.5), added_pairs),
    ("labels", pig.BinaryAccumulator, added_labels),
    ("labels", lambda: pig.BinaryAccumulator(3), partial(added_labels, labels=3)),
    ("labels", lambda: pig.BinaryAccumulator(45, bins=64), partial(added_labels, labels=45)),
]
"""The kernel, how its accumulator is made, and what gives the values after updates of it with
tensors on a device; the numbers come from a seed."""
