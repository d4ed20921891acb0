# SPDX-License-Identifier: Apache-2.0
"""The modes of PyTorch in which a tensor is not what it is elsewhere, or a function runs twice."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.utils.checkpoint

from pyinstrument_gpu.patching import dynamo

_disabled_modes: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)

_outside_transforms: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch._C, "_DisableFuncTorch", contextlib.nullcontext
)

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The backward pass that the calling thread is in; -1 for none."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def never_compiled(function: _Function) -> _Function:
    """Have torch.compile leave a function out of its graphs, and run it and all that it calls as
    they are. `torch.compiler.disable` would do the same, but at a cost for each call, and it
    imports the compiler."""
    marks: Any = function
    marks._torchdynamo_disable = True
    marks._torchdynamo_disable_msg = (
        "metrics can be updated in compiled code, but not read, reset or saved: do that outside"
    )
    dynamo.skip([marks.__code__])
    return function


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """What is made in here outlives the modes of PyTorch that are active now: what inference has
    made may not be changed later, what a mode of fake tensors has made has no memory, and what a
    transform of torch.func has made means nothing after it."""
    with _disabled_modes(), _outside_transforms(), torch.inference_mode(False):
        yield


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
