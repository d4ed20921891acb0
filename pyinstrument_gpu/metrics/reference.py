# SPDX-License-Identifier: Apache-2.0
"""Updates in plain torch operations.

They define what the native code computes, and do the work where that cannot: while the kernel for
a GPU is being compiled, for tensor subclasses, devices without a kernel, builds without the
native module. An update allocates several times the logits' size and launches dozens of kernels,
but it never waits for a device either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.metrics.state import SCALAR_DTYPE, STATE_DTYPE, word

_PART = 1 << 22
"""So many logits are in float64 at a time."""


@torch.no_grad()
def add_values(
    state: Tensor, slot: int, value: Tensor | float, weight: Tensor | None, ema: float | None
) -> None:
    """Add a number, or a tensor of any shape, to the running value in a slot of the state."""
    if not isinstance(value, Tensor):
        # Not by a copy, which would be waited for.
        value = torch.full((), value, dtype=torch.float64, device=state.device)
    begin = word("scalars") + slot * SCALAR_DTYPE.itemsize // 8

    def integer(field: str) -> Tensor:
        return state.view(torch.int64)[begin + word(field, SCALAR_DTYPE)]

    def real(field: str) -> Tensor:
        return state.view(torch.float64)[begin + word(field, SCALAR_DTYPE)]

    integer("updates").add_(1)
    values = _flat(value.to(state.device))
    if not len(values):
        return
    weights = torch.ones_like(values) if weight is None else _flat(weight)
    usable = values.isfinite() & weights.isfinite() & (weights > 0)
    others = ~usable & (weights != 0)
    of_others = torch.where(values.isfinite(), math.nan, values)
    nonfinite_sum = torch.where(others, of_others, 0).sum()
    values, weights = torch.where(usable, values, 0), torch.where(usable, weights, 0)
    count, weight_sum = usable.sum(), weights.sum()
    some = count != 0
    total = (values * weights).sum()
    mean = total / weight_sum
    m2 = (weights * (values - mean).square()).sum()
    apart = mean - real("sum") / real("weight")
    between = apart.square() * (real("weight") * weight_sum / (real("weight") + weight_sum))
    real("m2").add_(torch.where(some, m2, 0))
    real("m2").add_(torch.where(some & (real("weight") > 0), between, 0))
    first = integer("count") == 0
    least = torch.where(usable, values, math.inf).amin()
    greatest = torch.where(usable, values, -math.inf).amax()
    _replace(real("min"), least, some & (first | (least < real("min"))))
    _replace(real("max"), greatest, some & (first | (greatest > real("max"))))
    integer("count").add_(count)
    integer("nonfinite").add_(others.sum())
    real("weight").add_(weight_sum)
    real("sum").add_(total)
    _replace(real("last"), mean, some)
    _replace(real("last"), nonfinite_sum, others.any() & ~some)
    finite = some & mean.isfinite()
    _add_to_ema(real("ema"), mean, finite, ema)
    integer("means").add_(finite)


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
        nonfinite_losses = _add_loss(state, loss, True, counted, weights, options.ema)
    _add_counts(state, counted, ignored, wrong, weights, nonfinite_losses=nonfinite_losses)


@torch.no_grad()
def add_update(
    state: Tensor,
    logits: Tensor,
    target: Tensor,
    loss: Tensor | None,
    weight: Tensor | None,
    options: MetricOptions,
) -> None:
    """The tensors are as `MetricAccumulator.update` takes them, checked."""
    reals = state.view(torch.float64)
    classes = logits.shape[options.class_axis(logits.ndim)]
    rows = logits.movedim(options.class_axis(logits.ndim), -1).flatten(0, -2)
    targets = target.reshape(-1).to(torch.int64)
    if weight is None:
        weights = torch.ones(len(targets), dtype=torch.float64, device=state.device)
    else:
        weights = weight.reshape(-1).to(torch.float64)

    ignored = targets == options.ignore_index
    wrong = (targets < 0) | (targets >= classes) | ~weights.isfinite()
    counted = ~(ignored | wrong)
    weights = torch.where(counted, weights, 0)
    safe_targets = torch.where(counted, targets, 0)

    # What takes the logits' size of memory comes first: where there is none, nothing was added.
    nonfinite_rows: Tensor | int = 0
    scores = None
    if classes:
        ranks = _ranks(rows, safe_targets)
        if loss is None and options.cross_entropy:
            scores = _cross_entropy(rows, safe_targets, options)
        nonfinite_rows = (counted & ~rows.isfinite().all(dim=1)).sum()
        if options.confusion and len(rows):
            matrix = reals[STATE_DTYPE.itemsize // 8 :]
            matrix.index_add_(0, safe_targets * classes + rows.argmax(dim=1), weights)
        for slot, k in enumerate(options.topk):
            reals[word("correct") + slot] += torch.where(ranks < k, weights, 0).sum()
            reals[word("correct_weight") + slot] += weights.sum()
    nonfinite_losses: Tensor | int = 0
    if loss is not None:
        per_row = loss.ndim != 0 and loss.shape == target.shape
        nonfinite_losses = _add_loss(state, loss, per_row, counted, weights, options.ema)
    elif scores is not None:
        nonfinite_losses = _add_loss(
            state, scores.loss, True, counted, weights, options.ema, scores.loss_weight
        )
        for name, values in (("nll", scores.nll), ("entropy", scores.entropy)):
            known = values.isfinite()
            reals[word(f"{name}_sum")] += torch.where(known, values * weights, 0).sum()
            reals[word(f"{name}_weight")] += torch.where(known, weights, 0).sum()
    _add_counts(state, counted, ignored, wrong, weights, nonfinite_rows, nonfinite_losses)


def _add_counts(
    state: Tensor,
    counted: Tensor,
    ignored: Tensor,
    wrong: Tensor,
    weights: Tensor,
    nonfinite_rows: Tensor | int = 0,
    nonfinite_losses: Tensor | int = 0,
) -> None:
    """Add what every update has. The losses that are not finite are in the state already."""
    integers = state.view(torch.int64)
    integers[word("updates")] += 1
    integers[word("count")] += counted.sum()
    integers[word("ignored")] += ignored.sum()
    integers[word("invalid")] += (wrong & ~ignored).sum()
    integers[word("nonfinite_rows")] += nonfinite_rows
    state.view(torch.float64)[word("weight")] += weights.sum()
    first = integers[word("first_nonfinite_update")]
    is_first = (first == 0) & ((nonfinite_losses != 0) | (nonfinite_rows != 0))
    first.copy_(torch.where(is_first, integers[word("updates")], first))


def _ranks(rows: Tensor, targets: Tensor) -> Tensor:
    """Return how many logits of each row come before the target's in the order of torch.argmax."""
    columns = torch.arange(rows.shape[1], device=rows.device)
    own = rows.gather(1, targets[:, None])
    earlier = columns < targets[:, None]
    later = columns > targets[:, None]
    # Unordered compares: true for a NaN, which is greatest.
    ahead = (earlier & ~(rows < own)) | (later & ~(rows <= own))
    # Before a NaN stand only earlier ones.
    return torch.where(own.isnan(), earlier & rows.isnan(), ahead).sum(dim=1)


@dataclass(frozen=True)
class _Scores:
    """Scores of rows by their logits, in float64. The loss is that of torch with reduction="none";
    its mean is divided by the sum of `loss_weight`."""

    loss: Tensor
    loss_weight: Tensor
    nll: Tensor
    entropy: Tensor


def _cross_entropy(rows: Tensor, targets: Tensor, options: MetricOptions) -> _Scores:
    class_weights = options.class_weight_on(rows.device)
    parts = []
    # A part of the rows at a time: in float64 they are several times as large.
    for part, own in zip(
        rows.split(max(1, _PART // rows.shape[1])),
        targets.split(max(1, _PART // rows.shape[1])),
        strict=True,
    ):
        logits = part.to(torch.float64)
        # The greatest logit is infinite, or NaN, where others can't be compared with it.
        shifts = logits - logits.amax(dim=1, keepdim=True)
        powers = shifts.exp()
        total = powers.sum(dim=1)
        log_total = total.log()
        nll = log_total - shifts.gather(1, own[:, None])[:, 0]
        # A logit of minus infinity has the probability 0, which adds nothing.
        entropy = log_total - torch.where(powers == 0, 0, powers * shifts).sum(dim=1) / total
        weight = torch.ones_like(nll) if class_weights is None else class_weights[own]
        loss = nll * weight
        if options.label_smoothing:
            weighted = shifts if class_weights is None else shifts * class_weights
            all_weights = rows.shape[1] if class_weights is None else class_weights.sum()
            smooth = all_weights * log_total - weighted.sum(dim=1)
            share = options.label_smoothing
            loss = (1 - share) * loss + share / rows.shape[1] * smooth
        parts.append((loss, weight, nll, entropy))
    return _Scores(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _add_loss(
    state: Tensor,
    loss: Tensor,
    per_row: bool,
    counted: Tensor,
    weights: Tensor,
    ema: float | None,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Add the loss of an update; return the number of losses that are not finite.

    Args:
        class_weights: of the rows' targets, by which a cross-entropy has been multiplied; None for
            a loss that was given.
    """
    integers, reals = state.view(torch.int64), state.view(torch.float64)
    losses = loss.reshape(-1).to(torch.float64)
    loss_weights = weights if class_weights is None else weights * class_weights
    if per_row:
        finite = losses.isfinite()
        nonfinite = (counted & ~finite).sum()
        finite &= counted
        loss_weight = torch.where(finite, loss_weights, 0).sum()
        loss_sum = torch.where(finite, losses * weights, 0).sum()
        mean = loss_sum / loss_weight
        given = counted.any()
    else:
        mean = losses[0]
        finite = mean.isfinite()
        nonfinite = (~finite).to(torch.int64)
        loss_weight = torch.where(finite, weights.sum(), 0)
        loss_sum = torch.where(finite, mean * loss_weight, 0)
        given = torch.ones((), dtype=torch.bool, device=losses.device)
    integers[word("nonfinite_losses")] += nonfinite
    # A loss that is given is taken for the negative log-likelihood.
    for kind in ("loss", "nll") if class_weights is None else ("loss",):
        reals[word(f"{kind}_sum")] += loss_sum
        reals[word(f"{kind}_weight")] += loss_weight
    integers[word("losses")] += given
    _replace(reals[word("loss_last")], mean, given)
    usable = given & mean.isfinite()
    count, least, greatest = (
        integers[word("finite_losses")],
        reals[word("loss_min")],
        reals[word("loss_max")],
    )
    first = count == 0
    _replace(least, mean, usable & (first | (mean < least)))
    _replace(greatest, mean, usable & (first | (mean > greatest)))
    count += usable
    _add_to_ema(reals[word("loss_ema")], mean, usable, ema)
    return nonfinite


def _add_to_ema(average: Tensor, mean: Tensor, valid: Tensor, ema: float | None) -> None:
    """Take a mean that is valid into an average that began at 0."""
    remains = ema or 0.0
    _replace(average, remains * average + (1 - remains) * mean, valid)


def _replace(where: Tensor, value: Tensor, condition: Tensor) -> None:
    where.copy_(torch.where(condition, value, where))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).to(torch.float64)
