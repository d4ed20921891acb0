# SPDX-License-Identifier: Apache-2.0
"""Phase "backward": `loss.backward()`, `torch.autograd.backward` and `torch.autograd.grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import autograd
from torch.compiler import is_compiling

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native

_backward = native.gpu_phase("backward")


def install(session: Session) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad`."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or session.passes_by():
                return original(*args, **kwargs)
            token = session.begin(_backward, session.detector.runs_backward)
            session.is_in_backward = True
            try:
                return original(*args, **kwargs)
            finally:
                session.is_in_backward = False
                session.end(_backward, token)
                has_updated = session.updated_in_backward
                session.updated_in_backward = False
                session.tell(session.detector.ends_backward, has_updated)

        return wrapper

    session.patches.wrap(autograd, "backward", wrap)
    session.patches.wrap(autograd, "grad", wrap)
