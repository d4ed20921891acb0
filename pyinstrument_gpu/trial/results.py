# SPDX-License-Identifier: Apache-2.0
"""Whether two trials of a program have the same results, by the parameters that they end with and
the losses on the way.

Parameters are those of the program's optimizers. All of their bytes are hashed; a sample of them,
at the end of the warm-up and at the end, says by how much two trainings differ where the bytes do:
relative to what training has changed meanwhile. Without an optimizer, losses stand for them.
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

MOST_VALUES = 100_000
"""Of the parameters that are compared one by one."""
MOST_LOSSES = 10_000
_SAME_TRAINING = 0.01
"""Of what training changes, the part up to which a difference counts as rounding."""


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
        digest: of all parameters; "" where the program has no optimizer.
        begin, end: the sample of their values at the end of the warm-up, and at the end.
        losses: those from which backward passes began.
    """

    digest: str = ""
    begin: tuple[float, ...] = ()
    end: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()


def alike(one: Results, other: Results) -> Same:
    """Return how alike the results of two trials of as many steps are."""
    if not one.digest and not other.digest:
        return _alike_values(one.losses, other.losses, _spread(one.losses))
    if one.digest == other.digest:
        return Same.IDENTICAL if one.losses == other.losses else Same.LAST_DIGITS
    return _alike_values(one.end, other.end, _distance(one.begin, one.end))


def _alike_values(one: Sequence[float], other: Sequence[float], moved: float) -> Same:
    if not one and not other:
        return Same.UNKNOWN
    if len(one) != len(other):
        return Same.DIFFERENT
    difference = _distance(one, other)
    if difference == 0.0:
        return Same.IDENTICAL
    return Same.LAST_DIGITS if difference <= _SAME_TRAINING * moved else Same.DIFFERENT


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        return math.inf
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


def _spread(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values) if values else 0.0
    return _distance(values, [mean] * len(values))


class Witness:
    """Sees a training's results, in the process of its trial. Nothing but `sample` and `results`
    reads a device."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._begin: list[float] = []
        self._losses: list[Any] = []

    def hook(self) -> None:
        """Watch the losses; torch must have been imported."""
        from torch import autograd

        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            is_loss = type(tensors).__name__ == "Tensor" and tensors.numel() == 1
            if is_loss and len(self._losses) < MOST_LOSSES:
                self._losses.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        autograd.backward = backward

    def begin(self) -> None:
        """Note the program's optimizers, and their parameters as they are now."""
        torch: Any = sys.modules["torch"]
        self._optimizers = [
            one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)
        ]
        self._begin = self._sample()

    def results(self) -> Results:
        digest = hashlib.blake2b(digest_size=16)
        parameters = self._parameters()
        for parameter in parameters:
            bytes_of = parameter.detach().cpu().contiguous().flatten()
            digest.update(memoryview(bytes_of.view(sys.modules["torch"].uint8).numpy()))
        losses = [float(loss) for loss in self._losses]
        return Results(
            digest.hexdigest() if parameters else "",
            tuple(self._begin),
            tuple(self._sample()),
            tuple(loss if math.isfinite(loss) else 0.0 for loss in losses),
        )

    def _parameters(self) -> list[Any]:
        return [
            parameter
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if type(parameter.data).__name__ == "Tensor"
        ]

    def _sample(self) -> list[float]:
        parameters = self._parameters()
        step = 1 + sum(parameter.numel() for parameter in parameters) // MOST_VALUES
        values: list[float] = []
        for parameter in parameters:
            some = parameter.detach().flatten()[::step]
            values += some.double().nan_to_num().cpu().tolist()
        return values
