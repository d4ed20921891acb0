# SPDX-License-Identifier: Apache-2.0
"""Updates whose tensors all have one shape, in plain torch operations: running values, rows without
logits, regression, and labels that are true or false.

Like `reference.py`, they define what the native code computes, and never wait for a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.binary_options import LOGIT_RANGE, BinaryOptions
from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.metrics.reference import add_counts, add_loss, add_to_ema, replace
from pyinstrument_gpu.metrics.regression_options import RegressionOptions
from pyinstrument_gpu.metrics.state import SCALAR_DTYPE, STATE_DTYPE, word


@torch.no_grad()
def add_values(
    state: Tensor, slot: int, value: Tensor | float, weight: Tensor | None, ema: float | None
) -> None:
    """Add a number, or a tensor of any shape, to the running value in a slot of the state."""
    if not isinstance(value, Tensor):
        # Not by a copy, which would be waited for.
        value = torch.full((), value, dtype=torch.float64, device=state.device)
    values = _flat(value.to(state.device))
    weights = torch.ones_like(values) if weight is None else _flat(weight)
    usable = values.isfinite() & weights.isfinite() & (weights > 0)
    others = ~usable & (weights != 0)
    of_others = torch.where(values.isfinite(), math.nan, values)
    nonfinite_sum = torch.where(others, of_others, 0).sum()
    _fold(state, slot, values, torch.where(usable, weights, 0), usable, ema)
    of = _fields(state, slot)
    of("nonfinite", torch.int64).add_(others.sum())
    only_others = others.any() & ~usable.any()
    replace(of("last", torch.float64), nonfinite_sum, only_others)


@torch.no_grad()
def add_rows(
    state: Tensor,
    loss: Tensor | None,
    correct: Tensor | None,
    rank: Tensor | None,
    entropy: Tensor | None,
    weight: Tensor | None,
    mask: Tensor | None,
    options: MetricOptions,
) -> None:
    """The tensors are as `MetricAccumulator.update_rows` takes them, checked."""
    reals = state.view(torch.float64)
    given = next(each for each in (loss, correct, rank, entropy) if each is not None)
    some = _flat(given)
    weights = torch.ones_like(some) if weight is None else _flat(weight)
    ignored = torch.zeros_like(some, dtype=torch.bool) if mask is None else _flat(mask) == 0
    wrong = ~weights.isfinite()
    ranks = None
    if rank is not None:
        ranks = _flat(rank)
        wrong |= ~(ranks >= 0)
    elif correct is not None:
        ranks = 1 - _flat(correct)
        wrong |= (ranks != 0) & (ranks != 1)
    counted = ~(ignored | wrong)
    weights = torch.where(counted, weights, 0)
    for slot, k in enumerate(options.topk):
        if ranks is not None and (rank is not None or k == 1):
            reals[word("correct") + slot] += torch.where(ranks < k, weights, 0).sum()
            reals[word("correct_weight") + slot] += weights.sum()
    if entropy is not None:
        entropies = _flat(entropy)
        finite = counted & entropies.isfinite()
        reals[word("entropy_sum")] += torch.where(finite, entropies * weights, 0).sum()
        reals[word("entropy_weight")] += torch.where(finite, weights, 0).sum()
    nonfinite_losses: Tensor | int = 0
    if loss is not None:
        nonfinite_losses = add_loss(state, loss, True, counted, weights, options.ema)
    add_counts(state, counted, ignored, wrong, weights, nonfinite_losses=nonfinite_losses)


@torch.no_grad()
def add_pairs(
    state: Tensor,
    prediction: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: RegressionOptions,
) -> None:
    """The tensors are as `RegressionAccumulator.update` takes them, checked."""
    targets = _flat(target)
    errors = _flat(prediction) - targets
    weights = torch.ones_like(errors) if weight is None else _flat(weight)
    ignored = weights == 0
    wrong = ~weights.isfinite() | (weights < 0)
    squares = errors.square()
    nonfinite = ~(ignored | wrong | squares.isfinite())
    counted = ~(ignored | wrong | nonfinite)
    weights = torch.where(counted, weights, 0)
    for slot, values in enumerate((squares, errors.abs(), targets)):
        _fold(state, slot, values, weights, counted, options.ema)
    add_counts(state, counted, ignored, wrong, weights, nonfinite.sum())


@torch.no_grad()
def add_labels(
    state: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: BinaryOptions,
) -> None:
    """The tensors are as `BinaryAccumulator.update` takes them, checked."""
    labels = options.num_labels or 1
    scores, targets = _flat(logits), _flat(target)
    if weight is None:
        weights = torch.ones_like(scores)
    elif options.num_labels is not None:
        weights = _flat(weight[..., None].expand(target.shape))
    else:
        weights = _flat(weight)
    ignored = (targets == options.ignore_index) | (weights == 0)
    wrong = ~weights.isfinite() | (weights < 0) | ((targets != 0) & (targets != 1))
    nonfinite = ~(ignored | wrong | scores.isfinite())
    if options.from_logits:
        wrong |= scores.isnan()
        logit, probability = scores, 1 / (1 + torch.exp(-scores))
    else:
        wrong |= ~((scores >= 0) & (scores <= 1))
        logit, probability = torch.log(scores / (1 - scores)), scores
    counted = ~(ignored | wrong)
    true, predicted = targets == 1, scores > options.score_threshold
    weights = torch.where(counted, weights, 0)

    # Places in the tail, 0 for a label that does not count: its weight is 0.
    tail = state.view(torch.float64)[STATE_DTYPE.itemsize // 8 :]
    calibration, counts, histograms = options.parts_of(tail)
    which = torch.arange(len(scores), device=state.device) % labels
    outcomes = torch.where(true, torch.where(predicted, 0, 2), torch.where(predicted, 1, 3))
    counts.view(-1).index_add_(0, torch.where(counted, which * 4 + outcomes, 0), weights)
    bins = _binned((logit + LOGIT_RANGE) * (options.bins / (2 * LOGIT_RANGE)), options.bins)
    places = 2 * (which * options.bins + bins) + true
    histograms.view(-1).index_add_(0, torch.where(counted, places, 0), weights)
    if size := options.calibration_bins:
        bins = torch.where(counted, _binned(probability * size, size), 0)
        probability = torch.where(counted, probability, 0)
        columns = (weights, weights * probability, torch.where(true, weights, 0))
        for column, added in enumerate(columns):
            calibration[:, column].index_add_(0, bins, added)

    if options.num_labels is not None and len(scores):
        rows = counted.view(-1, labels)
        exact = (~rows | (true == predicted).view(-1, labels)).all(dim=1)
        of_rows = weights.view(-1, labels).amax(dim=1)
        reals = state.view(torch.float64)
        reals[word("correct")] += torch.where(exact, of_rows, 0).sum()
        reals[word("correct_weight")] += of_rows.sum()
    add_counts(state, counted, ignored, wrong, weights, nonfinite.sum())


def _binned(position: Tensor, bins: int) -> Tensor:
    return position.nan_to_num(0).clamp(0, bins - 1).to(torch.int64)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).to(torch.float64)


def _fields(state: Tensor, slot: int) -> Callable[[str, torch.dtype], Tensor]:
    """The fields of a running value."""
    begin = word("scalars") + slot * SCALAR_DTYPE.itemsize // 8
    return lambda field, dtype: state.view(dtype)[begin + word(field, SCALAR_DTYPE)]


def _fold(
    state: Tensor, slot: int, values: Tensor, weights: Tensor, usable: Tensor, ema: float | None
) -> None:
    """Add the values that are usable; the others' weights are 0."""
    of = _fields(state, slot)
    of("updates", torch.int64).add_(1)
    if not len(values):
        return

    def real(field: str) -> Tensor:
        return of(field, torch.float64)

    values = torch.where(usable, values, 0)
    count, weight = usable.sum(), weights.sum()
    some = count != 0
    total = (values * weights).sum()
    mean = total / weight
    m2 = (weights * (values - mean).square()).sum()
    apart = mean - real("sum") / real("weight")
    between = apart.square() * (real("weight") * weight / (real("weight") + weight))
    real("m2").add_(torch.where(some, m2, 0))
    real("m2").add_(torch.where(some & (real("weight") > 0), between, 0))
    first = of("count", torch.int64) == 0
    least = torch.where(usable, values, math.inf).amin()
    greatest = torch.where(usable, values, -math.inf).amax()
    replace(real("min"), least, some & (first | (least < real("min"))))
    replace(real("max"), greatest, some & (first | (greatest > real("max"))))
    of("count", torch.int64).add_(count)
    real("weight").add_(weight)
    real("sum").add_(total)
    replace(real("last"), mean, some)
    finite = some & mean.isfinite()
    add_to_ema(real("ema"), mean, finite, ema)
    of("means", torch.int64).add_(finite)
