# SPDX-License-Identifier: Apache-2.0
"""The running values of an accumulator: their names, and the numbers that they take."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor

from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES
from pyinstrument_gpu.metrics.state import MAX_SCALARS


class SlotsByName(dict[str, int]):
    """Which slot of the state a running value has."""

    def add(self, name: str) -> int | None:
        """The slot of a name, which may be new; None, with a warning, where there is no room.

        Raises:
            TypeError, ValueError: it is no name.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {type(name).__name__}")
        if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
            raise ValueError(f"name must have 1 to {MAX_NAME_BYTES} bytes, got {name!r}")
        if name in self or len(self) < MAX_SCALARS:
            return self.setdefault(name, len(self))
        warnings.warn(
            f"{name!r} is left out: an accumulator has room for {MAX_SCALARS} running values",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def checked_number(name: str, value: Any) -> Tensor | float:
    """A value as one real number, or a tensor of one; raises TypeError or ValueError."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            raise ValueError(
                f"{name} must be one real number, got a tensor of {value.dtype} "
                f"with shape {tuple(value.shape)} on {value.device}"
            )
        return value
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
