# SPDX-License-Identifier: Apache-2.0
"""What a RegressionAccumulator is made with, and whether tensors fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyinstrument_gpu.metrics.accumulator_options import (
    AccumulatorOptions,
    check_alike,
    check_ema,
)


@dataclass(frozen=True)
class RegressionOptions(AccumulatorOptions):
    """Checked arguments of `RegressionAccumulator`, which describes them."""

    task: ClassVar[str] = "regression"
    own_scalars: ClassVar[tuple[str, ...]] = ("(squared error)", "(absolute error)", "(target)")

    ema: float | None = None

    def __post_init__(self) -> None:
        check_ema(self.ema)

    def check(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Raise TypeError or ValueError unless the tensors fit each other."""
        check_alike({"prediction": prediction, "target": target, "weight": weight})
