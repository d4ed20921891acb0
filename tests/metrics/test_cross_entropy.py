# SPDX-License-Identifier: Apache-2.0
"""What an update without a loss computes from the logits: cross-entropy, perplexity and entropy.
Random cases are in test_accumulator.py."""

from __future__ import annotations

import decimal
import math
import operator
import os
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import RowScores

torch = pytest.importorskip("torch")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def values_of(logits: Any, target: Any, **options: Any) -> dict[str, Any]:
    """After one update, by native code and by torch operations alike."""
    weight = options.pop("weight", None)
    native, reference = (pig.MetricAccumulator(topk=1, **options) for _ in range(2))
    reference._native = None
    for metrics in (native, reference):
        metrics.update(logits, target, weight=weight)
    assert (native.reference_updates, reference.reference_updates) == (0, 1)
    values, wanted = native.compute(), reference.compute()
    for name in ("loss", "perplexity", "entropy", "loss_last"):
        assert values[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-6, nan_ok=True), name
    for name in ("nonfinite_losses", "nonfinite_rows", "count", "first_nonfinite_update"):
        assert values[name] == wanted[name], name
    return values


def exact_scores(logits: list[float], target: int) -> tuple[Decimal, Decimal]:
    """The loss and the entropy of a row, to 17 digits: with a relative error below 2^-58.

    Logits x lie a + b below the greatest, a a multiple of 1/256. exp(-a) has 30 digits, and of
    exp(-b) = 1 + m only m is rounded, which is below 2^-8. Sums of m are exact.
    """
    top = max(logits)
    below: dict[float, list[float]] = {}
    for x in logits:
        a = round((top - x) * 256) / 256
        below.setdefault(a, []).append(math.fsum((top, -x, -a)))
    total = weighted = Decimal(0)
    with decimal.localcontext(decimal.Context(prec=30)):
        for a, parts in below.items():
            more = [math.expm1(-b) for b in parts]
            count = len(parts) + Decimal(math.fsum(more))
            rest = Decimal(math.fsum([*parts, *map(operator.mul, parts, more)]))
            power = Decimal(-a).exp()
            total += power * count
            weighted += power * (Decimal(a) * count + rest)
        return total.ln() + Decimal(top) - Decimal(logits[target]), total.ln() + weighted / total


def limits(wanted: Decimal, classes: int, dtype: Any) -> tuple[float, float]:
    """How far the loss and the entropy of a row may be away: by two units in the last place of the
    numbers, and by the roundings of the sums that they come from.

    So many numbers at most are added one after the other, in float64 up to every sixteenth, whose
    roundings are steps of a random walk. The limits are six times its deviation and more. The
    entropy has a sum of exp(x) * x besides, and x is about 4 here.
    """
    precision, additions = (
        (np.float64, 256 + classes / 16) if dtype == torch.float64 else (np.float32, 128)
    )
    last_place = float(np.spacing(precision(max(float(wanted), 1.0))))
    walk = math.sqrt(additions) * float(np.finfo(precision).eps) / 2
    return 2 * last_place + walk, 2 * last_place + 4 * walk


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [2, 33, 1000, 1025, 32_000, 128_256])
def test_a_row_is_as_exact_as_its_precision(dtype: Any, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = (torch.randn(1, classes, generator=generator, dtype=torch.float64) * 3).to(dtype)
    target = int(torch.randint(classes, (), generator=generator))
    loss, entropy = exact_scores(logits[0].tolist(), target)

    across = logits.t().contiguous().t()
    for each in (logits, torch.cat([across, across]).t().contiguous().t()[:1]):
        values = values_of(each, torch.tensor([target]))
        assert abs(Decimal(values["loss"]) - loss) <= limits(loss, classes, dtype)[0]
        assert abs(Decimal(values["entropy"]) - entropy) <= limits(entropy, classes, dtype)[1]


def test_a_row_of_one_class() -> None:
    for dtype in DTYPES:
        values = values_of(torch.full((1, 1), 3.5, dtype=dtype), torch.tensor([0]))
        assert (values["loss"], values["entropy"], values["perplexity"]) == (0, 0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [1000, 5000])
def test_a_model_that_is_sure_has_a_small_loss(dtype: Any, classes: int) -> None:
    logits = torch.randn(4, classes, generator=torch.Generator().manual_seed(7)).to(dtype)
    target = torch.arange(4) * (classes // 4)
    logits[torch.arange(4), target] = 20  # beside its 1 all others are some millionths
    losses = [
        RowScores.of(*each).loss for each in zip(logits.tolist(), target.tolist(), strict=False)
    ]
    assert values_of(logits, target)["loss"] == pytest.approx(math.fsum(losses) / 4, rel=1e-5)


# Sums of so few numbers are right to 14 digits in any order.
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (4, 5, 3, 2)])
def test_options_are_those_of_torch(
    smoothing: float, with_weight: bool, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(5, (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[0] = 3
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0]) if with_weight else None
    wanted = torch.nn.functional.cross_entropy(
        logits,
        target,
        weight=None if weight is None else weight.double(),
        label_smoothing=smoothing,
        ignore_index=3,
    )
    nll = torch.nn.functional.cross_entropy(logits, target, ignore_index=3)

    values = values_of(
        logits, target, label_smoothing=smoothing, class_weight=weight, ignore_index=3
    )
    assert values["loss"] == pytest.approx(float(wanted), rel=1e-12)
    assert values["perplexity"] == pytest.approx(math.exp(float(nll)), rel=1e-12)


def test_weights_of_rows() -> None:
    logits = torch.arange(24, dtype=torch.float64).reshape(6, 4).sin() * 3
    target, weights = torch.arange(6) % 4, [1.0, 0.0, 2.0, math.nan, 4.0, 0.5]
    losses = torch.nn.functional.cross_entropy(logits, target, reduction="none").tolist()

    values = values_of(logits, target, weight=torch.tensor(weights))
    products = [x * w for x, w in zip(losses, weights, strict=True) if not math.isnan(w)]
    assert values["loss"] == pytest.approx(math.fsum(products) / 7.5, rel=1e-12)
    assert (values["count"], values["invalid"]) == (5, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("class_dim", [1, -1])
def test_masked_classes_and_rows_that_are_not_finite(dtype: Any, class_dim: int) -> None:
    logits = torch.zeros(7, 40, dtype=dtype)
    logits[:, 3::2] = -math.inf
    logits[:, :3] = torch.tensor([1.0, 2.0, 0.5])
    logits[2, 30] = math.nan
    logits[3, 30] = math.inf
    logits[4] = -math.inf
    logits[5] = torch.finfo(dtype).min  # another way to mask: here everything is
    logits[6, :] = torch.finfo(dtype).min
    logits[6, 8] = 7
    target = torch.tensor([1, 5, 1, 1, 1, 9, 8])
    three = torch.tensor([1.0, 2.0, 0.5, *[0.0] * 18], dtype=torch.float64)
    if class_dim == 1:  # rows side by side
        logits, target = logits.t()[None].contiguous(), target[None]
    else:
        logits, target = logits[None], target[None]

    # The second target is masked; of the next three there is no loss.
    values = values_of(logits, target, class_dim=class_dim)
    assert (values["count"], values["nonfinite_losses"]) == (7, 4)
    assert values["nonfinite_rows"] == 5
    wanted = [float(three.logsumexp(0)) - 2, math.log(40), 0]
    assert values["loss"] == pytest.approx(sum(wanted) / 3, rel=1e-6)
    entropies = [float(torch.special.entr(three.softmax(0)).sum())] * 2 + [math.log(40), 0]
    assert values["entropy"] == pytest.approx(sum(entropies) / 4, rel=1e-6)


def test_nothing_to_compute() -> None:
    for logits, target in (
        (torch.randn(3, 5), torch.full((3,), -100)),
        (torch.randn(0, 5), torch.zeros(0, dtype=torch.long)),
        (torch.randn(3, 0), torch.zeros(3, dtype=torch.long)),
    ):
        values = values_of(logits, target)
        for name in ("loss", "loss_last", "perplexity", "entropy"):
            assert math.isnan(values[name])
        assert (values["count"], values["nonfinite"]) == (0, 0)


def test_scores_that_are_no_logits() -> None:
    metrics = pig.MetricAccumulator(topk=1, cross_entropy=False)
    metrics.update(torch.eye(3), torch.arange(3))
    values = metrics.compute()
    assert values["accuracy@1"] == 1
    assert all(math.isnan(values[name]) for name in ("loss", "perplexity", "entropy"))


def test_updates_with_and_without_a_loss() -> None:
    logits = torch.arange(24, dtype=torch.float64).reshape(8, 3).cos()
    target = torch.zeros(8, dtype=torch.long)
    own = float(torch.nn.functional.cross_entropy(logits, target))
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(logits, target)
    metrics.update(logits[:4], target[:4], 2.0)

    values = metrics.compute()
    assert values["loss"] == pytest.approx((8 * own + 4 * 2) / 12, rel=1e-12)
    assert values["loss_last"] == 2
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]), rel=1e-12)
    alone = values_of(logits, target)
    assert values["entropy"] == alone["entropy"]


def test_predictions_of_blocks() -> None:
    """The greatest logit is looked for in its block only: signed zeros, ties, NaNs in several."""
    classes = 3000
    logits = torch.full((6, classes), -1.0)
    logits[0, 700], logits[0, 1500] = -0.0, 0.0
    logits[1, 700], logits[1, 1500] = 0.0, -0.0
    logits[2, [1023, 1024, 2999]] = 5.0
    logits[3, [2048, 2999]] = 5.0
    logits[4, [2000, 5]] = math.inf
    logits[5, [1999, 2600]] = math.nan
    target = torch.full((6,), 2)
    for each in (logits, logits.t().contiguous().t()):
        for cross_entropy in (False, True):
            metrics = pig.MetricAccumulator(
                num_classes=classes, confusion=True, cross_entropy=cross_entropy
            )
            metrics.update(each, target)
            columns = np.flatnonzero(metrics.compute()["confusion_matrix"][2])
            assert set(columns) == set(logits.argmax(dim=1).tolist())
            assert columns.tolist() == [5, 700, 1023, 1999, 2048]


# --- threads ---


def large_batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4000, 1000, generator=generator), torch.randint(
        1000, (4000,), generator=generator
    )


def test_callers_share_the_pool() -> None:
    logits, target = large_batch()
    alone = values_of(logits, target)
    torch.set_num_threads(4)
    metrics = [pig.MetricAccumulator(topk=1) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.update(logits, target), metrics))
    # Not only nearly: the parts of a batch do not depend on the threads.
    assert all(each.compute() == alone for each in metrics)


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    logits, target = large_batch()
    torch.set_num_threads(2)
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(logits, target)  # its threads are there
    wanted = metrics.compute()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = pig.MetricAccumulator(topk=1)
            own._native.update(own._state, None, logits, target, None, None)
            code = own.compute() != wanted
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


# --- what does not fit ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, "label_smoothing must be from 0 to 1, got 1.5"),
        ({"label_smoothing": math.nan}, "label_smoothing"),
        ({"class_weight": torch.ones(3), "num_classes": 4}, "has 3 weights, num_classes is 4"),
        ({"class_weight": torch.tensor([1.0, -2.0])}, "finite and not negative, got -2.0"),
        ({"class_weight": torch.ones(2, 2)}, r"shape \(2, 2\)"),
        ({"class_weight": [1.0]}, "must be a tensor, got list"),
        ({"cross_entropy": False, "label_smoothing": 0.1}, "they need cross_entropy=True"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pig.MetricAccumulator(**options)


def test_class_weights_are_the_number_of_classes() -> None:
    weight = torch.ones(3)
    metrics = pig.MetricAccumulator(class_weight=weight)
    weight[:] = 5  # they were copied
    with pytest.raises(ValueError, match="num_classes is 3"):
        metrics.update(torch.eye(4), torch.arange(4))
    metrics.update(torch.eye(3), torch.arange(3))
    assert metrics.compute()["loss"] == pytest.approx(math.log(math.e + 2) - 1, rel=1e-6)


def test_ranks_and_checkpoints_know_the_options() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    metrics = pig.MetricAccumulator(topk=1, class_weight=weight)
    metrics.update(torch.eye(3), torch.arange(3))
    saved = metrics.state_dict()
    same = pig.MetricAccumulator(topk=1, class_weight=weight.double())
    same.load_state_dict(saved)
    assert same.compute() == metrics.compute()
    for options in ({"class_weight": weight + 1}, {"label_smoothing": 0.1}, {}):
        other = pig.MetricAccumulator(topk=1, **options)
        with pytest.raises(ValueError, match="class_weight"):
            other.load_state_dict(saved)
