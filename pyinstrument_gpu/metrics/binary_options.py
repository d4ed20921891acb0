# SPDX-License-Identifier: Apache-2.0
"""What a BinaryAccumulator is made with, and whether tensors fit it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pyinstrument_gpu.metrics.accumulator_options import (
    AccumulatorOptions,
    check_alike,
    check_ema,
)
from pyinstrument_gpu.metrics.state import CALIBRATION_SUMS, STATE_DTYPE

LOGIT_RANGE = 16
"""Bins reach from minus this to this; the outer ones take what lies beyond."""
_MAX_LABELS = 1 << 16
_MAX_BINS = 1 << 16
_MAX_BINS_OF_ALL = 1 << 26
"""A gigabyte."""
_COUNTS, _SIDES = 4, 2


@dataclass(frozen=True)
class BinaryOptions(AccumulatorOptions):
    """Checked arguments of `BinaryAccumulator`, which describes them."""

    task: ClassVar[str] = "binary"

    num_labels: int | None = None
    threshold: float = 0.5
    bins: int = 1024
    from_logits: bool = True
    ignore_index: int = -100
    calibration_bins: int = 15
    ema: float | None = None

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("num_labels", self.num_labels, 1, _MAX_LABELS),
            ("bins", self.bins, 1, _MAX_BINS),
            ("calibration_bins", self.calibration_bins, 0, _MAX_BINS),
        ):
            if value is None and name == "num_labels":
                continue
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be an int from {least} to {most}, got {value!r}")
        if (self.num_labels or 1) * self.bins > _MAX_BINS_OF_ALL:
            raise ValueError(
                f"num_labels * bins must be at most {_MAX_BINS_OF_ALL}, "
                f"got {self.num_labels} * {self.bins}"
            )
        if not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be a probability, 0 to 1, got {self.threshold!r}")
        if type(self.ignore_index) is not int or abs(self.ignore_index) > 2**53:
            raise ValueError(
                f"ignore_index must be an int of at most 2**53, got {self.ignore_index!r}"
            )
        check_ema(self.ema)

    @property
    def score_threshold(self) -> float:
        """The threshold in terms of what `update` gets."""
        if not self.from_logits:
            return float(self.threshold)
        if self.threshold in (0, 1):
            return math.inf if self.threshold else -math.inf
        return math.log(self.threshold / (1 - self.threshold))

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Of the parts of the tail, in float64."""
        labels = self.num_labels or 1
        return (
            CALIBRATION_SUMS * self.calibration_bins,
            _COUNTS * labels,
            _SIDES * labels * self.bins,
        )

    @property
    def state_bytes(self) -> int:
        return STATE_DTYPE.itemsize + 8 * sum(self._sizes)

    def parts_of(self, tail: Any) -> tuple[Any, Any, Any]:
        """What lies behind the state, a tensor or an array, as (calibration bins, 3): weight, sum
        of probabilities, weight of true labels; (labels, 4): true positives, false positives, false
        and true negatives; and (labels, bins, 2): false and true labels. `csrc/metrics/
        binary_totals.h` has the same layout."""
        calibration, counts, histograms = self._sizes
        return (
            tail[:calibration].reshape(self.calibration_bins, CALIBRATION_SUMS),
            tail[calibration : calibration + counts].reshape(-1, _COUNTS),
            tail[calibration + counts :][:histograms].reshape(-1, self.bins, _SIDES),
        )

    def native_arguments(self) -> dict[str, Any]:
        given = super().native_arguments()
        labels = given.pop("num_labels") or 0
        return {**given, "labels": labels, "threshold": self.score_threshold}

    def check(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Raise TypeError or ValueError unless the tensors fit each other and the options."""
        if self.num_labels is None:
            check_alike({"logits": logits, "target": target, "weight": weight})
        else:
            check_alike({"logits": logits, "target": target})
            if logits.ndim == 0 or logits.shape[-1] != self.num_labels:
                raise ValueError(
                    f"logits must have {self.num_labels} labels in the last dimension "
                    f"(num_labels), got shape {tuple(logits.shape)}"
                )
            if weight is not None:
                check_alike({"logits[..., 0]": logits[..., 0], "weight": weight})
        if not logits.is_floating_point():
            raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}")
