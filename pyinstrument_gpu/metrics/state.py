# SPDX-License-Identifier: Apache-2.0
"""The state of an accumulator, and how it lies in its tensor.

Its words of 8 bytes are those of `state_fields.h`, of which the C++ structs are made as well. All
that reads or writes the tensor takes its offsets from here.
"""

from __future__ import annotations

import re
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
    """A way to merge the values of a field, and the fields of which one is not 0 where there is a
    value; none of them where there always is one."""

    rule: str
    known_by: tuple[str, ...]


def _fields(macros: str, **types: Any) -> tuple[np.dtype[np.void], dict[str, Merge]]:
    """Return the fields of the struct that the list has as `macro(type, name, merge)`."""
    types = {"U64": "<u8", "double": "<f8", **types}
    line = rf"^PIG_(?:{macros})\((\w+)(?:\[(\w+)\])?, (\w+), (\w+)(?:\(([\w, ]+)\))?\)"
    words, merges = [], {}
    for kind, count, name, rule, known_by in re.findall(line, _TEXT, re.M):
        words.append((name, types[kind], (_LIMITS[count],)) if count else (name, types[kind]))
        merges[name] = Merge(rule, tuple(re.findall(r"\w+", known_by)))
    return np.dtype(words), merges


SCALAR_DTYPE, SCALAR_MERGES = _fields("SCALAR")
STATE_DTYPE, STATE_MERGES = _fields("STATE|ROWS", Scalar=SCALAR_DTYPE)
"""The state without its confusion matrix, which follows as float64, one row per target class."""

_HEAD_DTYPE = np.dtype(
    [(name, STATE_DTYPE[name]) for name in STATE_DTYPE.names or () if name != "scalars"]
)
"""The state without its running values, which are the last."""

FIELDS = " ".join((*(STATE_DTYPE.names or ()), *(SCALAR_DTYPE.names or ())))
"""What the words of a state mean. Another version of this package may have others."""


class RunningValue(SimpleNamespace):
    """A running value that was read back. Its attributes are the fields of the list."""


class MetricState(SimpleNamespace):
    """A state that was read back. Its attributes are the fields of the list.

    Attributes:
        correct, correct_weight: tuples.
        scalars: a tuple of the running values that are in use.
        confusion: float64, rows are targets; None where there is none or it was not read.
    """

    correct: tuple[float, ...]
    correct_weight: tuple[float, ...]
    scalars: tuple[RunningValue, ...]
    confusion: NDArray[np.float64] | None

    @property
    def counts(self) -> list[int]:
        """The number of updates, and of each running value."""
        numbers = [scalar.updates for scalar in self.scalars]
        return [self.updates, *numbers, *[0] * (MAX_SCALARS - len(numbers))]

    @classmethod
    def of(cls, data: bytes | memoryview, classes: int, scalars: int) -> MetricState:
        """The state in these bytes, with so many classes in its confusion matrix (0: none) and so
        many running values in use."""
        words = np.frombuffer(data, _HEAD_DTYPE, 1).item(0)
        head = dict(zip(_HEAD_DTYPE.names or (), words, strict=True))
        head |= {name: tuple(head[name].tolist()) for name in ("correct", "correct_weight")}
        state = cls(**head)
        fields = SCALAR_DTYPE.names or ()
        values = np.frombuffer(data, SCALAR_DTYPE, scalars, offset=_HEAD_DTYPE.itemsize)
        state.scalars = tuple(
            RunningValue(**dict(zip(fields, each, strict=True))) for each in values.tolist()
        )
        state.confusion = None
        if classes:
            matrix = np.frombuffer(data, np.float64, offset=STATE_DTYPE.itemsize)
            state.confusion = matrix.reshape(classes, classes)
        return state


def word(field: str, dtype: np.dtype[np.void] = STATE_DTYPE) -> int:
    """The index of a field of the state, in words of 8 bytes."""
    known = dtype.fields
    assert known is not None
    return int(known[field][1]) // 8


assert _HEAD_DTYPE.itemsize == 8 * word("scalars")
RESET_OFFSET = 8 * word("count")
"""The bytes before it live through a reset."""

_MERGES = {**STATE_MERGES, **SCALAR_MERGES}
_KEPT = frozenset(
    {name for name, merge in _MERGES.items() if merge.rule != "sum"}.union(
        *(merge.known_by for merge in _MERGES.values() if merge.rule == "average")
    )
)
"""These can't be subtracted, or describe the present: the others are sums."""

_NOT_CLEARED = frozenset({"updates", "resets", "scalars", "confusion"})

_ROUNDING = 1e-14
"""What is left of a difference of this share is rounding."""


class StateSnapshot(NamedTuple):
    """A state that was read, and what belongs to it.

    Attributes:
        state: the state.
        names: its running values, in the order of their slots.
        lost_updates: how many there were.
    """

    state: MetricState
    names: tuple[str, ...]
    lost_updates: int

    def since(self, before: StateSnapshot | None) -> StateSnapshot:
        """Return what was added since an earlier snapshot, or since a reset after it. Extremes
        cover all updates: they can't be separated. What either of the two lacks is missing."""
        if before is None or before.state.resets != self.state.resets:
            return self
        now, then = self.state, before.state
        state = MetricState(**_difference(now, then))
        scalars = list(now.scalars)
        for slot, scalar in enumerate(then.scalars[: len(scalars)]):
            scalars[slot] = RunningValue(**_difference(scalars[slot], scalar))
            scalars[slot].m2 = _squares_since(scalars[slot], now.scalars[slot], scalar)
        state.scalars = tuple(scalars)
        state.confusion = None
        if now.confusion is not None and then.confusion is not None:
            state.confusion = now.confusion - then.confusion
        return StateSnapshot(state, self.names, self.lost_updates - before.lost_updates)

    def updates_since(self, before: StateSnapshot | None) -> int:
        """Return the number of updates since then, or of numbers of one running value if there were
        more; below 0 if this is the earlier one, and 0 if a reset has left nothing."""
        if self._is_cleared_since(before):
            return 0
        if before is None:
            return int(max([self.state.updates, *(each.updates for each in self.state.scalars)]))
        updates = int(self.state.updates - before.state.updates)
        numbers = [scalar.updates for scalar in self.state.scalars]
        if before.state.resets == self.state.resets:
            then = [scalar.updates for scalar in before.state.scalars]
            numbers += [0] * (len(then) - len(numbers))
            then += [0] * (len(numbers) - len(then))
            numbers = [number - earlier for number, earlier in zip(numbers, then, strict=True)]
        if min([updates, *numbers]) < 0:
            return -1
        return int(max([updates, *numbers]))

    def _is_cleared_since(self, before: StateSnapshot | None) -> bool:
        """Return whether there was a reset, and nothing after it."""
        if self.state.resets == (0 if before is None else before.state.resets):
            return False
        fields = vars(self.state).items()
        return not any(each.updates for each in self.state.scalars) and not any(
            np.any(value) for name, value in fields if name not in _NOT_CLEARED
        )


def _difference(now: Any, then: Any) -> dict[str, Any]:
    earlier = vars(then)
    return {
        name: value if name in _KEPT else _subtracted(value, earlier[name])
        for name, value in vars(now).items()
        if name not in ("scalars", "confusion")
    }


def _subtracted(now: Any, then: Any) -> Any:
    if isinstance(now, tuple):
        return tuple(number - earlier for number, earlier in zip(now, then, strict=True))
    return now - then


def _squares_since(added: RunningValue, now: RunningValue, then: RunningValue) -> float:
    """The sum of squares of the distances from the mean of what was added, by the formula that
    `across_ranks` merges them with, turned round."""
    if not (added.weight > 0 and then.weight > 0):
        return float(now.m2 if added.weight > 0 else 0)
    distance = then.sum / then.weight - added.sum / added.weight
    between = distance * distance * then.weight * added.weight / now.weight
    squares = float(now.m2 - then.m2 - between)
    return squares if squares > _ROUNDING * now.m2 else 0.0
