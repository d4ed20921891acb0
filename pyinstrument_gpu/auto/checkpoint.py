# SPDX-License-Identifier: Apache-2.0
"""Phase "checkpoint": `torch.save`."""

from __future__ import annotations

import torch
from torch import serialization

from pyinstrument_gpu.auto.session import Session, timed


def install(session: Session) -> None:
    """Patch `torch.save`, under both names."""
    session.patches.wrap(serialization, "save", timed(session, "checkpoint"), torch)
