# SPDX-License-Identifier: Apache-2.0
"""Random updates of a MetricAccumulator, and what they should give, by other means than ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import pyinstrument_gpu as pig

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TARGET_DTYPES = (torch.int64, torch.int32, torch.uint8)
IGNORED = 3
"""The ignore_index of all cases: one that every dtype of targets can hold."""

# Few and close together, so that ties are common.
SPECIAL_LOGITS = (0.0, -0.0, 1.0, -1.0, 1.5, -2.0, 6e-8, -6e-8, math.inf, -math.inf, math.nan)


def both_ways(**options: Any) -> Iterator[pig.MetricAccumulator]:
    """An accumulator with its native side, and one without."""
    yield pig.MetricAccumulator(**options)
    by_reference = pig.MetricAccumulator(**options)
    by_reference._native = None
    yield by_reference


def at_once(*calls: Callable[[], object]) -> None:
    """Each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


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
    )


class RowScores(NamedTuple):
    """What the logits of a row say of its target; NaN where they say nothing."""

    loss: float
    nll: float
    entropy: float

    @classmethod
    def of(
        cls,
        row: list[float],
        target: int,
        label_smoothing: float = 0.0,
        class_weight: list[float] | None = None,
    ) -> RowScores:
        """To a few roundings on any machine: `math.exp` is one away at most, and `math.fsum` adds
        exactly."""
        top = max(row)
        if top == -math.inf or not all(logit < math.inf for logit in row):
            return cls(math.nan, math.nan, math.nan)
        shifts = [logit - top for logit in row]
        powers = list(map(math.exp, shifts))
        total = math.fsum(powers)
        log_total = math.log(total)
        nll = log_total - shifts[target]
        loss = nll if class_weight is None else nll * class_weight[target]
        if label_smoothing:
            weights = class_weight or [1.0] * len(row)
            of_all = math.fsum(w * (log_total - x) for w, x in zip(weights, shifts, strict=True))
            loss = (1 - label_smoothing) * loss + label_smoothing / len(row) * of_all
        weighted = math.fsum(p * x for p, x in zip(powers, shifts, strict=True) if p)
        return cls(loss, nll, log_total - weighted / total)


Parts = list[tuple[float, float]]
"""Of a mean: numbers times their weights, and what these add to the divisor."""


def mean_of(parts: Parts) -> float:
    """Of sums that are exact."""
    weight = math.fsum(weight for _, weight in parts)
    return math.fsum(product for product, _ in parts) / weight if weight else math.nan


def expected(cases: list[Case]) -> dict[str, Any]:
    """What compute() should give after these updates, all of one accumulator.

    In plain Python over rows, with the order of torch.argmax spelled out as a stable sort.
    """
    values: dict[str, Any] = dict.fromkeys(
        ("count", "nonfinite_rows", "nonfinite_losses", "ignored", "invalid", "lost_updates"), 0
    )
    first = None
    loss: Parts = []
    nll: Parts = []
    entropy: Parts = []
    correct: dict[int, Parts] = {k: [] for k in cases[0].topk}
    error = 0.0  # of what is computed from logits
    means: list[float] = []
    for number, case in enumerate(cases, start=1):
        nonfinite_before = values["nonfinite_rows"] + values["nonfinite_losses"]
        rows, targets = case.rows(), case.target.reshape(-1)
        weights = [1.0] * len(rows) if case.weight is None else case.weight.reshape(-1).tolist()
        by_logits = case.loss is None and case.cross_entropy
        losses = case.loss.reshape(-1).tolist() if case.loss is not None else []
        per_row = by_logits or (case.loss is not None and case.loss.ndim > 0)
        class_weight = None if case.class_weight is None else case.class_weight.tolist()
        if by_logits:
            # Of a thousand logits at most (test_cross_entropy.py: limits).
            error = max(error, 1e-12 if case.logits.dtype == torch.float64 else 3e-6)
        # Stable and with NaN first: what stands earlier wins a tie.
        order = torch.sort(rows, dim=1, descending=True, stable=True).indices
        positions = (order == targets.long()[:, None]).int().argmax(dim=1).tolist()
        is_finite = rows.isfinite().all(dim=1).tolist()
        counted: list[float] = []
        here: Parts = []
        for row, target in enumerate(targets.tolist()):
            weight = weights[row]
            if target == IGNORED:
                values["ignored"] += 1
                continue
            if not 0 <= target < case.classes or not math.isfinite(weight):
                values["invalid"] += 1
                continue
            counted.append(weight)
            values["nonfinite_rows"] += not is_finite[row]
            for k, parts in correct.items():
                parts.append((weight * (positions[row] < k), weight))
            if not per_row:
                continue
            own, share = math.nan if by_logits else losses[row], 1.0
            if by_logits:
                logits = rows[row].tolist()
                scores = RowScores.of(logits, target, case.label_smoothing, class_weight)
                own, share = scores.loss, 1.0 if class_weight is None else class_weight[target]
                if math.isfinite(scores.nll):
                    nll.append((weight * scores.nll, weight))
                if math.isfinite(scores.entropy):
                    entropy.append((weight * scores.entropy, weight))
            if math.isfinite(own):
                here.append((weight * own, weight * share))
            else:
                values["nonfinite_losses"] += 1
        if case.loss is not None and not per_row:
            means += losses
            if math.isfinite(losses[0]):
                here = [(weight * losses[0], weight) for weight in counted]
            else:
                values["nonfinite_losses"] += 1
        elif per_row and counted:
            # As torch's mean: what has no weight at all is divided by 0.
            has_weight = any(weight for _, weight in here) or not any(part for part, _ in here)
            means.append(mean_of(here) if has_weight else math.inf)
        values["count"] += len(counted)
        loss += here
        if not by_logits:
            nll += here
        if first is None and (
            values["nonfinite_rows"] + values["nonfinite_losses"] > nonfinite_before
        ):
            first = number
    finite = [mean for mean in means if math.isfinite(mean)]
    of_nll = mean_of(nll)
    computed = {
        "loss": mean_of(loss),
        "loss_min": min(finite, default=math.nan),
        "loss_max": max(finite, default=math.nan),
        "loss_last": means[-1] if means else math.nan,
        "entropy": mean_of(entropy),
        "perplexity": math.inf if of_nll > 709 else math.exp(of_nll),
    }
    values.update((name, Computed(value, error)) for name, value in computed.items())
    # Its logarithm has that error.
    error *= max(1.0, abs(of_nll)) if nll else 1.0
    values["perplexity"] = Computed(computed["perplexity"], error)
    values |= {f"accuracy@{k}": mean_of(parts) for k, parts in correct.items()}
    values["nonfinite"] = values["nonfinite_rows"] + values["nonfinite_losses"]
    values["first_nonfinite_update"] = first
    return values


def computed(values: dict[str, Any], error: float = 1e-6) -> dict[str, Any]:
    """Values of which those that are computed from logits may be wrong by so much."""
    names = ("loss", "loss_min", "loss_max", "loss_last", "perplexity", "entropy")
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
