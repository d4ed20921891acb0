# SPDX-License-Identifier: Apache-2.0
"""A warning of a MetricAccumulator names the line of the program, however deep it comes from."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")

LOGITS, TARGET = torch.eye(4), torch.arange(4)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def line_of_warning(call: Callable[[], Any]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [
        each for each in caught if "metrics" in str(each.message) or "left" in str(each.message)
    ]
    assert [each.filename for each in ours] == [__file__]
    return ours[0].lineno


def line_of(function: Callable[..., Any], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def full() -> pig.MetricAccumulator:
    metrics = pig.MetricAccumulator()
    for number in range(32):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metrics.update_scalar(f"x{number}", 1.0)
    return metrics


@pytest.mark.parametrize("value", [1.0, torch.tensor(1.0)])
def test_update_scalar(value: Any) -> None:
    metrics = full()

    def call() -> None:
        metrics.update_scalar("one too many", value)

    assert line_of_warning(call) == line_of(call, 1)


def test_update() -> None:
    metrics = pig.MetricAccumulator()
    metrics.update(LOGITS, TARGET)

    def call(logits: Any) -> Any:
        metrics.update(logits, TARGET)  # there are no numbers to add inside vmap
        return logits

    assert line_of_warning(lambda: torch.vmap(call)(LOGITS[None])) == line_of(call, 1)


def test_in_a_compiled_function() -> None:
    metrics = full()

    def call(x: Any) -> Any:
        y = x * 2
        metrics.update_scalar("one too many", y.sum())
        return y

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    line = line_of_warning(lambda: compiled(torch.ones(3)))
    assert line in range(line_of(call, 0), line_of(call, 4))
