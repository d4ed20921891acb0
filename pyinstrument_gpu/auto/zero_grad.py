# SPDX-License-Identifier: Apache-2.0
"""Phase "zero_grad": clearing gradients, by an optimizer or a module."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from pyinstrument_gpu.auto.session import Session, timed


def install(session: Session) -> None:
    """Patch `zero_grad` of `Optimizer` and `Module`."""
    wrap = timed(session, "zero_grad", session.detector.clears_gradients)
    session.patches.wrap(Optimizer, "zero_grad", wrap)
    session.patches.wrap(nn.Module, "zero_grad", wrap)
