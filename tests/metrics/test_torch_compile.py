# SPDX-License-Identifier: Apache-2.0
"""MetricAccumulator.update inside torch.compile: no graph break, and the same values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same
from tests.helpers.script import run_script

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batches(count: int) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(8, 6, generator=generator),
            torch.randint(-1, 5, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def test_forward_loss_and_update_in_one_graph() -> None:
    model = torch.nn.Linear(6, 5)
    metrics = pig.MetricAccumulator(topk=(1, 2), num_classes=5, confusion=True, ignore_index=-1)
    plain = pig.MetricAccumulator(topk=(1, 2), num_classes=5, confusion=True, ignore_index=-1)

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y, ignore_index=-1)
        metrics.update(logits, y, loss)
        return logits, loss

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for x, y in batches(5):
        logits, loss = compiled(x, y)
        loss.backward()
        plain.update(logits, y, loss)

    assert_same(metrics.compute(), plain.compute())
    reading = metrics.latest()
    assert reading is not None and reading.update == 5


def test_with_weights_and_without_a_loss() -> None:
    metrics = pig.MetricAccumulator(topk=1)

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def evaluate(logits: Any, target: Any, weight: Any) -> Any:
        metrics.update(logits * 2, target, weight=weight)
        return logits.sum()

    for _ in range(3):
        evaluate(torch.eye(3), torch.tensor([0, 1, 0]), torch.tensor([1.0, 2.0, 5.0]))

    values = metrics.compute()
    assert (values["count"], values["accuracy@1"]) == (9, 3 / 8)
    right, wrong = math.log(1 + 2 * math.exp(-2)), math.log(2 + math.exp(2))
    assert values["loss"] == pytest.approx((3 * right + 5 * wrong) / 8, rel=1e-6)


def test_a_new_accumulator_is_compiled_for_once_more_at_most() -> None:
    compilations = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    @torch.compile(backend=count, fullgraph=True)  # type: ignore[untyped-decorator]
    def evaluate(logits: Any, target: Any, metrics: pig.MetricAccumulator) -> Any:
        metrics.update(logits * 1, target)
        metrics.update_scalar("largest", logits.max())
        return logits.sum()

    for _ in range(4):
        metrics = pig.MetricAccumulator(topk=1)
        for _ in range(2):
            evaluate(torch.eye(3), torch.tensor([0, 1, 0]), metrics)
        assert metrics.compute()["count"] == 6
    assert compilations <= 2


def test_running_values_in_one_graph() -> None:
    metrics = pig.MetricAccumulator(topk=1)

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        metrics.update_scalar("norm", x.norm())
        metrics.update_scalar("lr", 0.5)
        metrics.update(x, torch.zeros(3, dtype=torch.int64))
        metrics.update_scalar("norm", x.norm() * 3)
        return x * 2

    for _ in range(3):
        step(torch.tensor([[4.0, 3], [0, 0], [0, 0]], requires_grad=True))
    values = metrics.compute()
    assert (values["norm_sum"], values["lr_sum"], values["count"]) == (60, 1.5, 9)


def test_updates_without_logits_in_one_graph() -> None:
    metrics = pig.MetricAccumulator(topk=1)

    def add(x: Any) -> Any:
        metrics.update_rows(loss=x[:, 0], correct=x[:, 1] > 0, mask=x[:, 0] < 4)
        metrics.update_scalar("x", x, x > 0)
        return x * 2

    x = torch.tensor([[4.0, 3.0], [2.0, -5.0], [-1.0, 1.0]], requires_grad=True)
    compiled = torch.compile(add, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(x)
    got = metrics.compute()
    metrics.reset()
    for _ in range(2):
        add(x)
    assert_same(got, metrics.compute())
    assert (got["count"], got["x_sum"]) == (4, 20)


@pytest.mark.parametrize("is_given", [False, True])
def test_operators_are_what_they_say(is_given: bool) -> None:
    ones, weight = torch.ones(3), torch.ones(3) if is_given else None
    loss = torch.tensor(1.0) if is_given else None
    logits, target = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int32)
    of_logits = pig.MetricAccumulator(topk=1, class_dim=-1)
    for metrics, operator, arguments in (
        (of_logits, "update", (logits, target, loss, None)),
        (of_logits, "update_scalar", (ones, weight, "norm")),
        (pig.MetricAccumulator(), "update_rows", (ones, weight, None, None, weight, None)),
    ):
        torch.library.opcheck(
            getattr(torch.ops.pyinstrument_gpu, f"metric_{operator}").default,
            (metrics._state.clone(), *arguments, metrics._number),
        )


@pytest.mark.parametrize("kind", [float, int, np.float32])
def test_a_loss_that_is_a_number(kind: type[Any]) -> None:
    metrics = pig.MetricAccumulator()

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def step(x: Any, loss: Any) -> Any:
        metrics.update(x, torch.arange(3), loss)
        return x * 2

    for number in range(3):
        step(torch.eye(3), kind(number))
    assert metrics.compute()["loss"] == 1


@pytest.mark.parametrize("method", ["latest", "compute", "reset", "window", "state_dict"])
def test_what_is_no_part_of_a_graph_says_so(method: str) -> None:
    metrics = pig.MetricAccumulator()

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        getattr(metrics, method)()
        return x + 1

    with pytest.raises(Exception, match="can be updated in compiled code, but not read"):
        step(torch.ones(2))


def test_readings_where_a_graph_breaks() -> None:
    metrics = pig.MetricAccumulator(num_classes=20, confusion=True)
    window = metrics.window()

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        metrics.update(x, torch.arange(3))
        readings = metrics.latest(), window.latest()
        counts = [metrics.compute()["count"], *(each.values["count"] for each in readings if each)]
        if counts[0] == 6:
            metrics.reset()
        return x + 1, counts

    assert [step(torch.zeros(3, 20))[1] for _ in range(3)] == [[3, 3, 3], [6, 6, 3], [3, 3, 3]]


@pytest.mark.slow
def test_inductor() -> None:
    script = """
import torch
import pyinstrument_gpu as pig

metrics = pig.MetricAccumulator(topk=1)
model = torch.nn.Linear(6, 5)

@torch.compile(fullgraph=True)
def step(x, y):
    logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits, y)
    metrics.update(logits, y, loss)
    return loss

plain = pig.MetricAccumulator(topk=1)
for seed in range(4):
    torch.manual_seed(seed)
    x, y = torch.randn(16, 6), torch.randint(5, (16,))
    loss = step(x, y)
    logits = model(x)
    plain.update(logits, y, torch.nn.functional.cross_entropy(logits, y))
got, wanted = metrics.compute(), plain.compute()
assert got["count"] == 64 and got["accuracy@1"] == wanted["accuracy@1"], (got, wanted)
assert abs(got["loss"] - wanted["loss"]) < 1e-5, (got, wanted)
"""
    run_script(script, is_fresh=True)


def test_neither_dynamo_nor_cuda_is_started() -> None:
    # In a process that has not imported Dynamo, as far as imports can tell.
    script = """
import sys
import torch
import pyinstrument_gpu as pig

for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
    del sys.modules[name]
vars(torch).pop("_dynamo", None)

metrics = pig.MetricAccumulator()
metrics.update(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))
metrics.compute()
assert "torch._dynamo" not in sys.modules
assert not torch.cuda.is_initialized()
"""
    run_script(script)
