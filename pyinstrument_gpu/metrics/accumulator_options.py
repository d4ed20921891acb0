# SPDX-License-Identifier: Apache-2.0
"""The common part of the options of all accumulators."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.state import STATE_DTYPE

MAX_NAME_BYTES = 64


class AccumulatorOptions:
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
        """The size of the state with its tails."""
        return STATE_DTYPE.itemsize

    def class_weight_on(self, device: torch.device) -> Tensor | None:
        """The weights of the classes on a device, float64; None where all are 1."""
        return None

    @property
    def _given(self) -> dict[str, Any]:
        names = [each.name for each in fields(self) if each.compare]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def native_arguments(self) -> dict[str, Any]:
        """Return the arguments of `_C.MetricAccumulator`, besides the task."""
        return self._given

    def described(self) -> dict[str, Any]:
        """The options as JSON can hold them, to be compared with others'; of a tensor what tells it
        from others."""
        return {"task": self.task, **{name: _plain(value) for name, value in self._given.items()}}


def differences(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return how two descriptions differ, as in "topk=[1] instead of [1, 5]"; empty if they
    don't."""
    return ", ".join(
        f"{name}={given.get(name)!r} instead of {wanted.get(name)!r}"
        for name in dict.fromkeys([*wanted, *given])
        if given.get(name) != wanted.get(name)
    )


def check_ema(ema: Any) -> None:
    """Raise ValueError unless it is a share that may remain of a moving average."""
    if ema is not None and not (isinstance(ema, (int, float)) and 0 < ema < 1):
        raise ValueError(
            f"ema must be a number between 0 and 1, such as 0.98, or None, got {ema!r}"
        )


def check_tensors(tensors: Mapping[str, Any], optional: Collection[str]) -> dict[str, Tensor]:
    """Raise TypeError or ValueError unless all are tensors of real numbers on one device. Those
    that are optional may be None. Returns the others."""
    given = {
        name: each for name, each in tensors.items() if each is not None or name not in optional
    }
    first = next(iter(given))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device != given[first].device:
            raise ValueError(
                f"all tensors must be on one device: {first} is on {given[first].device}, "
                f"{name} is on {tensor.device}"
            )
        if tensor.is_meta:
            raise ValueError(f"{name} is on the device meta: it has no values")
        if tensor.is_complex():
            raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    return given


def check_alike(tensors: Mapping[str, Any], optional: Collection[str] = ("weight",)) -> None:
    """Check tensors as above, and raise ValueError unless all have the shape of the first one."""
    given = check_tensors(tensors, optional)
    first, shape = next((name, tensor.shape) for name, tensor in given.items())
    for name, tensor in given.items():
        if tensor.shape != shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(shape)}, got {tuple(tensor.shape)}"
            )


def checked_scalar(name: str, value: Any, weight: Any) -> Tensor | float:
    """A value as a tensor or one real number; raises TypeError or ValueError, also where the name
    is no name or the weight is none."""
    if isinstance(value, Tensor):
        check_alike({f"the value of {name!r}": value, "weight": weight})
    elif not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    elif weight is not None:
        raise TypeError(f"{name} must be a tensor if it has a weight, got {type(value).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__}")
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"name must have 1 to {MAX_NAME_BYTES} bytes, got {name!r}")
    if isinstance(value, Tensor):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        content = value.detach().cpu().double().numpy().tobytes()
        return f"a tensor with SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
    return list(value) if isinstance(value, tuple) else value
