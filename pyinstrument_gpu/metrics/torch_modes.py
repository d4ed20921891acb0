# SPDX-License-Identifier: Apache-2.0
"""The modes of PyTorch in which a tensor is not what it is elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

_disabled_modes: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)

_outside_transforms: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    torch._C, "_DisableFuncTorch", contextlib.nullcontext
)


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """What is made in here outlives the modes of PyTorch that are active now: what inference has
    made may not be changed later, what a mode of fake tensors has made has no memory, and what a
    transform of torch.func has made means nothing after it."""
    with _disabled_modes(), _outside_transforms(), torch.inference_mode(False):
        yield


def is_fake(*values: Any) -> bool:
    """Whether any of them only stands for a tensor's shape, as while a program is exported or
    traced: there are no numbers to add."""
    module = sys.modules.get("torch._subclasses.fake_tensor")  # without it there are none
    return module is not None and any(map(module.is_fake, values))
