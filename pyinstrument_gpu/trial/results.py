# SPDX-License-Identifier: Apache-2.0
"""Whether two trials of a program have the same results, by the parameters of its optimizers and
the losses on the way.

All bytes of the parameters at the end are hashed. Where these differ, a sample of the parameters
after the first and the third step says by how much, relative to what training has changed between
these two: so early that a difference in rounding has not grown yet. Without an optimizer, losses
stand for parameters.
"""

from __future__ import annotations

import enum
import gc
import hashlib
import math
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

EARLY = (1, 3)
"""The steps after which parameters are sampled."""
_MOST_VALUES = 100_000
_MOST_LOSSES = 10_000
_SAME_TRAINING = 0.1
"""The part of what training changes, up to which a difference counts as rounding: with other random
numbers it is about all of it."""


class Same(enum.IntEnum):
    """How alike the results of two trials are, the most first."""

    IDENTICAL = 0
    LAST_DIGITS = 1
    DIFFERENT = 2
    UNKNOWN = 3

    @property
    def words(self) -> str:
        return ("identical", "last digits", "different", "unknown")[self]


class Results(Struct, frozen=True):
    """What a trial's training has come to.

    Attributes:
        digest: of all parameters at the end; "" where the program has no optimizer.
        first, third: the sample of their values after these steps.
        losses: those from which backward passes began.
    """

    digest: str = ""
    first: tuple[float, ...] = ()
    third: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()


def alike(one: Results, other: Results) -> Same:
    """Return how alike the results of two trials of as many steps are."""
    if not one.digest and not other.digest:
        mean = math.fsum(one.losses) / max(len(one.losses), 1)
        moved = _distance(one.losses, [mean] * len(one.losses))
        return _alike_values(one.losses, other.losses, moved)
    if one.digest == other.digest:
        return Same.IDENTICAL if one.losses == other.losses else Same.LAST_DIGITS
    found = _alike_values(one.third, other.third, _distance(one.first, one.third))
    return max(found, Same.LAST_DIGITS)


def _alike_values(one: Sequence[float], other: Sequence[float], moved: float) -> Same:
    if not one and not other:
        return Same.UNKNOWN
    difference = _distance(one, other)
    if difference == 0.0:
        return Same.IDENTICAL
    return Same.LAST_DIGITS if difference <= _SAME_TRAINING * moved else Same.DIFFERENT


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        return math.inf
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


class Witness:
    """Sees a training's results, in the process of its trial. Only `note` and `results` read a
    device."""

    def __init__(self) -> None:
        self._samples: list[list[float]] = []
        self._losses: list[Any] = []

    def hook(self) -> None:
        """Watch the losses; torch must have been imported."""
        from torch import autograd

        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            is_loss = type(tensors).__name__ == "Tensor" and tensors.numel() == 1
            if is_loss and len(self._losses) < _MOST_LOSSES:
                self._losses.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        autograd.backward = backward

    def note(self) -> None:
        """Note the parameters as they are now."""
        parameters = _parameters()
        step = 1 + sum(parameter.numel() for parameter in parameters) // _MOST_VALUES
        values: list[float] = []
        for parameter in parameters:
            some = parameter.detach().flatten()[::step]
            values += some.double().nan_to_num().cpu().tolist()
        self._samples.append(values)

    def results(self) -> Results:
        torch: Any = sys.modules["torch"]
        digest = hashlib.blake2b(digest_size=16)
        parameters = _parameters()
        for parameter in parameters:
            bytes_of = parameter.detach().cpu().contiguous().flatten()
            digest.update(memoryview(bytes_of.view(torch.uint8).numpy()))
        losses = [float(loss) for loss in self._losses]
        first, third = [*self._samples, [], []][: len(EARLY)]
        return Results(
            digest.hexdigest() if parameters else "",
            tuple(first),
            tuple(third),
            tuple(loss if math.isfinite(loss) else 0.0 for loss in losses),
        )


def _parameters() -> list[Any]:
    """The dense parameters of all optimizers, in an order that does not depend on the collector."""
    torch: Any = sys.modules["torch"]
    found = [
        [parameter for group in one.param_groups for parameter in group["params"]]
        for one in gc.get_objects()
        if issubclass(type(one), torch.optim.Optimizer)
    ]
    found.sort(key=lambda parameters: [(*one.shape,) for one in parameters])
    return [
        one
        for parameters in found
        for one in parameters
        if type(one.data).__name__ == "Tensor" and one.layout == torch.strided
    ]
