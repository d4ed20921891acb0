# SPDX-License-Identifier: Apache-2.0
"""What the options of all accumulators have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.state import STATE_DTYPE


class AccumulatorOptions(ABC):
    """Checked arguments of an accumulator. Subclasses are frozen dataclasses, whose fields are the
    arguments.

    Attributes:
        task: what it is for, as native code calls it.
        own_scalars: running values that the accumulator's own updates add to, in the first slots.
        ema: the share of a moving average that remains at an update; None where there are none.
    """

    task: ClassVar[str]
    own_scalars: ClassVar[tuple[str, ...]] = ()
    ema: float | None

    @property
    def confusion_classes(self) -> int:
        """Number of classes of the confusion matrix; 0 when there is none."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Of the state with its tails."""
        return STATE_DTYPE.itemsize

    def class_weight_on(self, device: torch.device) -> Tensor | None:
        """The weights of the classes on a device, float64; None where all are 1."""
        return None

    @abstractmethod
    def native_arguments(self) -> dict[str, Any]:
        """Those of `_C.MetricAccumulator`, besides the task."""


def check_ema(ema: Any) -> None:
    """Raise ValueError unless it is a share that may remain of a moving average."""
    if ema is not None and not (isinstance(ema, (int, float)) and 0 < ema < 1):
        raise ValueError(
            f"ema must be a number between 0 and 1, such as 0.98, or None, got {ema!r}"
        )
