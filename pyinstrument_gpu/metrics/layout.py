# SPDX-License-Identifier: Apache-2.0
"""How a MetricAccumulator's state lies in its tensor: as `csrc/metrics/metric_state.h` says."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TOPK = 8
MAX_SCALARS = 16

SCALAR_DTYPE = np.dtype(
    [
        ("count", "<u8"),
        ("nonfinite", "<u8"),
        ("sum", "<f8"),
        ("min", "<f8"),
        ("max", "<f8"),
        ("last", "<f8"),
    ]
)
"""A running value. `count`, `sum`, `min` and `max` are of its finite values."""

STATE_DTYPE = np.dtype(
    [
        ("updates", "<u8"),
        ("resets", "<u8"),
        # From here on all is zero after a reset.
        ("count", "<u8"),
        ("ignored", "<u8"),
        ("invalid", "<u8"),
        ("nonfinite_rows", "<u8"),
        ("nonfinite_losses", "<u8"),
        ("first_nonfinite_update", "<u8"),
        ("weight", "<f8"),
        ("loss_sum", "<f8"),
        ("loss_weight", "<f8"),
        ("losses", "<u8"),
        ("finite_losses", "<u8"),
        ("loss_min", "<f8"),
        ("loss_max", "<f8"),
        ("loss_last", "<f8"),
        ("correct", "<f8", (MAX_TOPK,)),
        ("scalars", SCALAR_DTYPE, (MAX_SCALARS,)),
    ]
)
"""The state without its confusion matrix, which follows as float64, one row per target class."""

RESET_OFFSET = 16
"""The bytes before it live through a reset."""


def word(field: str) -> int:
    """The index of a field of the state, in words of 8 bytes."""
    fields = STATE_DTYPE.fields
    assert fields is not None
    return int(fields[field][1]) // 8


_HEAD = struct.Struct(f"<8Q3d2Q3d{MAX_TOPK}d")
_SCALAR = struct.Struct("<2Q4d")


@dataclass(slots=True)
class Scalar:
    """A running value, as in `SCALAR_DTYPE`."""

    count: int
    nonfinite: int
    sum: float
    min: float
    max: float
    last: float


@dataclass(slots=True)
class State:
    """A state that was read back: the fields of `STATE_DTYPE`, and the confusion matrix.

    Attributes:
        scalars: of the running values that are in use.
        confusion: float64, rows are targets; None when there is none.
    """

    updates: int
    resets: int
    count: int
    ignored: int
    invalid: int
    nonfinite_rows: int
    nonfinite_losses: int
    first_nonfinite_update: int
    weight: float
    loss_sum: float
    loss_weight: float
    losses: int
    finite_losses: int
    loss_min: float
    loss_max: float
    loss_last: float
    correct: tuple[float, ...]
    scalars: tuple[Scalar, ...]
    confusion: NDArray[np.float64] | None

    @classmethod
    def of(cls, data: bytes, classes: int, scalars: int) -> State:
        """The state in these bytes.

        Args:
            data: the state's bytes.
            classes: number of classes of its confusion matrix; 0 when there is none.
            scalars: number of its running values that are in use.
        """
        # By struct, not by numpy: a loop may read its metrics in every step.
        head = _HEAD.unpack_from(data)
        begin = _HEAD.size
        values = [
            Scalar(*_SCALAR.unpack_from(data, begin + slot * _SCALAR.size))
            for slot in range(scalars)
        ]
        confusion = None
        if classes:
            offset = STATE_DTYPE.itemsize
            confusion = np.frombuffer(data, np.float64, classes * classes, offset)
            confusion = confusion.reshape(classes, classes)
        fields: list[Any] = [*head[:-MAX_TOPK], head[-MAX_TOPK:], tuple(values), confusion]
        return cls(*fields)
