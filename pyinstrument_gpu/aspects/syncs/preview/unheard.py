# SPDX-License-Identifier: Apache-2.0
"""How the preview does something of its own within a call of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")


def unheard(default: _T, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What an action returns, or a default where it fails. No class of tensors and no mode of the
    program sees what it asks."""
    try:
        with torch._C.DisableTorchFunction():
            return action(*args, **kwargs)
    except Exception:
        return default
