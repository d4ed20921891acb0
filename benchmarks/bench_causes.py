# SPDX-License-Identifier: Apache-2.0
"""What it costs to note what may make steps slow: a collection, a time, a sum. Of a step of 5 ms,
0.1 % is 5 us. What is read of processors has a budget of its own (`RunQueueWaits::kBudget`)."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native

pytestmark = pytest.mark.usefixtures("one_core")

GENERATION = {"generation": 0, "collected": 0, "uncollectable": 0}


@pytest.fixture(autouse=True)
def _recording() -> Iterator[None]:
    gc.disable()
    with pig.record():
        yield
    gc.enable()


def test_a_collection(benchmark: BenchmarkFixture) -> None:
    """Both calls that Python makes, in a step."""

    def collection() -> None:
        native.on_collection("start", GENERATION)
        native.on_collection("stop", GENERATION)

    with pig.gpu_step():
        benchmark(collection)


def test_a_time_that_python_tells(benchmark: BenchmarkFixture) -> None:
    benchmark(native.add_cause, 1, 5, 6)


def test_a_sum_of_a_step(benchmark: BenchmarkFixture) -> None:
    with pig.gpu_step():
        benchmark(native.add_cause_to_step, 1, 5)
