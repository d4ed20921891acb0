# SPDX-License-Identifier: Apache-2.0
"""Random updates of a MetricAccumulator, and what they should give, by other means than ours."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
    cross_entropy: bool = False
    label_smoothing: float = 0.0
    class_weight: Tensor | None = None
    calibration_bins: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of its accumulator."""
        return {
            "topk": self.topk,
            "class_dim": self.class_dim,
            "ignore_index": IGNORED,
            "cross_entropy": self.cross_entropy,
            "label_smoothing": self.label_smoothing,
            "class_weight": self.class_weight,
            "calibration_bins": self.calibration_bins,
        }

    def rows(self) -> Tensor:
        """The logits as (rows, classes)."""
        return self.logits.movedim(self.class_dim, -1).reshape(-1, self.classes)

    @property
    def classes(self) -> int:
        return self.logits.shape[self.class_dim]


class Computed(float):
    """A number that is computed from logits in their precision, or in that of float32 where theirs
    is less: the last digits may differ.

    Attributes:
        error: how far it may be away, relative to itself or to 1.
    """

    error: float

    def __new__(cls, value: float, error: float) -> Computed:
        self = super().__new__(cls, value)
        self.error = error
        return self


def random_case(generator: torch.Generator, cross_entropy: bool = False) -> Case:
    """A case of any kind: shapes, dtypes, strides, special values, weights, losses. With
    `cross_entropy`, also those that compute the loss."""

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
    case = Case(logits, target, loss, weight, class_dim, tuple(sorted(set(topk))))
    if not cross_entropy or chance(5):
        return case
    class_weight = torch.rand(classes, generator=generator) * 2 if chance(3) else None
    if class_weight is not None and chance(4):
        class_weight[below(classes)] = 0
    return replace(
        case,
        cross_entropy=True,
        label_smoothing=(0.0, 0.1, 1.0)[below(3)],
        class_weight=class_weight,
        calibration_bins=(0, 11)[below(2)],
    )


@dataclass
class _CrossEntropy:
    """What the logits of a case say of each row, by PyTorch's functions in float64."""

    loss: list[float]
    loss_weight: list[float]
    nll: list[float]
    entropy: list[float]
    confidence: list[float]

    @classmethod
    def of(cls, case: Case) -> _CrossEntropy:
        rows = case.rows().double()
        targets = case.target.reshape(-1).long()
        targets = torch.where((targets >= 0) & (targets < case.classes), targets, 0)
        weight = None if case.class_weight is None else case.class_weight.double()
        loss = torch.nn.functional.cross_entropy(
            rows, targets, weight, reduction="none", label_smoothing=case.label_smoothing
        )
        nll = torch.nn.functional.cross_entropy(rows, targets, reduction="none")
        probabilities = rows.softmax(dim=1)
        return cls(
            loss.tolist(),
            (torch.ones(len(rows)) if weight is None else weight[targets]).tolist(),
            nll.tolist(),
            torch.special.entr(probabilities).sum(dim=1).tolist(),
            probabilities.amax(dim=1).tolist() if case.classes else [],
        )


def expected(cases: list[Case]) -> dict[str, Any]:
    """What compute() should give after these updates, all of one accumulator.

    In plain Python over rows, with the order of torch.argmax spelled out as a stable sort.
    """
    values: dict[str, Any] = dict.fromkeys(
        ("count", "nonfinite_rows", "nonfinite_losses", "ignored", "invalid", "lost_updates"), 0
    )
    first = None
    total_weight = loss_sum = loss_weight = nll_sum = nll_weight = 0.0
    entropy_sum = entropy_weight = 0.0
    bins = np.zeros((cases[0].calibration_bins, 3))
    error = 0.0  # of what is computed from logits
    correct = dict.fromkeys(cases[0].topk, 0.0)
    means: list[float] = []
    for number, case in enumerate(cases, start=1):
        nonfinite_before = values["nonfinite_rows"] + values["nonfinite_losses"]
        rows = case.rows()
        weights = [1.0] * len(rows) if case.weight is None else case.weight.reshape(-1).tolist()
        per_row = case.loss is not None and case.loss.ndim > 0
        losses = case.loss.reshape(-1).tolist() if per_row and case.loss is not None else []
        loss_weights = [1.0] * len(rows)
        scores = None
        if case.loss is None and case.cross_entropy:
            scores = _CrossEntropy.of(case)
            per_row, losses, loss_weights = True, scores.loss, scores.loss_weight
            error = max(error, 1e-12 if case.logits.dtype == torch.float64 else 1e-6)
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
                loss_weight_here += weight * loss_weights[row]
            elif per_row:
                values["nonfinite_losses"] += 1
            if scores is None:
                continue
            if math.isfinite(scores.nll[row]):
                nll_sum += scores.nll[row] * weight
                nll_weight += weight
            if math.isfinite(scores.entropy[row]):
                entropy_sum += scores.entropy[row] * weight
                entropy_weight += weight
            confidence = scores.confidence[row]
            if len(bins) and not math.isnan(confidence):
                at = bins[min(int(confidence * len(bins)), len(bins) - 1)]
                at += weight, weight * confidence, weight * (position == 0)
        if case.loss is not None and not per_row:
            mean = float(case.loss)
            means.append(mean)
            if math.isfinite(mean):
                sum_here, loss_weight_here = mean * weight_here, weight_here
            else:
                values["nonfinite_losses"] += 1
        elif per_row and counted_here:
            # As torch's mean: what has no weight at all is divided by 0.
            without_weight = math.inf if sum_here else math.nan
            means.append(sum_here / loss_weight_here if loss_weight_here else without_weight)
        values["count"] += counted_here
        total_weight += weight_here
        loss_sum += sum_here
        loss_weight += loss_weight_here
        if scores is None:
            nll_sum += sum_here
            nll_weight += loss_weight_here
        if first is None and (
            values["nonfinite_rows"] + values["nonfinite_losses"] > nonfinite_before
        ):
            first = number
    finite = [mean for mean in means if math.isfinite(mean)]
    computed = {
        "loss": loss_sum / loss_weight if loss_weight else math.nan,
        "loss_min": min(finite, default=math.nan),
        "loss_max": max(finite, default=math.nan),
        "loss_last": means[-1] if means else math.nan,
        "entropy": entropy_sum / entropy_weight if entropy_weight else math.nan,
    }
    try:
        computed["perplexity"] = math.exp(nll_sum / nll_weight) if nll_weight else math.nan
    except OverflowError:
        computed["perplexity"] = math.inf
    if len(bins):
        total = bins[:, 0].sum()
        difference = abs(bins[:, 1] - bins[:, 2]).sum()
        computed["ece"] = float(difference / total) if total else math.nan
    values.update((name, Computed(value, error)) for name, value in computed.items())
    if nll_weight:  # its logarithm has that error
        error *= max(1.0, abs(nll_sum / nll_weight))
    values["perplexity"] = Computed(computed["perplexity"], error)
    for k, weight in correct.items():
        values[f"accuracy@{k}"] = weight / total_weight if total_weight else math.nan
    values["nonfinite"] = values["nonfinite_rows"] + values["nonfinite_losses"]
    values["first_nonfinite_update"] = first
    return values


def computed(values: dict[str, Any], error: float = 1e-6) -> dict[str, Any]:
    """Values of which those that are computed from logits may be wrong by so much."""
    names = ("loss", "loss_min", "loss_max", "loss_last", "perplexity", "entropy", "ece")
    return values | {name: Computed(values[name], error) for name in names if name in values}


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal values; of numbers that are sums, up to the rounding of another order."""
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(got[key], value, rtol=1e-12, err_msg=key)
        elif isinstance(value, float):
            error = value.error if isinstance(value, Computed) else 0.0
            same = math.isclose(got[key], value, rel_tol=max(error, 1e-12), abs_tol=error or 1e-300)
            assert same or (math.isnan(value) and math.isnan(got[key])), (key, got[key], value)
        else:
            assert got[key] == value, (key, got[key], value)
