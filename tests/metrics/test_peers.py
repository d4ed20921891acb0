# SPDX-License-Identifier: Apache-2.0
"""The values of MetricAccumulator against torchmetrics and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig

# Peers take long to import, and the values are held against plain Python as well.
pytestmark = pytest.mark.thorough
torch = pytest.importorskip("torch")
CLASSES = 7


def batches() -> list[tuple[Any, Any, Any]]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for rows in (64, 64, 17):
        logits = torch.randn(rows, CLASSES, generator=generator)
        logits[:, 5] = -10  # never predicted
        # Class 6 is neither target nor, mostly, predicted.
        target = torch.randint(CLASSES - 1, (rows,), generator=generator)
        made.append((logits, target, torch.nn.functional.cross_entropy(logits, target)))
    return made


def accumulated(**options: Any) -> dict[str, Any]:
    metrics = pig.MetricAccumulator(topk=(1, 3), num_classes=CLASSES, confusion=True, **options)
    for logits, target, loss in batches():
        metrics.update(logits, target, loss)
    return metrics.compute()


@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_torchmetrics(ignore_index: int) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    classification = torchmetrics.classification
    options = {"num_classes": CLASSES, "ignore_index": ignore_index}
    peers = {
        "accuracy@1": classification.MulticlassAccuracy(average="micro", **options),
        "accuracy@3": classification.MulticlassAccuracy(average="micro", top_k=3, **options),
        "f1_micro": classification.MulticlassF1Score(average="micro", **options),
        "f1_macro": classification.MulticlassF1Score(average="macro", **options),
        "precision_macro": classification.MulticlassPrecision(average="macro", **options),
        "recall_macro": classification.MulticlassRecall(average="macro", **options),
    }
    matrix = classification.MulticlassConfusionMatrix(**options)
    for logits, target, _ in batches():
        for peer in (*peers.values(), matrix):
            peer.update(logits, target)

    values = accumulated(ignore_index=ignore_index)

    for name, peer in peers.items():
        assert values[name] == pytest.approx(float(peer.compute()), rel=1e-5), name
    assert values["confusion_matrix"].tolist() == matrix.compute().tolist()


@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn(weighted: bool) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    metrics = pig.MetricAccumulator(topk=(1, 3), num_classes=CLASSES, confusion=True)
    generator = torch.Generator().manual_seed(1)
    all_weights = []
    for logits, target, _ in batches():
        weight = torch.rand(len(target), generator=generator) if weighted else None
        all_weights.append(torch.ones(len(target)) if weight is None else weight)
        metrics.update(logits, target, weight=weight)
    values = metrics.compute()

    logits = torch.cat([logits for logits, _, _ in batches()]).numpy()
    target = torch.cat([target for _, target, _ in batches()]).numpy()
    weights = torch.cat(all_weights).double().numpy()
    predicted = logits.argmax(axis=1)
    for average in ("micro", "macro"):
        scores = sklearn_metrics.precision_recall_fscore_support(
            target, predicted, average=average, sample_weight=weights, zero_division=0
        )
        for name, score in zip(("precision", "recall", "f1"), scores, strict=False):
            assert values[f"{name}_{average}"] == pytest.approx(score), (name, average)
    occur = np.union1d(target, predicted)
    scores = sklearn_metrics.precision_recall_fscore_support(
        target, predicted, labels=occur, sample_weight=weights, zero_division=0
    )
    for name, score in zip(("precision", "recall", "f1"), scores, strict=False):
        assert values[f"{name}_per_class"][occur] == pytest.approx(score)
        assert np.isnan(np.delete(values[f"{name}_per_class"], occur)).all()
    matrix = sklearn_metrics.confusion_matrix(
        target, predicted, labels=range(CLASSES), sample_weight=weights
    )
    assert values["confusion_matrix"] == pytest.approx(matrix)
    top_3 = sklearn_metrics.top_k_accuracy_score(
        target, logits, k=3, labels=range(CLASSES), sample_weight=weights
    )
    assert values["accuracy@3"] == pytest.approx(top_3)
