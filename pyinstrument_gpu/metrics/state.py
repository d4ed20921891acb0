# SPDX-License-Identifier: Apache-2.0
"""The state of an accumulator, and how it lies in its tensor.

Its words of 8 bytes are those of `state_fields.h`, of which the C++ structs are made as well. All
that reads or writes the tensor takes its offsets from here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_TEXT = files(__package__).joinpath("state_fields.h").read_text(encoding="utf-8")
_LIMITS = {
    name: int(value) for name, value in re.findall(r"^PIG_LIMIT\((\w+), (\d+)\)", _TEXT, re.M)
}
MAX_TOPK = _LIMITS["kMaxTopk"]
MAX_SCALARS = _LIMITS["kMaxScalars"]


class Merge(NamedTuple):
    """How the values of a field become one, and the fields of which one is not 0 where there is a
    value; none of them where there always is one."""

    rule: str
    known_by: tuple[str, ...]


def _fields(macros: str, **types: Any) -> tuple[np.dtype[np.void], dict[str, Merge]]:
    """Those of the struct whose fields stand in the list as `macro(type, name, merge)`."""
    types = {"U64": "<u8", "double": "<f8", **types}
    line = rf"^PIG_(?:{macros})\((\w+)(?:\[(\w+)\])?, (\w+), (\w+)(?:\(([\w, ]+)\))?\)"
    words, merges = [], {}
    for kind, count, name, rule, known_by in re.findall(line, _TEXT, re.M):
        words.append((name, types[kind], (_LIMITS[count],)) if count else (name, types[kind]))
        merges[name] = Merge(rule, tuple(re.findall(r"\w+", known_by)))
    return np.dtype(words), merges


SCALAR_DTYPE, SCALAR_MERGES = _fields("SCALAR")
STATE_DTYPE, STATE_MERGES = _fields("STATE|ROWS", Scalar=SCALAR_DTYPE)
"""The state without its tails, which follow as float64; the confusion matrix, one row per target
class, is the last of them."""

FIELDS = " ".join((*(STATE_DTYPE.names or ()), *(SCALAR_DTYPE.names or ())))
"""What the words of a state mean. Another version of this package may have others."""


CALIBRATION_SUMS = 3
"""Of the rows whose greatest probability lies in a bin: their weight, the weighted sum of those
probabilities, and the weight of the rows that were predicted correctly."""


class RunningValue(SimpleNamespace):
    """A running value that was read back. Its attributes are the fields of the list."""


class MetricState(SimpleNamespace):
    """A state that was read back. Its attributes are the fields of the list.

    Attributes:
        correct, correct_weight: tuples.
        scalars: a tuple of the running values that are in use.
        confusion: float64, rows are targets; None when there is none.
        tail: all that follows the state, as far as it was read.
    """

    correct: tuple[float, ...]
    correct_weight: tuple[float, ...]
    scalars: tuple[RunningValue, ...]
    confusion: NDArray[np.float64] | None
    tail: NDArray[np.float64]

    @property
    def counts(self) -> list[int]:
        """How many updates there were, and how many of each running value."""
        numbers = [scalar.updates for scalar in self.scalars]
        return [self.updates, *numbers, *[0] * (MAX_SCALARS - len(numbers))]

    @classmethod
    def of(cls, data: bytes | memoryview, classes: int, scalars: int) -> MetricState:
        """The state in these bytes, with so many classes in its confusion matrix (0: none) and so
        many running values in use."""
        # By struct, not by numpy: a loop may read its metrics in every step.
        state = cls(**_HEAD.unpack(data, 0))
        state.scalars = tuple(
            RunningValue(**_SCALAR.unpack(data, _HEAD.size + slot * _SCALAR.size))
            for slot in range(scalars)
        )
        state.confusion = None
        state.tail = np.frombuffer(data, np.float64, offset=STATE_DTYPE.itemsize)
        if classes:
            state.confusion = state.tail[-classes * classes :].reshape(classes, classes)
        return state


class _Words:
    """Fields that lie one after the other, as Python's numbers by their names."""

    def __init__(self, dtype: np.dtype[np.void], names: Sequence[str]) -> None:
        code, begin = "", 0
        self._names: list[str] = []  # of single words, which come first
        self._arrays: list[tuple[str, slice]] = []
        for name in names:
            field = dtype[name]
            count = field.shape[0] if field.shape else 1
            code += f"{count}{'Q' if field.base.kind == 'u' else 'd'}"
            if field.shape:
                self._arrays.append((name, slice(begin, begin + count)))
            else:
                assert not self._arrays, f"{name} comes after arrays"
                self._names.append(name)
            begin += count
        self._struct = struct.Struct("<" + code)
        self.size = self._struct.size

    def unpack(self, data: bytes | memoryview, offset: int) -> dict[str, Any]:
        words = self._struct.unpack_from(data, offset)
        fields: dict[str, Any] = dict(zip(self._names, words, strict=False))
        for name, part in self._arrays:
            fields[name] = words[part]
        return fields


def word(field: str, dtype: np.dtype[np.void] = STATE_DTYPE) -> int:
    """The index of a field of the state, in words of 8 bytes."""
    known = dtype.fields
    assert known is not None
    return int(known[field][1]) // 8


RESET_OFFSET = 8 * word("count")
"""The bytes before it live through a reset."""

_SCALAR = _Words(SCALAR_DTYPE, SCALAR_DTYPE.names or ())
_HEAD = _Words(STATE_DTYPE, [each for each in STATE_DTYPE.names or () if each != "scalars"])
assert _HEAD.size == 8 * word("scalars"), "the running values are the last"
