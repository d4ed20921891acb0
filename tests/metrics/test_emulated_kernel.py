# SPDX-License-Identifier: Apache-2.0
"""The real kernel, on emulated blocks of threads: every format and layout of threads, with several
blocks that take turns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import _emulated_kernel as emulated  # type: ignore[import-not-found]
import _simulated_cuda as simulated  # type: ignore[import-not-found]
import pytest
import torch
from torch import Tensor

import pyinstrument_gpu as pig
from tests.helpers import element_updates
from tests.helpers.metric_cases import assert_same, computed, expected, random_case
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
            case = random_case(generator, cross_entropy=True)
            metrics = pig.MetricAccumulator(**case.options)
            metrics.update(case.logits, case.target, case.loss, case.weight)
            wanted = expected([case])
            assert_same(metrics.compute(), wanted)
            reading = metrics.latest()
            if reading is not None:
                assert_same(reading.values, wanted)
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


def scored(
    logits: Tensor, target: Tensor, weight: Tensor, options: dict[str, Any]
) -> dict[str, Any]:
    """The same without a loss."""
    metrics = pig.MetricAccumulator(**options)
    for offset in (0, 1):
        rows = logits[:, offset : offset + options["num_classes"]]
        metrics.update(rows, target, weight=weight)
    return metrics.compute()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loss_from_the_logits_in_every_layout(dtype: torch.dtype, everything: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    for rows, classes, layout in ((600, 3, "thread"), (40, 333, "warp"), (7, 2055, "block")):
        logits = (torch.randn(rows, classes + 1, generator=generator) * 5).to(dtype)
        logits[0] = 0
        logits[1, 1::2] = -math.inf
        logits[2, -2] = 200
        logits[3] -= 300
        logits[4, 0] = math.nan
        target = torch.randint(-1, classes + 1, (rows,), generator=generator)
        target[:6] = torch.tensor([0, 0, 1, 2, 1, 1])
        weight = torch.randint(0, 9, (rows,), generator=generator) / 8
        options: dict[str, Any] = {"topk": (1, 2), "num_classes": classes}
        if everything:
            class_weight = torch.rand(classes, generator=generator)
            options |= {"label_smoothing": 0.1, "class_weight": class_weight, "confusion": True}

        wanted = computed(scored(logits, target, weight, options), 1e-5)
        with emulated_gpu(2) as gpu:
            got = scored(logits, target, weight, options)
            name = f"pig_metric_cross_entropy_{str(dtype).removeprefix('torch.')}_{layout}"
            assert [launch.kernel for launch in gpu.launches()] == [name] * 2
        assert_same(got, wanted)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [2_049, 18_003])
def test_rows_of_which_the_next_is_under_way(classes: int, dtype: torch.dtype, blocks: int) -> None:
    """Whole stages and parts of one, rows that begin at any address, and rows that are not read."""
    generator = torch.Generator().manual_seed(blocks)
    rows = 11
    logits = (torch.randn(rows, classes, generator=generator) * 3).to(dtype)
    target = torch.randint(classes, (rows,), generator=generator)
    target[1] = -100
    target[2:5] = torch.tensor([0, classes - 1, classes // 2])
    logits[4, classes // 2] = math.nan  # nothing of the row is added
    logits[5, -1] = 60
    target[6] = classes
    logits[7, 5] = -math.inf
    weight = torch.randint(1, 9, (rows,), generator=generator) / 8

    def added() -> list[dict[str, Any]]:
        ranked = pig.MetricAccumulator(topk=(1, 5, 100))
        ranked.update(logits, target, weight, weight)
        scores = pig.MetricAccumulator(topk=(1, 5), num_classes=classes)
        scores.update(logits, target, weight=weight)
        return [ranked.compute(), computed(scores.compute(), 1e-5)]

    wanted = added()
    with emulated_gpu(blocks) as gpu:
        got = added()
        kernels = [launch.kernel for launch in gpu.launches()]
    assert all(kernel.endswith("_block") for kernel in kernels)
    for each, other in zip(got, wanted, strict=True):
        assert_same(each, other)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(("kernel", "make", "add"), element_updates.CASES)
def test_updates_without_logits_against_the_cpu(
    kernel: str, make: Any, add: Any, blocks: int
) -> None:
    for seed in range(4):
        wanted = add(make(), seed, "cpu")
        with emulated_gpu(blocks) as gpu:
            metrics = make()
            got = add(metrics, seed, "cpu")
            assert metrics.reference_updates == 0
            kernels = {launch.kernel for launch in gpu.launches()}
            assert kernels - {"pig_metric_scalar"} == {f"pig_metric_{kernel}"}
            reading = metrics.latest()
            assert reading is not None
            assert_same(reading.values, {name: wanted[name] for name in reading.values})
        assert_same(got, wanted)


def test_the_kernel_finds_a_number_behind_padding() -> None:
    for rows, begin in ((900, 500), (6_000, 5_500)):
        target = 1e8 + torch.arange(rows, dtype=torch.float64) % 5
        weight = (torch.arange(rows) >= begin).double()
        with emulated_gpu(2) as gpu:
            metrics = pig.MetricAccumulator()
            metrics.update_scalar("target", target, weight)
            values = metrics.compute()
            assert len(gpu.launches()) == 1
        assert values["target_std"] == pytest.approx(2**0.5, rel=1e-7)
