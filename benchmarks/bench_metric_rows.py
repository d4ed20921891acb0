# SPDX-License-Identifier: Apache-2.0
"""What metrics without logits cost on one thread of the CPU, beside their peers: rows and running
values; and what it costs to read them."""

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

from benchmarks.metric_race import Update, Updater, race_updates

# The peers use what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = (4, 2048)


def _random(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _all(*updates: Update) -> Update:
    def update() -> None:
        for each in updates:
            each()

    return update


def _reading(*tensors: Any) -> Updater:
    def read() -> None:
        for tensor in tensors:
            read_bytes(tensor.data_ptr(), tensor.nbytes)

    return Updater("reading the bytes", "less: does nothing with them", lambda: read)


def _copying(*tensors: Any) -> Updater:
    copies = [torch.empty_like(tensor) for tensor in tensors]

    def copy() -> None:
        for copied, tensor in zip(copies, tensors, strict=True):
            copied.copy_(tensor)

    return Updater("copying the bytes", "less: does nothing with them", lambda: copy)


def test_rows(benchmark: BenchmarkFixture) -> None:
    """What TRL logs of each micro-batch."""
    loss, entropy, score = (_random(*TOKENS).abs() for _ in range(3))
    correct, mask = score > 0.5, score < 2

    def ours() -> Update:
        metrics = pig.MetricAccumulator(topk=1)
        return lambda: metrics.update_rows(loss=loss, correct=correct, entropy=entropy, mask=mask)

    def by_hand() -> Update:
        totals = torch.zeros(4)

        def update() -> None:
            sums = [(each * mask).sum() for each in (loss, correct, entropy)]
            totals.add_(torch.stack([*sums, mask.sum()]))

        return update

    def by_item() -> Update:
        def update() -> None:
            count = mask.sum()
            for each in (loss, correct, entropy):
                ((each * mask).sum() / count).item()

        return update

    def torchmetrics_means() -> Update:
        import torchmetrics

        rows = (loss, correct, entropy)
        return _all(*(partial(torchmetrics.MeanMetric().update, each, mask) for each in rows))

    def torcheval_means() -> Update:
        import torcheval.metrics

        rows = (loss, correct.float(), entropy)
        mean = torcheval.metrics.Mean
        return _all(*(partial(mean().update, each, weight=mask) for each in rows))

    race_updates(
        benchmark,
        f"metrics: loss, accuracy and entropy of {loss.numel()} masked rows",
        Updater("metrics.update_rows(loss=, correct=, entropy=, mask=)", "", ours),
        [
            Updater("masked sums, add_ by hand", "less: no minimum, no non-finite", by_hand),
            Updater("(sum / count).item() by hand", "less: keeps nothing; waits", by_item),
            Updater("torchmetrics: three MeanMetric", "less: no minimum", torchmetrics_means),
            Updater("torcheval: three Mean", "less: no minimum", torcheval_means),
            _reading(loss, correct, entropy, mask),
            _copying(loss, correct, entropy, mask),
        ],
        uses=20,
        rounds=100,
    )


@pytest.mark.parametrize("is_masked", [False, True], ids=["rewards", "masked"])
def test_running_value(benchmark: BenchmarkFixture, is_masked: bool) -> None:
    """The margins of a batch's rewards, and the logits of its chosen tokens, as TRL logs them."""
    value = _random(*TOKENS) if is_masked else _random(64)
    mask = value < 1 if is_masked else None

    def ours() -> Update:
        metrics = pig.MetricAccumulator()
        return lambda: metrics.update_scalar("value", value, weight=mask)

    def by_item() -> Update:
        return lambda: (value if mask is None else value[mask]).mean().item()

    def torchmetrics_mean() -> Update:
        import torchmetrics

        mean = torchmetrics.MeanMetric()
        return (lambda: mean.update(value)) if mask is None else lambda: mean.update(value, mask)

    def torcheval_mean() -> Update:
        import torcheval.metrics

        mean = torcheval.metrics.Mean()
        weight = 1.0 if mask is None else mask
        return lambda: mean.update(value, weight=weight)

    selected = "value[mask].mean().item()" if is_masked else "value.mean().item()"
    race_updates(
        benchmark,
        f"metrics: a running value of {value.numel()} numbers{', masked' if is_masked else ''}",
        Updater(f"metrics.update_scalar(name, value{', mask' if is_masked else ''})", "", ours),
        [
            Updater(f"{selected} by hand", "less: keeps nothing; waits", by_item),
            Updater("torchmetrics MeanMetric", "less: the mean alone", torchmetrics_mean),
            Updater("torcheval Mean", "less: the mean alone", torcheval_mean),
        ],
        uses=100,
        rounds=100,
    )


def test_reading(benchmark: BenchmarkFixture) -> None:
    """An update, and all values of it. On a GPU, all but ours wait for it."""
    logits, target, loss = _random(256, 10), torch.arange(256) % 10, torch.tensor(1.0)

    def ours(read: Callable[[pig.MetricAccumulator], Update]) -> Update:
        metrics = pig.MetricAccumulator(topk=1)
        return _all(partial(metrics.update, logits, target, loss), read(metrics))

    def torchmetrics_compute() -> Update:
        import torchmetrics

        accuracy = torchmetrics.classification.MulticlassAccuracy(10, average="micro")
        mean = torchmetrics.MeanMetric()

        def update() -> None:
            accuracy.update(logits, target)
            mean.update(loss, weight=len(target))
            accuracy.compute().item()
            mean.compute().item()

        return update

    def torcheval_compute() -> Update:
        import torcheval.metrics

        accuracy, mean = torcheval.metrics.MulticlassAccuracy(), torcheval.metrics.Mean()

        def update() -> None:
            accuracy.update(logits, target)
            mean.update(loss, weight=len(target))
            accuracy.compute().item()
            mean.compute().item()

        return update

    def by_hand() -> Update:
        def update() -> None:
            (logits.argmax(1) == target).float().mean().item()
            loss.item()

        return update

    race_updates(
        benchmark,
        "metrics: an update of 256 x 10, and reading its values",
        Updater("update, latest()", "", lambda: ours(lambda metrics: metrics.latest)),
        [
            Updater(
                "update, window.latest()",
                "the values since the last reading",
                lambda: ours(lambda metrics: metrics.window().latest),
            ),
            Updater(
                "update, compute()", "waits on a GPU", lambda: ours(lambda metrics: metrics.compute)
            ),
            Updater(
                "torchmetrics accuracy + MeanMetric, compute().item()",
                "less: two values; waits on a GPU",
                torchmetrics_compute,
            ),
            Updater(
                "torcheval accuracy + Mean, compute().item()",
                "less: two values; waits on a GPU",
                torcheval_compute,
            ),
            Updater(
                "argmax, eq, mean, two .item() by hand",
                "less: two values, of this batch alone; waits on a GPU",
                by_hand,
            ),
        ],
        uses=50,
        rounds=100,
    )
