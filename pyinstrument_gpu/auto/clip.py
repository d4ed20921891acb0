# SPDX-License-Identifier: Apache-2.0
"""Phase "clip": limiting gradients."""

from __future__ import annotations

from torch.nn import utils
from torch.nn.utils import clip_grad

from pyinstrument_gpu.auto.session import Session, timed


def install(session: Session) -> None:
    """Patch the functions of `torch.nn.utils.clip_grad`, under both names."""
    wrap = timed(session, "clip")
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        session.patches.wrap(clip_grad, name, wrap, utils)
