# SPDX-License-Identifier: Apache-2.0
"""RegressionAccumulator against plain Python, scikit-learn and torchmetrics."""

from __future__ import annotations

import copy
import math
import statistics
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same, both_ways

torch = pytest.importorskip("torch")
nan, inf = math.nan, math.inf

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
accumulators = partial(both_ways, pig.RegressionAccumulator)


def expected(updates: list[tuple[Any, Any, Any]]) -> dict[str, Any]:
    pairs: list[tuple[float, float, float]] = []
    ignored = invalid = nonfinite = 0
    first = None
    for number, (prediction, target, weight) in enumerate(updates, start=1):
        weights = torch.ones_like(target, dtype=torch.float64) if weight is None else weight
        columns = [each.double().reshape(-1).tolist() for each in (prediction, target, weights)]
        for p, t, w in zip(*columns, strict=True):
            if w == 0:
                ignored += 1
            elif not math.isfinite(w) or w < 0:
                invalid += 1
            elif not math.isfinite((p - t) * (p - t)):
                nonfinite += 1
                first = first or number
            else:
                pairs.append((p, t, w))
    weight = math.fsum(w for *_, w in pairs)
    squares = math.fsum(w * (p - t) ** 2 for p, t, w in pairs)
    mean = math.fsum(w * t for _, t, w in pairs) / weight if pairs else nan
    spread = math.fsum(w * (t - mean) ** 2 for _, t, w in pairs)
    mse = squares / weight if pairs else nan
    return {
        "count": len(pairs),
        "mse": mse,
        "rmse": math.sqrt(mse),
        "mae": math.fsum(w * abs(p - t) for p, t, w in pairs) / weight if pairs else nan,
        "r2": 1 - squares / spread if spread else nan,
        "max_error": max((abs(p - t) for p, t, _ in pairs), default=nan),
        "nonfinite": nonfinite,
        "first_nonfinite_update": first,
        "ignored": ignored,
        "invalid": invalid,
        "lost_updates": 0,
    }


def random_update(generator: Any) -> tuple[Any, Any, Any]:
    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    def numbers(dtype: Any) -> Any:
        # Eighths: targets that differ, differ by far more than sums are rounded by.
        tensor = (torch.randint(-64, 65, shape, generator=generator).double() / 8).to(dtype)
        if tensor.numel() and dtype.is_floating_point and below(4) == 0:
            tensor.view(-1)[below(tensor.numel())] = (nan, inf, -inf)[below(3)]
        if below(4) == 0 and tensor.ndim > 1:
            tensor = tensor.t().contiguous().t()
        return tensor

    shape = [(), (1,), (9,), (300,), (0,), (3, 4)][below(6)]
    prediction = numbers(DTYPES[below(4)])
    target = numbers((*DTYPES, torch.int64, torch.int16)[below(6)])
    weight = None
    if below(2):
        weight = torch.randint(0, 5, shape, generator=generator).double() / 4
        if weight.numel() and below(3) == 0:
            weight.view(-1)[below(weight.numel())] = (nan, inf, -1.0)[below(3)]
    return prediction, target, weight


@settings(max_examples=80)
@given(st.integers(0, 2**63 - 1))
def test_random_updates(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    updates = [random_update(generator) for _ in range(3)]
    wanted = expected(updates)
    for metrics in accumulators():
        for update in updates:
            metrics.update(*update)
        got = metrics.compute()
        assert got["r2"] == pytest.approx(wanted["r2"], rel=1e-10, nan_ok=True)
        assert_same({**got, "r2": 0}, {**wanted, "r2": 0})


@pytest.mark.thorough
@pytest.mark.parametrize("weighted", [False, True])
def test_peers(weighted: bool) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(3)
    metrics = pig.RegressionAccumulator()
    parts = []
    for rows in (1, 500, 33):
        target = torch.randn(rows, generator=generator) * 3 + 100
        prediction = target + torch.randn(rows, generator=generator)
        weight = torch.rand(rows, generator=generator)
        parts.append((prediction, target, weight))
        metrics.update(prediction, target, weight if weighted else None)
    prediction, target, weight = (torch.cat(each) for each in zip(*parts, strict=True))
    values = metrics.compute()

    arguments = (target.double(), prediction.double())
    sample_weight = weight.double() if weighted else None
    for name, function in (
        ("mse", sklearn_metrics.mean_squared_error),
        ("rmse", sklearn_metrics.root_mean_squared_error),
        ("mae", sklearn_metrics.mean_absolute_error),
        ("r2", sklearn_metrics.r2_score),
    ):
        wanted = function(*arguments, sample_weight=sample_weight)
        assert values[name] == pytest.approx(wanted, rel=1e-10), name
    assert values["max_error"] == pytest.approx(sklearn_metrics.max_error(*arguments), rel=1e-12)
    torchmetrics = pytest.importorskip("torchmetrics")
    if not weighted:
        r2 = torchmetrics.R2Score()
        r2.update(*(each.double() for each in (prediction, target)))
        assert values["r2"] == pytest.approx(float(r2.compute()), rel=1e-4)


def test_targets_far_from_zero() -> None:
    target = 1e8 + torch.arange(100_000, dtype=torch.float64) % 5
    for metrics in accumulators():
        for part in (target[:3], target[3:]):
            metrics.update(part + 0.5, part)
        assert metrics.compute()["r2"] == pytest.approx(1 - 0.25 / 2, rel=1e-7)


def test_padding_in_front_does_not_spoil_the_variance() -> None:
    target = torch.cat([torch.full((5,), 1e30), torch.tensor([1.0, 2.0, 3.0])]).double()
    for metrics in accumulators():
        metrics.update(target, target, torch.arange(8) >= 5)
        metrics.update(target + 1, target, torch.arange(8) >= 5)
        values = metrics.compute()
        assert (values["r2"], values["ignored"]) == (pytest.approx(1 - 0.5 * 1.5), 10)


def test_only_a_part_far_from_zero_counts() -> None:
    for rows, begin, end in ((900, 500, 600), (40_000, 10_000, 10_500), (64 * 99, 0, 64 * 99)):
        target = 1e8 + torch.arange(rows, dtype=torch.float64) % 5
        weight = torch.zeros(rows)
        weight[begin:end] = 1
        if begin == 0:  # rows with padding on the left
            weight.view(64, 99)[:, :90] = 0
        variance = statistics.pvariance(target[weight != 0].int().tolist())
        for metrics in accumulators():
            metrics.update(target + 0.5, target, weight)
            metrics.update_scalar("target", target, weight)
            values = metrics.compute()
            assert values["r2"] == pytest.approx(1 - 0.25 / variance, rel=1e-7)
            assert values["target_std"] == pytest.approx(variance**0.5, rel=1e-7)


def test_targets_that_do_not_differ() -> None:
    for metrics in accumulators():
        for rows in range(1, 20):
            target = torch.full((rows,), 7.7, dtype=torch.float64)
            metrics.update(target + 1, target)
            metrics.update_scalar("target", target)
        values = metrics.compute()
        assert math.isnan(values["r2"]) and values["target_std"] == 0


def test_what_is_not_known_is_nan() -> None:
    for metrics in accumulators():
        values = metrics.compute()
        assert all(math.isnan(values[name]) for name in ("mse", "rmse", "mae", "r2", "max_error"))
        metrics.update(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
        values = metrics.compute()
        assert math.isnan(values["r2"]) and values["mse"] == 1  # all targets are equal


def test_moving_averages() -> None:
    for metrics in accumulators(ema=0.5):
        metrics.update(torch.tensor([1.0, 3.0]), torch.zeros(2))
        metrics.update(torch.tensor([nan]), torch.zeros(1))
        metrics.update(torch.tensor([4.0]), torch.zeros(1))
        values = metrics.compute()
        assert values["mse_ema"] == (5 * 0.25 + 16 * 0.5) / 0.75
        assert values["mae_ema"] == (2 * 0.25 + 4 * 0.5) / 0.75


def test_running_values_readings_and_resets() -> None:
    metrics = pig.RegressionAccumulator(name="val")
    assert metrics.latest() is None
    for number in range(29):
        metrics.update_scalar(f"x{number}", number)
    with pytest.warns(RuntimeWarning, match="'x29' is one too many for 29"):
        metrics.update_scalar("x29", 1.0)
    metrics.update_scalar("x0", torch.tensor([2.0, 4.0]))
    metrics.update(torch.ones(2), torch.zeros(2))
    copied = copy.deepcopy(metrics)

    reading = metrics.latest()
    assert reading is not None and reading.update == 1
    assert reading.values == metrics.compute() or math.isnan(reading.values["r2"])
    assert (reading.values["mse"], reading.values["x28"], reading.values["x0_sum"]) == (1, 28, 6)
    metrics.reset()
    assert metrics.compute()["count"] == 0 and math.isnan(metrics.compute()["x28"])
    assert copied.compute()["x28"] == 28
    copied.load_state_dict(metrics.state_dict())
    copied.update_scalar("x5", 7.0)
    assert (copied.compute()["x5"], copied.compute()["count"]) == (7, 0)


@pytest.mark.parametrize("name", ["mse", "r2", "count", "mse_ema", "(target)", "lost_updates"])
def test_names_that_are_taken(name: str) -> None:
    metrics = pig.RegressionAccumulator()
    metrics.update(torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match="can't be the name of a running value"):
        metrics.update_scalar(name, 1.0)
    metrics.update_scalar("loss", 1.0)
    assert metrics.compute()["loss"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), torch.ones(2)), r"target must have the shape of prediction, \(3,\)"),
        ((torch.ones(3), torch.ones(3), torch.ones(1)), "weight must have the shape of prediction"),
        ((torch.ones(3), [1.0, 2.0, 3.0]), "target must be a tensor, got list"),
        ((torch.ones(3), None), "target must be a tensor, got NoneType"),
        ((torch.ones(3, dtype=torch.cfloat), torch.ones(3)), "prediction must hold real numbers"),
        ((torch.ones(3, device="meta"), torch.ones(3)), "device meta"),
    ],
)
def test_what_does_not_fit(arguments: tuple[Any, ...], message: str) -> None:
    metrics = pig.RegressionAccumulator()
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=message):
            metrics.update(*arguments)
        metrics.update(torch.ones(1), torch.ones(1))
    assert metrics.compute()["count"] == 2
