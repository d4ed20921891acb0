# SPDX-License-Identifier: Apache-2.0
"""Memory of a device that outlives the modes in which it is made, and that several streams use.

Call the functions through this module: the tests on a simulated GPU replace `on_cuda`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyinstrument_gpu.native import IMPORT_ERROR, native

_made_on = WeakIdKeyDictionary()
"""The streams that were current when tensors were made, and events behind their making. PyTorch
knows of these streams, and with cudaMallocAsync it warns if it is told again."""

_disabled_modes: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)

_outside_transforms: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch._C, "_DisableFuncTorch", contextlib.nullcontext
)


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Leave the modes of PyTorch that are active now, so that what is made in here outlives them:
    what inference has made may not be changed later, what a mode of fake tensors has made has no
    memory, and what a transform of torch.func has made means nothing after it."""
    with _disabled_modes(), _outside_transforms(), torch.inference_mode(False):
        yield


def on_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


def zeros(size: int, device: torch.device) -> Tensor:
    with outside_modes():
        return torch.zeros(size, dtype=torch.uint8, device=device)


def remember_stream(tensor: Tensor) -> None:
    """Remember the stream on which a tensor was made, once all that makes it is enqueued."""
    if (made := event_behind(tensor)) is not None:
        _made_on[tensor] = torch.cuda.current_stream(tensor.device), made


def event_behind(tensor: Tensor) -> Any:
    """An event behind what makes a tensor, on the current stream; None if it is there already."""
    if not on_cuda(tensor.device):
        return None
    made = torch.cuda.Event()
    made.record(torch.cuda.current_stream(tensor.device))
    return made


def record_stream(*tensors: Tensor) -> None:
    """Have the current stream wait until tensors on one device are made, and keep PyTorch from
    using their memory for others before the stream is done with it. An accumulator may be gone by
    then."""
    if not on_cuda(tensors[0].device):
        return
    with contextlib.suppress(Exception):  # of an allocator that can't
        stream = torch.cuda.current_stream(tensors[0].device)
        is_captured = None
        for tensor in tensors:
            made_on, made = _made_on.get(tensor, (None, None))
            if made_on == stream:
                continue
            if made is not None:
                # A capture may not wait for what is outside of it. PyTorch has waited for all that
                # was under way when it began.
                if is_captured is None:
                    is_captured = is_capturing(tensor)
                if not is_captured:
                    made.wait(stream)
            tensor.record_stream(stream)


def is_capturing(tensor: Tensor) -> bool:
    """Return whether work enqueued on the tensor's device now becomes part of a CUDA graph."""
    if not on_cuda(tensor.device):
        return False
    # PyTorch would ask the driver with the GIL.
    answer: bool | None = None if IMPORT_ERROR is not None else native.is_capturing(tensor)
    if answer is not None:
        return answer
    with torch.cuda.device(tensor.device):
        return torch.cuda.is_current_stream_capturing()
