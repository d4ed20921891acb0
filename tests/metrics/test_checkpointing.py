# SPDX-License-Identifier: Apache-2.0
"""Updates inside torch.utils.checkpoint: once in the forward pass, not in the recomputation."""

from __future__ import annotations

from typing import Any

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

TARGET = torch.arange(4) % 3


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputation_adds_nothing(use_reentrant: bool, nested: bool) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    model = torch.nn.Linear(5, 3)
    runs = 0

    def block(x: Any) -> Any:
        nonlocal runs
        runs += 1
        logits = model(x)
        metrics.update(logits, TARGET)
        metrics.update_scalar("largest", logits.detach().max())
        return logits.exp().sin()

    def outer(x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=use_reentrant)

    for _ in range(2):
        x = torch.ones(4, 5, requires_grad=True)
        checkpoint(outer if nested else block, x, use_reentrant=use_reentrant).sum().backward()

    assert runs >= 4
    reading = metrics.latest()
    assert reading is not None
    assert (reading.update, reading.values["count"]) == (2, 8)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputation_adds_no_rows(use_reentrant: bool) -> None:
    metrics = pig.MetricAccumulator(topk=1)

    def block(x: Any) -> Any:
        metrics.update_rows(loss=x[:, 0])
        return x.exp().sin()

    x = torch.ones(4, 5, requires_grad=True)
    checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()

    assert metrics.compute()["count"] == 4


@pytest.mark.parametrize(("is_compiled_whole", "backend"), [(False, "aot_eager"), (True, "eager")])
def test_a_recomputation_of_compiled_code_adds_nothing(
    is_compiled_whole: bool, backend: str
) -> None:
    torch._dynamo.reset()
    metrics = pig.MetricAccumulator(topk=1)
    model = torch.nn.Linear(5, 3)

    def block(x: Any) -> Any:
        logits = model(x)
        metrics.update(logits, TARGET)
        metrics.update_scalar("largest", logits.max())
        return logits.exp().sin()

    def step(x: Any) -> Any:
        return checkpoint(inner, x, use_reentrant=False)

    compiled = torch.compile(step if is_compiled_whole else block, backend=backend, fullgraph=True)
    inner, outer = (block, compiled) if is_compiled_whole else (compiled, step)
    for _ in range(2):
        outer(torch.ones(4, 5, requires_grad=True)).sum().backward()

    values = metrics.compute()
    assert (values["count"], values["largest_weight"]) == (8, 2)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_hook_of_the_backward_pass_adds(use_reentrant: bool) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    weight = torch.ones(3, 3, requires_grad=True)
    weight.register_hook(lambda gradient: metrics.update_scalar("norm", gradient.norm()))
    weight.register_hook(lambda gradient: metrics.update(gradient, torch.arange(3)))
    x = torch.ones(2, 3, requires_grad=True)

    checkpoint(lambda x: (x @ weight).exp(), x, use_reentrant=use_reentrant).sum().backward()

    values = metrics.compute()
    assert values["count"] == 3
    assert values["norm"] == values["norm_last"] > 0
