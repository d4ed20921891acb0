# SPDX-License-Identifier: Apache-2.0
"""Updates without logits, of all kinds, and their values: the same on every device."""

from __future__ import annotations

import math
from collections.abc import Callable
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


CASES: list[
    tuple[str, Callable[[], Any], Callable[[pig.MetricAccumulator, int, str], dict[str, Any]]]
] = [
    ("rows", lambda: pig.MetricAccumulator(topk=(1, 3), ema=0.5), added_rows),
    ("values", lambda: pig.MetricAccumulator(ema=0.5), added_values),
]
"""The kernel, how its accumulator is made, and what gives the values after updates of it with
tensors on a device; the numbers come from a seed."""
