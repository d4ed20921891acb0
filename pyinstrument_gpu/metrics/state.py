# SPDX-License-Identifier: Apache-2.0
"""The state of a MetricAccumulator, and how it lies in its tensor.

`State` and `Scalar` list its words of 8 bytes as `csrc/metrics/metric_state.h` does, in its order;
a test compares the two. All that reads or writes the tensor takes its offsets from here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TOPK = 8
MAX_SCALARS = 16


@dataclass(slots=True)
class Scalar:
    """A running value. `count`, `sum`, `min` and `max` are of its finite values."""

    count: int
    nonfinite: int
    sum: float
    min: float
    max: float
    last: float


@dataclass(slots=True)
class State:
    """A state that was read back. From `count` on all is zero after a reset.

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
    def of(cls, data: bytes | memoryview, classes: int, scalars: int) -> State:
        """The state in these bytes, with so many classes in its confusion matrix (0: none) and so
        many running values in use."""
        # By struct, not by numpy: a loop may read its metrics in every step.
        head = _HEAD.unpack_from(data)
        values = [
            Scalar(*_SCALAR.unpack_from(data, _HEAD.size + slot * _SCALAR.size))
            for slot in range(scalars)
        ]
        confusion = None
        if classes:
            offset = STATE_DTYPE.itemsize
            confusion = np.frombuffer(data, np.float64, classes * classes, offset)
            confusion = confusion.reshape(classes, classes)
        words: list[Any] = [*head[:-MAX_TOPK], head[-MAX_TOPK:], tuple(values), confusion]
        return cls(*words)


_DTYPES = {"int": "<u8", "float": "<f8"}

SCALAR_DTYPE = np.dtype([(each.name, _DTYPES[str(each.type)]) for each in fields(Scalar)])
STATE_DTYPE = np.dtype(
    [
        *((each.name, _DTYPES[str(each.type)]) for each in fields(State)[:-3]),
        ("correct", "<f8", (MAX_TOPK,)),
        ("scalars", SCALAR_DTYPE, (MAX_SCALARS,)),
    ]
)
"""The state without its confusion matrix, which follows as float64, one row per target class."""


def word(field: str, dtype: np.dtype[np.void] = STATE_DTYPE) -> int:
    """The index of a field of the state, in words of 8 bytes."""
    known = dtype.fields
    assert known is not None
    return int(known[field][1]) // 8


RESET_OFFSET = 8 * word("count")
"""The bytes before it live through a reset."""

_CODES = {"int": "Q", "float": "d"}
_HEAD = struct.Struct(
    "<" + "".join(_CODES[str(each.type)] for each in fields(State)[:-3]) + f"{MAX_TOPK}d"
)
_SCALAR = struct.Struct("<" + "".join(_CODES[str(each.type)] for each in fields(Scalar)))
