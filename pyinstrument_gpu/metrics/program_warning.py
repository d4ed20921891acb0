# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the program."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn(message: str) -> None:
    """Warn, naming the nearest line that is neither ours nor PyTorch's. What PyTorch has generated
    for a compiled function belongs to a module of its own, or to none."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "torch")
        if module.partition(".")[0] not in ("pyinstrument_gpu", "torch"):
            break
        level += 1
        frame = frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)
