# SPDX-License-Identifier: Apache-2.0
"""A case: a training script, an edit that guides recommend, and what it is said to save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.cases import prediction
from examples.cases.prediction import Prediction
from pyinstrument_gpu.core.run import Run

SIDES = ("before", "after")


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        name: that of its folder here, which holds `before.py` and `after.py`.
        edit: what is changed.
        claimed: what the edit is usually said to save.
        predict: what it will save, told from a run without it.
    """

    name: str
    edit: str
    claimed: str
    predict: Callable[[Run], Prediction]

    def script(self, side: str) -> Path:
        return Path(__file__).parent / self.name / f"{side}.py"

    def module(self, side: str) -> str:
        return f"examples.cases.{self.name}.{side}"


CASES = (
    Case(
        "item_and_log",
        "read and log the loss every 50 batches, not twice per batch",
        "5-10 % for not calling `.item()` twice, 1-2 % for less logging",
        lambda run: prediction.without_reads(run) + prediction.without_work_outside_phases(run),
    ),
    Case(
        "validation_copies",
        "in validation, copy from pinned memory with `non_blocking`",
        "3-5 % for `non_blocking`",
        prediction.without_copies_in_evaluation,
    ),
    Case(
        "hidden_states",
        "make the first hidden state once, on the device",
        "2-4 % for preallocated states",
        lambda run: prediction.without_copies(run) + prediction.without_work_outside_phases(run),
    ),
    Case(
        "evaluation",
        "evaluate every 200 steps, not every 100",
        '"evaluate less often", without a number',
        prediction.with_half_the_evaluations,
    ),
    Case(
        "workers",
        "4 loader workers, not 2",
        "no number",
        prediction.with_more_workers,
    ),
    Case(
        "metrics",
        "`MetricAccumulator`, not torchmetrics and `.item()` in each batch",
        "no number",
        lambda run: prediction.without_reads(run) + prediction.without_work_outside_phases(run),
    ),
)
