# SPDX-License-Identifier: Apache-2.0
"""What one update of the metrics costs on one thread of the CPU, beside its peers.

All take the same logits, with the loss (and then count the top-1 accuracy) or without it (and then
compute that, too). The floors read or copy the same bytes and do nothing with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from _read_floor import read_bytes  # type: ignore[import-not-found]
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig

pytest.importorskip("torch")

import torch
from torch.nn.functional import cross_entropy, log_softmax

from benchmarks.effort import size
from benchmarks.metric_race import Update, Updater, race_updates

WITH_LOSS = "metrics.update(logits, target, loss)"
WITHOUT_LOSS = "metrics.update(logits, target)"
BY_HAND = "argmax, eq, sum, add_ by hand"
TORCHMETRICS = "torchmetrics accuracy (micro) + MeanMetric"
TORCHMETRICS_PERPLEXITY = "torchmetrics accuracy (micro) + Perplexity"
READ_FLOOR = "reading the bytes"
COPY_FLOOR = "copying the bytes"
# The peers use what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[[Any, Any, Any], Update]


def _with_loss(logits: Any, target: Any, loss: Any) -> Update:
    metrics = pig.MetricAccumulator(topk=(1, 5))
    return lambda: metrics.update(logits, target, loss)


def _without_loss(logits: Any, target: Any, loss: Any) -> Update:
    metrics = pig.MetricAccumulator(topk=(1, 5))
    return lambda: metrics.update(logits, target)


def _by_hand(logits: Any, target: Any, loss: Any) -> Update:
    total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def update() -> None:
        correct.add_((logits.argmax(1) == target).sum())
        total.add_(loss * len(target))

    return update


def _all_by_hand(logits: Any, target: Any, loss: Any) -> Update:
    totals, correct = torch.zeros(2), torch.zeros((), dtype=torch.int64)

    def update() -> None:
        log_probabilities = log_softmax(logits, 1, dtype=torch.float32)
        losses = -log_probabilities.gather(1, target[:, None])
        entropies = -(log_probabilities.exp() * log_probabilities).sum(1)
        totals.add_(torch.stack([losses.sum(), entropies.sum()]))
        correct.add_((logits.argmax(1) == target).sum())

    return update


def _cross_entropy(logits: Any, target: Any, loss: Any) -> Update:
    total = torch.zeros(())
    return lambda: total.add_(cross_entropy(logits, target, reduction="sum"))


def _torchmetrics(logits: Any, target: Any, loss: Any) -> Update:
    import torchmetrics

    accuracy = torchmetrics.classification.MulticlassAccuracy(logits.shape[1], average="micro")
    mean = torchmetrics.MeanMetric()

    def update() -> None:
        accuracy.update(logits, target)
        mean.update(loss, weight=len(target))

    return update


def _torchmetrics_perplexity(logits: Any, target: Any, loss: Any) -> Update:
    import torchmetrics
    from torchmetrics.text import Perplexity

    accuracy = torchmetrics.classification.MulticlassAccuracy(logits.shape[1], average="micro")
    perplexity = Perplexity()

    def update() -> None:
        accuracy.update(logits, target)
        perplexity.update(logits[None], target[None])

    return update


def _torcheval(logits: Any, target: Any, loss: Any) -> Update:
    import torcheval.metrics

    accuracy = torcheval.metrics.MulticlassAccuracy()
    return lambda: accuracy.update(logits, target)


def _torcheval_perplexity(logits: Any, target: Any, loss: Any) -> Update:
    import torcheval.metrics

    accuracy, perplexity = torcheval.metrics.MulticlassAccuracy(), torcheval.metrics.Perplexity()

    def update() -> None:
        accuracy.update(logits, target)
        perplexity.update(logits[None], target[None])

    return update


def _read(logits: Any, target: Any, loss: Any) -> Update:
    bytes_to_read = logits.numel() * logits.element_size()
    return lambda: read_bytes(logits.data_ptr(), bytes_to_read)


def _copy(logits: Any, target: Any, loss: Any) -> Update:
    copied = torch.empty_like(logits)
    return lambda: copied.copy_(logits)


Peers = tuple[tuple[str, str, Make], ...]
OF_A_LOSS: Peers = (
    (BY_HAND, "less: top-1 and the loss's sum alone", _by_hand),
    (TORCHMETRICS, "less: no top-5, no count of non-finite values", _torchmetrics),
    ("torcheval accuracy", "less: top-1 alone", _torcheval),
    (READ_FLOOR, "less: does nothing with them", _read),
    (COPY_FLOOR, "less: does nothing with them", _copy),
)
OF_NO_LOSS: Peers = (
    (WITH_LOSS, "less: the loss is given; no entropy", _with_loss),
    ("torch cross_entropy", "less: the loss alone", _cross_entropy),
    ("log_softmax, argmax, sums by hand", "less: no top-5", _all_by_hand),
    (TORCHMETRICS_PERPLEXITY, "less: no top-5, no entropy", _torchmetrics_perplexity),
    ("torcheval accuracy + Perplexity", "less: no top-5, no entropy", _torcheval_perplexity),
    (BY_HAND, "less: top-1 alone; the loss is given", _by_hand),
    (READ_FLOOR, "less: does nothing with them", _read),
    (COPY_FLOOR, "less: does nothing with them", _copy),
)


@pytest.mark.parametrize("is_given", [True, False], ids=["loss", "no-loss"])
@pytest.mark.parametrize(
    ("rows", "classes", "dtype", "uses", "rounds", "goals"),
    [
        (16, 10, "float32", 100, 100, {}),
        (256, 1000, "float32", 20, 100, {TORCHMETRICS: 1 / 15, READ_FLOOR: 1.9}),
        (2048, 32000, "float32", 1, 5, {WITH_LOSS: 1.15}),
        (4096, 32000, "bfloat16", 1, 5, {TORCHMETRICS: 1 / 40, READ_FLOOR: 1.6, WITH_LOSS: 1.3}),
    ],
    ids=["tiny", "small", "float32", "bfloat16"],
)
def test_update(
    benchmark: BenchmarkFixture,
    is_given: bool,
    rows: int,
    classes: int,
    dtype: str,
    uses: int,
    rounds: int,
    goals: dict[str, float],
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = size(rows, 16)
    logits = torch.randn(rows, classes, generator=generator).to(getattr(torch, dtype))
    target = torch.randint(classes, (rows,), generator=generator)
    loss = cross_entropy(logits[:8].float(), target[:8])
    if not is_given:
        goals = {label: goal for label, goal in goals.items() if label == WITH_LOSS}
        if logits.nbytes > 2**27:
            goals |= {TORCHMETRICS_PERPLEXITY: 1 / 40, COPY_FLOOR: 1.6}

    def updater(label: str, note: str, make: Make) -> Updater:
        return Updater(label, note, partial(make, logits, target, loss))

    ours = (
        updater(WITH_LOSS, "", _with_loss)
        if is_given
        else updater(WITHOUT_LOSS, "loss, perplexity and entropy, too", _without_loss)
    )
    what = "with the loss" if is_given else "without the loss, which is computed"
    race_updates(
        benchmark,
        f"metrics: an update of {rows} x {classes} {dtype} ({logits.nbytes / 1e6:.3g} MB) {what}",
        ours,
        [updater(*peer) for peer in (OF_A_LOSS if is_given else OF_NO_LOSS)],
        uses=uses,
        rounds=rounds,
        goals=goals,
    )
