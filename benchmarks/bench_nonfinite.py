# SPDX-License-Identifier: Apache-2.0
"""What looking for the first value that is not finite makes of a training step's time: with all
modules checked in each step, and in as many as by default, beside the same steps without."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from benchmarks.effort import size
from benchmarks.gpu.figure import Figure
from benchmarks.interleave import interleaved, relative_difference

torch = pytest.importorskip("torch")

from benchmarks.models import Training, gpt_block, residual_cnn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_core")

STEPS, WARM_UPS = size(100, 2), 3
"""By default one of 100 steps is checked, so one of those that are timed."""
ROUNDS, SECONDS = 20, 25.0
UNCHECKED, AGAIN = "not checked", "not checked, once more: the floor"
ARMS: dict[str, bool | int] = {
    UNCHECKED: False,
    "--nonfinite=1": 1,
    "--nonfinite": True,
    AGAIN: False,
}


@pytest.mark.parametrize("make", [gpt_block, residual_cnn])
def test_nonfinite(benchmark: BenchmarkFixture, make: Callable[[], Training]) -> None:
    torch.set_num_threads(1)
    training = make()
    arms = {name: partial(_step_ns, training, every) for name, every in ARMS.items()}
    found: list[Figure] = []

    def measure() -> None:
        times_ns = interleaved(arms, rounds=ROUNDS, seconds=SECONDS)
        step_ns = float(np.median(times_ns[UNCHECKED]))
        rounds = f"{len(times_ns[UNCHECKED])} rounds of {STEPS} steps"
        found.append(Figure(UNCHECKED, step_ns / 1e3, "us", note=rounds))
        for name in list(ARMS)[1:]:
            more = relative_difference(times_ns[UNCHECKED], times_ns[name])
            found.append(Figure(name, 100 * more.value, "%", 100 * more.low, 100 * more.high))

    benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    benchmark.extra_info["title"] = f"the first value that is not finite, {make.__name__}"
    benchmark.extra_info["figures"] = [figure.to_dict() for figure in found]
    benchmark.extra_info["missing"] = {}


def _step_ns(training: Training, every: bool | int) -> float:
    """CPU time of the whole process per step of a recording."""
    parts = list(training.parts.values())
    with pig.record(nonfinite=every):
        began_ns = 0
        for step in range(-WARM_UPS, STEPS):
            if step == 0:
                began_ns = time.process_time_ns()
            with pig.gpu_step():
                for part in parts:
                    part()
        return (time.process_time_ns() - began_ns) / STEPS
