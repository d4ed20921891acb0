# SPDX-License-Identifier: Apache-2.0
"""Random updates of a MetricAccumulator, and what they should give, by other means than ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TARGET_DTYPES = (torch.int64, torch.int32, torch.uint8)
IGNORED = 3
"""The ignore_index of all cases: one that every dtype of targets can hold."""

# Few and close together, so that ties are common.
SPECIAL_LOGITS = (0.0, -0.0, 1.0, -1.0, 1.5, -2.0, 6e-8, -6e-8, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class Case:
    """The arguments of an accumulator and of one update."""

    logits: Tensor
    target: Tensor
    loss: Tensor | None
    weight: Tensor | None
    class_dim: int
    topk: tuple[int, ...]

    def rows(self) -> Tensor:
        """The logits as (rows, classes)."""
        return self.logits.movedim(self.class_dim, -1).reshape(-1, self.classes)

    @property
    def classes(self) -> int:
        return self.logits.shape[self.class_dim]


def random_case(generator: torch.Generator) -> Case:
    """A case of any kind: shapes, dtypes, strides, special values, weights, losses."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    def chance(one_in: int) -> bool:
        return below(one_in) == 0

    classes = (1, 2, 3, 7, 10, 16, 31, 33, 64, 65, 127, 128, 200, 257, 1000)[below(15)]
    rows_shape = [(0,), (1,), (5,), (4, 3), (2, 3, 2), (300,), (2, 2, 2, 2)][below(7)]
    class_dim = -1 if chance(2) else 1
    dtype = LOGIT_DTYPES[below(4)]
    axis = len(rows_shape) if class_dim == -1 else 1
    shape = (*rows_shape[:axis], classes, *rows_shape[axis:])

    kind = below(4)
    if kind == 0:  # ties everywhere, and special values
        values = torch.tensor(SPECIAL_LOGITS[: 3 + below(len(SPECIAL_LOGITS) - 2)])
        logits = values[torch.randint(len(values), shape, generator=generator)]
    elif kind == 1:  # ties among finite numbers
        logits = torch.randint(-3, 4, shape, generator=generator).double() / 2
    else:
        logits = torch.randn(shape, generator=generator, dtype=torch.float64) * 4
        if kind == 2 and logits.numel():
            spots = torch.randint(logits.numel(), (1 + below(3),), generator=generator)
            logits.view(-1)[spots] = SPECIAL_LOGITS[below(len(SPECIAL_LOGITS))]
    logits = logits.to(dtype)
    if chance(3) and logits.ndim > 1:  # other strides
        logits = logits.transpose(0, -1).contiguous().transpose(0, -1)
    elif chance(3):
        logits = torch.stack([logits, -logits], dim=-1)[..., 0]

    target_dtype = TARGET_DTYPES[below(3)]
    low, high = (0, classes) if chance(2) else (-2, classes + 2)
    if target_dtype == torch.uint8:
        low, high = max(low, 0), min(high, 256)
    target = torch.randint(low, high, rows_shape, generator=generator).to(target_dtype)
    if chance(4):
        target = target.transpose(0, -1).contiguous().transpose(0, -1)

    weight = None
    if chance(2):
        # Multiples of 1/8: their sums are exact in any order.
        weight = torch.randint(0, 33, rows_shape, generator=generator).double() / 8
        if chance(4) and weight.numel():
            weight.view(-1)[below(weight.numel())] = (math.nan, math.inf, -1.0)[below(3)]
        weight = weight.to((torch.float32, torch.float64, torch.bfloat16)[below(3)])
    loss = None
    if not chance(3):
        loss_shape = () if chance(2) else rows_shape
        loss = torch.randint(-8, 65, loss_shape, generator=generator).double() / 8
        if chance(4) and loss.numel():
            loss.view(-1)[below(loss.numel())] = (math.nan, math.inf, -math.inf)[below(3)]
        loss = loss.to((torch.float32, torch.float64, torch.float16)[below(3)])
    topk = ((1,), (1, 5), (2, 3, classes), (1, classes + 1))[below(4)]
    return Case(logits, target, loss, weight, class_dim, tuple(sorted(set(topk))))


def expected(cases: list[Case]) -> dict[str, Any]:
    """What compute() should give after these updates, all of one accumulator.

    In plain Python over rows, with the order of torch.argmax spelled out as a stable sort.
    """
    values: dict[str, Any] = dict.fromkeys(
        ("count", "nonfinite_rows", "nonfinite_losses", "ignored", "invalid", "lost_updates"), 0
    )
    first = None
    total_weight = loss_sum = loss_weight = 0.0
    correct = dict.fromkeys(cases[0].topk, 0.0)
    means: list[float] = []
    for number, case in enumerate(cases, start=1):
        nonfinite_before = values["nonfinite_rows"] + values["nonfinite_losses"]
        rows = case.rows()
        weights = [1.0] * len(rows) if case.weight is None else case.weight.reshape(-1).tolist()
        per_row = case.loss is not None and case.loss.ndim > 0
        losses = case.loss.reshape(-1).tolist() if per_row and case.loss is not None else []
        # Stable and with NaN first: what stands earlier wins a tie.
        order = torch.sort(rows, dim=1, descending=True, stable=True).indices
        weight_here = sum_here = loss_weight_here = 0.0
        counted_here = 0
        for row, target in enumerate(case.target.reshape(-1).tolist()):
            weight = weights[row]
            if target == IGNORED:
                values["ignored"] += 1
                continue
            if not 0 <= target < case.classes or not math.isfinite(weight):
                values["invalid"] += 1
                continue
            counted_here += 1
            weight_here += weight
            values["nonfinite_rows"] += not bool(rows[row].isfinite().all())
            position = order[row].tolist().index(target)
            for k in case.topk:
                correct[k] += weight if position < k else 0
            if per_row and math.isfinite(losses[row]):
                sum_here += losses[row] * weight
                loss_weight_here += weight
            elif per_row:
                values["nonfinite_losses"] += 1
        if case.loss is not None and not per_row:
            mean = float(case.loss)
            means.append(mean)
            if math.isfinite(mean):
                sum_here, loss_weight_here = mean * weight_here, weight_here
            else:
                values["nonfinite_losses"] += 1
        elif per_row and counted_here:
            means.append(sum_here / loss_weight_here if loss_weight_here else math.nan)
        values["count"] += counted_here
        total_weight += weight_here
        loss_sum += sum_here
        loss_weight += loss_weight_here
        if first is None and (
            values["nonfinite_rows"] + values["nonfinite_losses"] > nonfinite_before
        ):
            first = number
    finite = [mean for mean in means if math.isfinite(mean)]
    values["loss"] = loss_sum / loss_weight if loss_weight else math.nan
    values["loss_min"] = min(finite, default=math.nan)
    values["loss_max"] = max(finite, default=math.nan)
    values["loss_last"] = means[-1] if means else math.nan
    try:
        values["perplexity"] = math.exp(values["loss"])
    except OverflowError:
        values["perplexity"] = math.inf
    for k, weight in correct.items():
        values[f"accuracy@{k}"] = weight / total_weight if total_weight else math.nan
    values["nonfinite"] = values["nonfinite_rows"] + values["nonfinite_losses"]
    values["first_nonfinite_update"] = first
    return values


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal values; of numbers that are sums, up to the rounding of another order."""
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(got[key], value, rtol=1e-12, err_msg=key)
        elif isinstance(value, float):
            same = math.isclose(got[key], value, rel_tol=1e-12, abs_tol=1e-300)
            assert same or (math.isnan(value) and math.isnan(got[key])), (key, got[key], value)
        else:
            assert got[key] == value, (key, got[key], value)
