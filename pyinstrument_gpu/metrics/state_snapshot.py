# SPDX-License-Identifier: Apache-2.0
"""A state at one moment, and what was added between two of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.state import (
    SCALAR_MERGES,
    STATE_MERGES,
    MetricState,
    RunningValue,
)

_MERGES = {**STATE_MERGES, **SCALAR_MERGES}
_KEPT = frozenset(
    {name for name, merge in _MERGES.items() if merge.rule != "sum"}.union(
        *(merge.known_by for merge in _MERGES.values() if merge.rule == "average")
    )
)
"""These can't be subtracted, or describe the present: the others are sums."""

_NOT_CLEARED = frozenset({"updates", "resets", "scalars", "tail", "confusion"})

_ROUNDING = 1e-14
"""What is left of a difference of this share is rounding."""


class StateSnapshot(NamedTuple):
    """A state that was read, and what belongs to it.

    Attributes:
        state: the state.
        names: its running values, in the order of their slots.
        lost_updates: how many there were.
        confusion_sums: of a confusion matrix that the state lacks, for each class: the sum of its
            row, the sum of its column, and the element of the diagonal.
    """

    state: MetricState
    names: tuple[str, ...]
    lost_updates: int
    confusion_sums: NDArray[np.float64] | None

    @property
    def class_sums(self) -> NDArray[np.float64] | None:
        """The same of any confusion matrix; None where there is none."""
        matrix = self.state.confusion
        if matrix is None:
            return self.confusion_sums
        return np.stack([matrix.sum(axis=1), matrix.sum(axis=0), np.diagonal(matrix)])

    def since(self, before: StateSnapshot | None) -> StateSnapshot:
        """What was added since an earlier one, or since a reset after it. Extremes are those of all
        updates: they can't be told apart. What either of the two lacks is missing."""
        if before is None or before.state.resets != self.state.resets:
            return self
        now, then = self.state, before.state
        state = MetricState(**_difference(now, then))
        scalars = list(now.scalars)
        for slot, scalar in enumerate(then.scalars[: len(scalars)]):
            scalars[slot] = RunningValue(**_difference(scalars[slot], scalar))
            scalars[slot].m2 = _squares_since(scalars[slot], now.scalars[slot], scalar)
        state.scalars = tuple(scalars)
        # A reading that does not wait may lack the end of the tail.
        shared = min(len(now.tail), len(then.tail))
        state.tail, state.confusion = now.tail[:shared] - then.tail[:shared], None
        sums = None
        if now.confusion is not None and then.confusion is not None:
            state.confusion = now.confusion - then.confusion
        else:
            own, earlier = self.class_sums, before.class_sums
            sums = None if own is None or earlier is None else own - earlier
        return StateSnapshot(state, self.names, self.lost_updates - before.lost_updates, sums)

    def updates_since(self, before: StateSnapshot | None) -> int:
        """How many updates there were since then, or numbers of one running value if there were
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
        """Whether there was a reset, and nothing after it."""
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
        if name not in ("scalars", "tail", "confusion")
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
