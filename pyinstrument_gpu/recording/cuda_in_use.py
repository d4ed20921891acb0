# SPDX-License-Identifier: Apache-2.0
"""Whether the program uses CUDA."""

from __future__ import annotations

import sys
from typing import Any


def torch_with_cuda() -> Any:
    """The program's torch if it has initialised CUDA, else None. Never the first to touch CUDA."""
    torch: Any = sys.modules.get("torch")
    try:
        # On a CPU build, and with ROCm, there is no such version.
        is_in_use = torch.version.cuda is not None and torch.cuda.is_initialized()
    except Exception:  # not imported, or half, or something that stands in for it
        return None
    return torch if is_in_use else None
