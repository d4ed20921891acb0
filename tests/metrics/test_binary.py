# SPDX-License-Identifier: Apache-2.0
"""BinaryAccumulator against plain Python, scikit-learn and torchmetrics; its bounds are bounds."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same, both_ways

torch = pytest.importorskip("torch")
nan, inf = math.nan, math.inf

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ROUNDING = 1e-9
"""Far above what occurs: sums of some sixty to some thousand weights, none of them negative."""
accumulators = partial(both_ways, pig.BinaryAccumulator)


def below(limit: int, generator: Any) -> int:
    return int(torch.randint(limit, (), generator=generator))


# --- the areas ---


def exact_area_under_roc(score: Any, true: Any, weight: Any) -> float:
    """The share of pairs in the right order, by all pairs."""
    of_true, of_false = weight[true], weight[~true]
    difference = score[true][:, None] - score[~true][None]
    # Infinite scores of one sign are tied.
    difference = np.where(np.isnan(difference), 0, difference)
    wins = (difference > 0) + 0.5 * (difference == 0)
    pairs = of_true[:, None] * of_false * wins
    return math.fsum(pairs.flat) / math.fsum(of_true) / math.fsum(of_false)


def exact_average_precision(score: Any, true: Any, weight: Any) -> float:
    """The mean of the precision among all with a score at least as high, by definition."""
    precisions = [
        math.fsum(weight[true & (score >= each)]) / math.fsum(weight[score >= each])
        for each in score[true]
    ]
    return math.fsum(precisions * weight[true]) / math.fsum(weight[true])


def random_scores(generator: np.random.Generator) -> tuple[Any, Any, Any]:
    """Scores, labels and weights of some difficulty; both labels occur, with weights above 0."""
    rows = int(generator.integers(2, 60))
    true = generator.random(rows) < generator.choice([0.5, 0.02, 0.98])
    true[:2] = generator.permutation([True, False])
    score = generator.normal(size=rows) * generator.choice([0.01, 1, 30]) + true * (
        generator.choice([0.0, 1.0, -4.0])
    )
    kind = generator.integers(5)
    if kind == 0:  # ties
        score = np.round(score)
    elif kind == 1:
        score[:] = score[0]
    elif kind == 2:
        score[generator.integers(rows)] = generator.choice([inf, -inf, 1e300, -1e300])
    weight = generator.choice(
        np.stack(
            [
                np.ones(rows),
                generator.random(rows) + 1e-3,
                10.0 ** generator.integers(-12, 12, rows),
                1 + generator.integers(0, 2, rows) * 1e6,
            ]
        )
    )
    return score, true, weight


@settings(max_examples=150)
@given(st.integers(0, 2**63 - 1), st.booleans())
def test_the_exact_areas_lie_within_the_bounds(seed: int, from_logits: bool) -> None:
    generator = np.random.default_rng(seed)
    score, true, weight = random_scores(generator)
    if not from_logits:
        with np.errstate(over="ignore"):
            score = 1 / (1 + np.exp(-score))  # 0 and 1 among them
    bins = int(generator.choice([1, 2, 7, 64, 1024]))
    metrics = pig.BinaryAccumulator(bins=bins, from_logits=from_logits)
    for part in np.array_split(np.arange(len(score)), 3):
        metrics.update(*(torch.tensor(each[part]) for each in (score, true, weight)))
    values = metrics.compute()

    assert (values["count"], values["nonfinite"]) == (len(score), np.isinf(score).sum())
    for name, exact in (
        ("auroc", exact_area_under_roc(score, true, weight)),
        ("average_precision", exact_average_precision(score, true, weight)),
    ):
        error = values[f"{name}_error"]
        assert 0 <= values[name] <= 1 and 0 <= error <= 1, name
        assert abs(values[name] - exact) <= error + ROUNDING, name


def test_the_bounds_are_narrow_for_scores_that_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.rand(20_000, generator=generator) < 0.3
    for metrics in accumulators():
        metrics.update(torch.randn(20_000, generator=generator) * 3 + true, true)
        values = metrics.compute()
        assert values["auroc_error"] < 0.002 and values["average_precision_error"] < 0.003


@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_the_same(label: int) -> None:
    for metrics in accumulators():
        metrics.update(torch.tensor([-1.0, 2.0, 0.5]), torch.full((3,), label))
        values = metrics.compute()
        assert math.isnan(values["auroc"]) and math.isnan(values["auroc_error"])
        if label:
            assert (values["average_precision"], values["average_precision_error"]) == (1, 0)
        else:
            assert math.isnan(values["average_precision"])
            assert math.isnan(values["average_precision_error"])


def test_perfect_scores() -> None:
    for metrics in accumulators():
        metrics.update(torch.tensor([-9.0, -1.0, 1.0, 9.0, inf]), torch.tensor([0, 0, 1, 1, 1]))
        values = metrics.compute()
        assert (values["auroc"], values["auroc_error"]) == (1, 0)
        assert values["average_precision"] == pytest.approx(1, abs=ROUNDING)
        assert values["average_precision_error"] == pytest.approx(0, abs=ROUNDING)


# --- everything against plain Python ---


def expected(updates: list[tuple[Any, Any, Any]], labels: int, from_logits: bool) -> dict[str, Any]:
    """What compute() should give besides the areas, by label."""
    counts = dict.fromkeys(("count", "ignored", "invalid", "nonfinite"), 0)
    outcomes = np.zeros((labels, 2, 2))  # by label: true, predicted
    calibration: list[list[float]] = [[] for _ in range(15)]
    calibration_weights: list[float] = []
    for scores, target, weight in updates:
        scores, target = (each.double().reshape(-1, labels).numpy() for each in (scores, target))
        weights = np.ones(len(scores)) if weight is None else weight.double().reshape(-1).numpy()
        for row_scores, row_target, w in zip(scores, target, weights, strict=True):
            for label, (score, t) in enumerate(zip(row_scores, row_target, strict=True)):
                if t == -100 or w == 0:
                    counts["ignored"] += 1
                    continue
                if not 0 <= w < inf or t not in (0, 1):
                    counts["invalid"] += 1
                    continue
                counts["nonfinite"] += not math.isfinite(score)
                if math.isnan(score) or not (from_logits or 0 <= score <= 1):
                    counts["invalid"] += 1
                    continue
                counts["count"] += 1
                with np.errstate(over="ignore"):
                    p = 1 / (1 + np.exp(-score)) if from_logits else score
                predicted = score > (0 if from_logits else 0.5)
                outcomes[label, int(t), int(predicted)] += w
                calibration[min(int(p * 15), 14)] += w * p, -w * t
                calibration_weights.append(w)
    total = math.fsum(calibration_weights)
    ece = math.fsum(abs(math.fsum(gap)) for gap in calibration) / total if total else nan
    return {**counts, "outcomes": outcomes, "ece": ece}


def ratios(outcomes: Any) -> dict[str, float]:
    (tn, fp), (fn, tp) = outcomes
    occurs = tp + fp + fn > 0

    def ratio(numerator: float, denominator: float) -> float:
        return numerator / denominator if denominator else 0.0 if occurs else nan

    return {
        "accuracy": (tp + tn) / outcomes.sum() if outcomes.sum() else nan,
        "precision": ratio(tp, tp + fp),
        "recall": ratio(tp, tp + fn),
        "f1": ratio(2 * tp, 2 * tp + fp + fn),
    }


def random_update(generator: Any, labels: int | None, from_logits: bool) -> tuple[Any, Any, Any]:
    shape = [(), (5,), (300,), (0,), (2, 3)][below(5, generator)]
    whole = shape if labels is None else (*shape, labels)
    scores = torch.randint(-40, 41, whole, generator=generator).double() / 8
    if not from_logits:
        scores = (scores + 5) / 10  # 0 and 1 among them
    scores = scores.to(DTYPES[below(4, generator)])
    if scores.numel() and below(3, generator) == 0:
        scores.view(-1)[below(scores.numel(), generator)] = (nan, inf, -inf, 7.0)[
            below(4, generator)
        ]
    target = torch.randint(0, 2, whole, generator=generator)
    if target.numel() and below(2, generator):
        target.view(-1)[below(target.numel(), generator)] = (-100, 2, -1)[below(3, generator)]
    target = target.to((torch.int64, torch.int32, torch.int8, torch.float32)[below(4, generator)])
    if below(3, generator) == 0:
        target = target == 1
    weight = None
    if below(2, generator):
        weight = torch.randint(0, 5, shape, generator=generator).double() / 4
        if weight.numel() and below(3, generator) == 0:
            spot = below(weight.numel(), generator)
            weight.view(-1)[spot] = (nan, inf, -1.0)[below(3, generator)]
    if below(4, generator) == 0 and scores.ndim > 1:
        scores = scores.transpose(0, -1).contiguous().transpose(0, -1)
    return scores, target, weight


@settings(max_examples=80)
@given(st.integers(0, 2**63 - 1))
def test_random_updates(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = (None, 1, 3)[below(3, generator)]
    from_logits = below(2, generator) == 0
    updates = [random_update(generator, labels, from_logits) for _ in range(3)]
    wanted = expected(updates, labels or 1, from_logits)
    of_labels = [ratios(each) for each in wanted["outcomes"]]
    computed = []
    for metrics in accumulators(labels, from_logits=from_logits):
        for update in updates:
            metrics.update(*update)
        got = metrics.compute()
        computed.append(got)
        for name in ("count", "ignored", "invalid", "nonfinite"):
            assert got[name] == wanted[name], name
        assert got["ece"] == pytest.approx(wanted["ece"], nan_ok=True)
        for name in ("accuracy", "precision", "recall", "f1"):
            by_label = [each[name] for each in of_labels]
            if labels is None:
                assert got[name] == pytest.approx(by_label[0], nan_ok=True), name
                continue
            assert got[f"{name}_per_label"] == pytest.approx(by_label, nan_ok=True), name
            known = [each for each in by_label if not math.isnan(each)]
            mean = math.fsum(known) / len(known) if known else nan
            assert got[f"{name}_macro"] == pytest.approx(mean, nan_ok=True), name
            pooled = ratios(wanted["outcomes"].sum(axis=0))[name]
            assert got[f"{name}_micro"] == pytest.approx(pooled, nan_ok=True), name
    assert_same(*computed)


@pytest.mark.thorough
def test_peers_of_one_label() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    classification = pytest.importorskip("torchmetrics.classification")
    generator = torch.Generator().manual_seed(5)
    true = torch.rand(3000, generator=generator) < 0.2
    logits = torch.randn(3000, generator=generator) * 2 + true * 2 - 1
    metrics = pig.BinaryAccumulator(threshold=0.3)
    peers = {
        "accuracy": classification.BinaryAccuracy(threshold=0.3),
        "precision": classification.BinaryPrecision(threshold=0.3),
        "recall": classification.BinaryRecall(threshold=0.3),
        "f1": classification.BinaryF1Score(threshold=0.3),
        "ece": classification.BinaryCalibrationError(n_bins=15, norm="l1"),
    }
    for part in torch.arange(3000).split(777):
        metrics.update(logits[part], true[part])
        for peer in peers.values():
            peer.update(logits[part], true[part])
    values = metrics.compute()

    for name, peer in peers.items():  # in float32
        assert values[name] == pytest.approx(float(peer.compute()), rel=1e-3), name
    area = sklearn_metrics.roc_auc_score(true, logits)
    assert abs(values["auroc"] - area) <= values["auroc_error"] + ROUNDING < 0.01
    area = sklearn_metrics.average_precision_score(true, logits)
    assert abs(values["average_precision"] - area) <= values["average_precision_error"] + ROUNDING


@pytest.mark.thorough
def test_peers_of_several_labels() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    classification = pytest.importorskip("torchmetrics.classification")
    generator = torch.Generator().manual_seed(6)
    true = torch.rand(500, 4, generator=generator) < torch.tensor([0.1, 0.5, 0.9, 0.3])
    logits = torch.randn(500, 4, generator=generator) * 2 + true - 0.5
    weight = torch.rand(500, generator=generator)
    plain, weighted = pig.BinaryAccumulator(4), pig.BinaryAccumulator(4)
    plain.update(logits, true)
    weighted.update(logits, true, weight)
    values, of_weighted = plain.compute(), weighted.compute()

    peers = {
        "f1_macro": classification.MultilabelF1Score(4, average="macro"),
        "recall_micro": classification.MultilabelRecall(4, average="micro"),
        "precision_macro": classification.MultilabelPrecision(4, average="macro"),
        "accuracy_micro": classification.MultilabelAccuracy(4, average="micro"),
    }
    for name, peer in peers.items():
        peer.update(logits, true)
        assert values[name] == pytest.approx(float(peer.compute()), rel=1e-5), name
    for average in ("micro", "macro"):
        for name, function in (
            ("auroc", sklearn_metrics.roc_auc_score),
            ("average_precision", sklearn_metrics.average_precision_score),
        ):
            for got, sample_weight in ((values, None), (of_weighted, weight.double())):
                area = function(true, logits, average=average, sample_weight=sample_weight)
                error = got[f"{name}_error_{average}"]
                assert abs(got[f"{name}_{average}"] - area) <= error + ROUNDING
    for name, function in (
        ("precision", sklearn_metrics.precision_score),
        ("recall", sklearn_metrics.recall_score),
        ("f1", sklearn_metrics.f1_score),
    ):
        scores = function(true, logits > 0, average=None, sample_weight=weight.double())
        assert of_weighted[f"{name}_per_label"] == pytest.approx(scores), name


# --- size and threads ---


@pytest.mark.parametrize("labels", [None, 3, 200])
def test_many_labels_on_any_number_of_threads(labels: int | None) -> None:
    """Added outside of the lock, and under it where the histograms are larger than the batch."""
    generator = torch.Generator().manual_seed(0)
    rows = 300_000 // (labels or 1)
    shape = (rows,) if labels is None else (rows, labels)
    logits = torch.randn(shape, generator=generator) * 3
    true = torch.rand(shape, generator=generator) < 0.5
    weight = torch.randint(0, 5, (rows,), generator=generator) / 4
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        metrics = pig.BinaryAccumulator(labels)
        metrics.update(logits, true, weight)
        results.append(metrics.compute())
    for key, value in results[0].items():
        assert np.array_equal(value, results[1][key], equal_nan=value is not None), key
    by_reference = next(each for each in accumulators(labels) if each._native is None)
    by_reference.update(logits, true, weight)
    assert_same(results[0], by_reference.compute())


@pytest.mark.parametrize(("labels", "has_areas"), [(None, True), (4, True), (5, False)])
def test_what_readings_have(labels: int | None, has_areas: bool) -> None:
    metrics = pig.BinaryAccumulator(labels)
    assert metrics.latest() is None
    shape = (6,) if labels is None else (6, labels)
    metrics.update(
        torch.linspace(-3, 3, math.prod(shape)).reshape(shape),
        torch.eye(*shape) > 0 if labels else torch.arange(6) % 2,
    )
    reading = metrics.latest()
    assert reading is not None and reading.update == 1
    computed = metrics.compute()
    if not has_areas:
        computed = {key: value for key, value in computed.items() if "auroc" not in key}
        computed = {key: value for key, value in computed.items() if "average" not in key}
    assert_same(reading.values, computed)


def test_copies_resets_checkpoints_and_running_values() -> None:
    metrics = pig.BinaryAccumulator(2, ema=0.5)
    metrics.update_scalar("loss", 1.0)
    metrics.update_scalar("loss", 4.0)
    metrics.update(torch.ones(3, 2), torch.ones(3, 2))
    copied, saved = copy.deepcopy(metrics), metrics.state_dict()
    metrics.reset()
    metrics.update(-torch.ones(1, 2), torch.ones(1, 2))

    values = copied.compute()
    assert (values["loss"], values["loss_ema"]) == (2.5, 2.25 / 0.75)
    assert (values["recall_micro"], values["count"]) == (1, 6)
    values = metrics.compute()
    assert (values["recall_micro"], values["count"]) == (0, 2)
    metrics.load_state_dict(saved)
    assert_same(metrics.compute(), copied.compute())
    with pytest.raises(ValueError, match="num_labels=2 instead of 3"):
        pig.BinaryAccumulator(3, ema=0.5).load_state_dict(saved)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_labels": 0}, "num_labels must be an int from 1"),
        ({"threshold": 1.5}, "threshold must be a probability"),
        ({"threshold": nan}, "threshold must be a probability"),
        ({"bins": 0}, "bins must be an int from 1"),
        ({"bins": 1 << 16, "num_labels": 2000}, r"num_labels \* bins must be at most"),
        ({"calibration_bins": -1}, "calibration_bins must be an int from 0"),
        ({"ignore_index": 0.5}, "ignore_index must be an int"),
        ({"ema": 1.0}, "ema must be"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pig.BinaryAccumulator(**options)


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        (None, (torch.ones(3), torch.ones(2)), r"target must have the shape of logits, \(3,\)"),
        (None, (torch.ones(3, dtype=torch.int64), torch.ones(3)), "logits must be floating"),
        (None, (torch.ones(3), torch.ones(3), torch.ones(1)), "weight must have the shape"),
        (2, (torch.ones(3), torch.ones(3)), r"logits must have 2 labels in the last dimension"),
        (3, (torch.ones(2, 6), torch.ones(2, 6)), "logits must have 3 labels"),
        (2, (torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 2)), "weight must have the shape"),
        (2, (torch.ones(3, 2), None), "target must be a tensor, got NoneType"),
    ],
)
def test_what_does_not_fit(labels: int | None, arguments: tuple[Any, ...], message: str) -> None:
    metrics = pig.BinaryAccumulator(labels)
    fits = torch.ones((1,) if labels is None else (1, labels))
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=message):
            metrics.update(*arguments)
        metrics.update(fits, fits)
    assert metrics.compute()["count"] == 2 * fits.numel()


@pytest.mark.parametrize("threshold", [0, 1, 0.25])
def test_thresholds(threshold: float) -> None:
    probability = torch.tensor([0.0, 0.125, 0.25, 0.5, 1.0], dtype=torch.float64)
    wanted = int((probability > threshold).sum()) / 5
    for from_logits in (True, False):
        for metrics in accumulators(threshold=threshold, from_logits=from_logits):
            metrics.update(torch.logit(probability) if from_logits else probability, torch.ones(5))
            assert metrics.compute()["recall"] == wanted
