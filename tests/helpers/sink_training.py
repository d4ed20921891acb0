# SPDX-License-Identifier: Apache-2.0
"""A training whose points of curves are known, for the sinks that show values by step."""

from collections.abc import Callable

import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps

STEP_ENDS_NS = (100_000_000, 150_000_000, 250_000_000, 251_000_000)

Curves = dict[str, dict[int, float]]

CURVES: Curves = {
    "step/time_ms": {0: 100.0, 1: 50.0, 2: 100.0, 3: 1.0},
    "step/samples_per_s": {0: 80.0, 1: 160.0, 2: 80.0},
    "phase/data": dict.fromkeys(range(3), 0.0),
    "phase/forward": dict.fromkeys(range(3), 1.750001),
    "phase/forward/attention": dict.fromkeys(range(3), 0.25),
    "phase/evaluate": {3: 1.0},
}
"""Values by step, apart from those of metrics."""

LOSSES = {0: 1.0, 1: 1.5, 2: 7 / 3}
"""`metrics/loss` by step. That of step 2 comes too soon after another one to be read, and is late:
it is read at the end."""


def train(tick: Callable[[int], None]) -> pig.MetricAccumulator:
    """Three steps of 8 samples with a loss each, and one that evaluates. The accumulator has to
    live until the end, when it is read."""
    accumulator = pig.MetricAccumulator()
    logits, target = torch.eye(4), torch.tensor([0, 1, 2, 0])
    for number in gpu_steps(range(3), samples=8):
        with gpu_phase("forward"):
            tick(1_500_001)
            with gpu_phase("attention"):
                tick(250_000)
        accumulator.update(logits, target, torch.tensor(2.0**number))
        tick(48_249_999 if number == 1 else 98_249_999)
    with gpu_step(), gpu_phase("evaluate"):
        tick(1_000_000)
    return accumulator


def metric_curves(run: pig.Run) -> Curves:
    """The metrics of a run by step, as all such sinks have them."""
    curves: Curves = {}
    for row in run.metrics:
        assert row["step"] >= 0
        name = f"metrics/{run.metric_names[int(row['name'])]}"
        curves.setdefault(name, {})[int(row["step"])] = float(row["value"])
    return curves
