# SPDX-License-Identifier: Apache-2.0
"""update_scalar with tensors of any shape, weights and moving averages, against plain Python."""

from __future__ import annotations

import copy
import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same, both_ways

torch = pytest.importorskip("torch")
nan, inf = math.nan, math.inf

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)


def expected(updates: list[tuple[Any, Any]], ema: float) -> dict[str, Any]:
    """The values of "x" after updates with these tensors and weights."""
    values: list[float] = []
    weights: list[float] = []
    nonfinite, last, average, means = 0, nan, 0.0, 0
    for tensor, weight in updates:
        numbers = tensor.double().reshape(-1).tolist()
        of_numbers = [1.0] * len(numbers)
        if weight is not None:
            of_numbers = weight.double().reshape(-1).tolist()
        given = [(n, w) for n, w in zip(numbers, of_numbers, strict=True) if w != 0]
        usable = [(n, w) for n, w in given if math.isfinite(n) and math.isfinite(w) and w > 0]
        nonfinite += len(given) - len(usable)
        if usable:
            last = math.fsum(n * w for n, w in usable) / math.fsum(w for _, w in usable)
            average = ema * average + (1 - ema) * last
            means += 1
        elif given:
            last = sum(nan if math.isfinite(n) else n for n, _ in given)
        values += [n for n, _ in usable]
        weights += [w for _, w in usable]
    total = math.fsum(n * w for n, w in zip(values, weights, strict=True))
    weight = math.fsum(weights)
    mean = total / weight if weight else nan
    squares = math.fsum(w * (n - mean) ** 2 for n, w in zip(values, weights, strict=True))
    return {
        "x": mean,
        "x_sum": total,
        "x_weight": weight,
        "x_std": math.sqrt(squares / weight) if weight else nan,
        "x_min": min(values, default=nan),
        "x_max": max(values, default=nan),
        "x_last": last,
        "x_nonfinite": nonfinite,
        "x_ema": average / (1 - ema**means) if means else nan,
    }


def random_update(generator: Any) -> tuple[Any, Any]:
    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    shape = [(), (1,), (7,), (300,), (0,), (3, 4), (2, 3, 2, 2, 2)][below(7)]
    # Multiples of 1/8: their sums are exact in any order.
    value = (torch.randint(0, 64, shape, generator=generator).double() / 8).to(DTYPES[below(6)])
    if value.is_floating_point() and value.numel() and below(3) == 0:
        value.view(-1)[below(value.numel())] = (nan, inf, -inf)[below(3)]
    if below(4) == 0 and value.ndim > 1:
        value = value.transpose(0, -1)
    weight = None
    if below(2):
        weight = torch.randint(0, 5, value.shape, generator=generator).double() / 4
        if weight.numel() and below(4) == 0:
            weight.view(-1)[below(weight.numel())] = (nan, inf, -1.0)[below(3)]
        weight = weight > 0.5 if below(3) == 0 else weight.to((torch.float32, DTYPES[0])[below(2)])
    return value, weight


@settings(max_examples=80)
@given(st.integers(0, 2**63 - 1))
def test_random_values_and_weights(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    updates = [random_update(generator) for _ in range(4)]
    for metrics in both_ways(ema=0.75):
        for value, weight in updates:
            metrics.update_scalar("x", value, weight)
        values = metrics.compute()
        got = {key: value for key, value in values.items() if key.split("_")[0] == "x"}
        wanted = expected(updates, 0.75)
        assert got.pop("x_std") == pytest.approx(wanted.pop("x_std"), abs=1e-6, nan_ok=True)
        assert_same(got, wanted)


def test_a_mask_as_weight_leaves_out_what_it_hides() -> None:
    rewards = torch.tensor([[1.0, 3.0, nan], [5.0, -inf, 1e30]])
    for metrics in both_ways():
        metrics.update_scalar("reward", rewards, rewards.new_tensor([[1, 1, 0], [1, 0, 0]]).bool())
        values = metrics.compute()
        assert (values["reward"], values["reward_max"], values["reward_nonfinite"]) == (3, 5, 0)


def test_the_deviation_is_exact_far_from_zero() -> None:
    """Squares of the numbers would have no digits left for it."""
    numbers = 1e9 + torch.arange(100_000, dtype=torch.float64) % 2
    for metrics in both_ways():
        for part in (numbers[:7], numbers[7:70_000], numbers[70_000:]):
            metrics.update_scalar("x", part)
        values = metrics.compute()
        assert values["x_std"] == pytest.approx(0.5, rel=1e-9)
        assert values["x"] == pytest.approx(1e9 + 0.5, rel=1e-15)


def test_padding_in_front_does_not_spoil_the_deviation() -> None:
    numbers = torch.cat([torch.full((5,), 1e30), torch.tensor([1.0, 2.0, 3.0])]).double()
    for metrics in both_ways():
        for _ in range(2):
            metrics.update_scalar("x", numbers, torch.arange(8) >= 5)
        assert metrics.compute()["x_std"] == pytest.approx((2 / 3) ** 0.5)


def test_only_a_part_far_from_zero_counts() -> None:
    for rows, begin, end in ((900, 500, 600), (40_000, 10_000, 10_500), (64 * 99, 0, 64 * 99)):
        numbers = 1e8 + torch.arange(rows, dtype=torch.float64) % 5
        weight = torch.zeros(rows)
        weight[begin:end] = 1
        if begin == 0:  # rows with padding on the left
            weight.view(64, 99)[:, :90] = 0
        variance = statistics.pvariance(numbers[weight != 0].int().tolist())
        for metrics in both_ways():
            metrics.update_scalar("x", numbers, weight)
            assert metrics.compute()["x_std"] == pytest.approx(variance**0.5, rel=1e-7)


def test_numbers_that_do_not_differ() -> None:
    for metrics in both_ways():
        for rows in range(1, 20):
            metrics.update_scalar("x", torch.full((rows,), 7.7, dtype=torch.float64))
        assert metrics.compute()["x_std"] == 0


def test_many_numbers_on_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(700_001, generator=generator, dtype=torch.float32)
    numbers[123_456] = nan
    weights = torch.rand(700_001, generator=generator)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        metrics = pig.MetricAccumulator()
        metrics.update_scalar("x", numbers, weights)
        results.append(metrics.compute())

    numbers[123_456] = weights[123_456] = 0
    products = (numbers.double() * weights.double()).tolist()  # exact: of 24 digits each
    mean = math.fsum(products) / math.fsum(weights.tolist())
    # The numbers lie on both sides of zero, so the sum's error is that of one a thousand times it.
    assert results[0]["x"] == pytest.approx(mean, abs=1e-12)
    for key in ("x", "x_sum", "x_std", "x_min", "x_max", "x_last", "x_nonfinite"):
        assert results[0][key] == results[1][key], key


def test_extremes_of_many_numbers_on_one_side_of_zero() -> None:
    numbers = torch.arange(5, 300_005, dtype=torch.float64)
    for metrics in both_ways():
        metrics.update_scalar("above", numbers)
        metrics.update_scalar("below", -numbers)
        values = metrics.compute()
        assert (values["above_min"], values["above_max"]) == (5, 300_004)
        assert (values["below_min"], values["below_max"]) == (-300_004, -5)


def test_moving_average_of_losses() -> None:
    logits, target = torch.eye(3), torch.arange(3)
    assert "loss_ema" not in pig.MetricAccumulator().compute()
    for metrics in both_ways(ema=0.9):
        assert math.isnan(metrics.compute()["loss_ema"])
        wanted = 0.0
        for number, loss in enumerate([1.0, 2.0, nan, 4.0]):
            metrics.update(logits, target, loss)
            if math.isfinite(loss):
                wanted = 0.9 * wanted + 0.1 * loss
            else:
                assert number == 2
        assert metrics.compute()["loss_ema"] == pytest.approx(wanted / (1 - 0.9**3), rel=1e-14)
        metrics.reset()
        metrics.update(logits, target, 7.0)
        assert metrics.compute()["loss_ema"] == pytest.approx(7)


@pytest.mark.parametrize("ema", [0, 1, -0.5, 2.0, "0.9", nan])
def test_a_share_that_is_none(ema: Any) -> None:
    with pytest.raises(ValueError, match="ema must be a number between 0 and 1"):
        pig.MetricAccumulator(ema=ema)


def test_copies_and_resets() -> None:
    metrics = pig.MetricAccumulator(ema=0.5)
    metrics.update_scalar("x", torch.arange(4.0))
    copied = copy.deepcopy(metrics)
    metrics.reset()
    metrics.update_scalar("x", torch.tensor([7.0, 9.0]))
    copied.update_scalar("x", torch.tensor([7.0, 9.0]))

    assert (metrics.compute()["x"], metrics.compute()["x_std"]) == (8, 1)
    assert copied.compute()["x"] == 22 / 6
    assert copied.compute()["x_ema"] == (1.5 * 0.25 + 8 * 0.5) / 0.75


@pytest.mark.parametrize(
    ("value", "weight", "message"),
    [
        (torch.ones(3), torch.ones(2), r"weight must have the shape of the value of 'x', \(3,\)"),
        (torch.ones(2, dtype=torch.complex64), None, "the value of 'x' must hold real numbers"),
        (1.0, torch.ones(1), "x must be a tensor if it has a weight"),
        ("one", None, "x must be a number or a tensor"),
        (None, torch.ones(2), "x must be a number or a tensor"),
        (torch.ones(2), 1.0, "weight must be a tensor"),
        (torch.ones(2, device="meta"), None, "device meta"),
    ],
)
def test_what_does_not_fit(value: Any, weight: Any, message: str) -> None:
    metrics = pig.MetricAccumulator()
    metrics.update_scalar("x", 1.0)
    with pytest.raises((TypeError, ValueError), match=message):
        metrics.update_scalar("x", value, weight)
    assert metrics.compute()["x_sum"] == 1
