# SPDX-License-Identifier: Apache-2.0
"""Phase "loss": the loss functions of `torch.nn.functional`. Loss modules are in forward.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from pyinstrument_gpu.auto.session import Session, timed

_OTHERS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
)


def install(session: Session) -> None:
    """Patch the loss functions."""
    time_it = timed(session, "loss", without_gradients="eval")

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        wrapper: Any = time_it(original)
        # torch.jit.script then compiles the function itself.
        setattr(wrapper, "__script_if_tracing_wrapper", True)  # a class would mangle it
        setattr(wrapper, "__original_fn", original)
        return wrapper  # type: ignore[no-any-return]

    for name in vars(functional).copy():
        if (name.endswith("_loss") and not name.startswith("_")) or name in _OTHERS:
            session.patches.wrap(functional, name, wrap)
