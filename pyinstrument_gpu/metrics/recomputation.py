# SPDX-License-Identifier: Apache-2.0
"""Whether a forward pass is the second one of a checkpointed block."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch
import torch.utils.checkpoint

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The backward pass that the calling thread is in; -1 for none."""


def is_recomputing() -> bool:
    """Whether a backward pass runs what calls this once more, by `torch.utils.checkpoint`. PyTorch
    covers the backward pass only; hooks run in one too, and what they add is new."""
    if _graph_task() == -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == torch.utils.checkpoint.__file__:
            return True
        if file == torch.autograd.graph.__file__:
            return False  # a hook: a backward pass of its own is nearer than any recomputation
        frame = frame.f_back
    return False
