# SPDX-License-Identifier: Apache-2.0
"""The real kernel, on emulated blocks of threads: every format and layout of threads, with several
blocks that take turns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import _emulated_kernel as emulated  # type: ignore[import-not-found]
import _simulated_cuda as simulated  # type: ignore[import-not-found]
import pytest
import torch
from torch import Tensor

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import IGNORED, assert_same, expected, random_case
from tests.helpers.metric_gpu import metric_gpu
from tests.helpers.simulated_cuda import SimulatedCuda

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@contextlib.contextmanager
def emulated_gpu(blocks: int) -> Iterator[SimulatedCuda]:
    """Updates are of so many blocks, whatever their size."""
    with metric_gpu() as cuda:
        emulated.set_blocks(blocks)
        for name, kernel in emulated.kernels().items():
            simulated.on_launch(name, *kernel)
        yield cuda


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_random_updates(blocks: int) -> None:
    generator = torch.Generator().manual_seed(blocks)
    with emulated_gpu(blocks) as gpu:
        for _ in range(60):
            case = random_case(generator)
            metrics = pig.MetricAccumulator(
                topk=case.topk, class_dim=case.class_dim, ignore_index=IGNORED
            )
            metrics.update(case.logits, case.target, case.loss, case.weight)
            assert_same(metrics.compute(), expected([case]))
            reading = metrics.latest()
            if reading is not None:
                assert_same(reading.values, expected([case]))
        # Only what has too many dimensions to be merged is not for the kernel.
        assert 50 <= len(gpu.launches()) <= 60


def added(
    classes: int, logits: Tensor, target: Tensor, weight: Tensor, loss: Tensor
) -> dict[str, Any]:
    """The values of two updates, with rows that begin at 16 bytes and rows that don't, and of
    running values in between."""
    metrics = pig.MetricAccumulator(topk=(1, 5), num_classes=classes, confusion=True)
    for offset in (0, 1):
        metrics.update(logits[:, offset : offset + classes], target, loss, weight)
        metrics.update_scalar("tokens", offset + 1)
    return metrics.compute()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_of_threads_against_the_cpu(dtype: torch.dtype, blocks: int) -> None:
    generator = torch.Generator().manual_seed(blocks)
    for rows, classes, layout in ((600, 2, "thread"), (40, 333, "warp"), (7, 2055, "block")):
        logits = torch.randn(rows, classes + 1, generator=generator).to(dtype)
        logits[0, classes // 2] = math.nan
        logits[1] = 0
        logits[2, 0] = math.inf
        target = torch.randint(-1, classes + 1, (rows,), generator=generator)
        weight = torch.randint(0, 9, (rows,), generator=generator) / 8
        loss = weight + 0.5
        wanted = added(classes, logits, target, weight, loss)
        with emulated_gpu(blocks) as gpu:
            got = added(classes, logits, target, weight, loss)
            name = f"pig_metric_update_{str(dtype).removeprefix('torch.')}_{layout}"
            kernels = [launch.kernel for launch in gpu.launches()]
            assert kernels == [name, "pig_metric_scalar"] * 2
        assert_same(got, wanted)


# --- updates without logits ---


def eighths(generator: torch.Generator, *shape: int, low: int = -40, high: int = 41) -> Tensor:
    """Numbers whose sums, and those of their squares, are exact in any order."""
    return torch.randint(low, high, shape, generator=generator).double() / 8


def with_odd_ones(numbers: Tensor) -> Tensor:
    numbers.view(-1)[1::17] = math.nan
    numbers.view(-1)[2::19] = math.inf
    return numbers


def added_rows(metrics: pig.MetricAccumulator, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shape = (13, 7)
    rank = torch.randint(-1, 6, shape, generator=generator)
    loss = with_odd_ones(eighths(generator, *shape)).to(DTYPES[seed % 4])
    weight = eighths(generator, *shape, low=0)
    weight[0, 0] = math.nan
    mask = torch.rand(shape, generator=generator) < 0.8
    metrics.update_rows(loss=loss, rank=rank, weight=weight, mask=mask)
    metrics.update_rows(loss=loss.t().contiguous().t(), correct=rank > 2)
    metrics.update_rows(entropy=with_odd_ones(eighths(generator, *shape, low=0)), rank=rank.int())
    metrics.update_rows(loss=loss[:0])
    metrics.update_rows(loss=eighths(generator, 3000).float(), mask=rank.new_ones(3000))
    return metrics.compute()


def added_values(metrics: pig.MetricAccumulator, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    numbers = with_odd_ones(eighths(generator, 40, 30)) + 1000
    metrics.update_scalar("margin", numbers.to(DTYPES[seed % 2]))
    metrics.update_scalar("margin", numbers.t(), eighths(generator, 30, 40, low=-1))
    metrics.update_scalar("margin", numbers[:0])
    metrics.update_scalar("length", torch.randint(100, (50,), generator=generator))
    metrics.update_scalar("bad", torch.tensor([math.nan, math.nan]))
    metrics.update_scalar("length", 7)
    return metrics.compute()


def added_pairs(metrics: pig.RegressionAccumulator, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    target = eighths(generator, 600) + 512
    prediction = with_odd_ones(target + eighths(generator, 600))
    metrics.update(prediction, target, eighths(generator, 600, low=-1))
    metrics.update(prediction.reshape(20, 30).t(), target.reshape(20, 30).t())
    metrics.update(prediction[:0], target[:0])
    metrics.update_scalar("lr", 0.5)
    return metrics.compute()


def added_labels(
    metrics: pig.BinaryAccumulator, seed: int, labels: int | None = None
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = 90
    shape = (rows,) if labels is None else (rows, labels)
    logits = with_odd_ones(eighths(generator, *shape)).to(DTYPES[seed % 4])
    target = torch.randint(-1, 2, shape, generator=generator)
    target[target < 0] = (-100, 3)[seed % 2]
    weight = eighths(generator, rows, low=-1)
    metrics.update(logits, target, weight)
    metrics.update(logits, target.float())
    metrics.update(logits[:0], target[:0])
    return metrics.compute()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "make", "add"),
    [
        ("rows", lambda: pig.MetricAccumulator(topk=(1, 3), ema=0.5), added_rows),
        ("values", lambda: pig.MetricAccumulator(ema=0.5), added_values),
        ("pairs", lambda: pig.RegressionAccumulator(ema=0.5), added_pairs),
        ("labels", pig.BinaryAccumulator, added_labels),
        ("labels", lambda: pig.BinaryAccumulator(3), partial(added_labels, labels=3)),
        ("labels", lambda: pig.BinaryAccumulator(45, bins=64), partial(added_labels, labels=45)),
    ],
)
def test_updates_without_logits_against_the_cpu(
    kernel: str, make: Any, add: Any, blocks: int
) -> None:
    for seed in range(4):
        wanted = add(make(), seed)
        with emulated_gpu(blocks) as gpu:
            metrics = make()
            got = add(metrics, seed)
            assert metrics.reference_updates == 0
            kernels = {launch.kernel for launch in gpu.launches()}
            assert kernels - {"pig_metric_scalar"} == {f"pig_metric_{kernel}"}
            reading = metrics.latest()
            assert reading is not None
            assert_same(reading.values, {name: wanted[name] for name in reading.values})
        assert_same(got, wanted)
