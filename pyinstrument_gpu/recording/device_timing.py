# SPDX-License-Identifier: Apache-2.0
"""Device timing, as a recording asks for it."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

from pyinstrument_gpu.native import native

DeviceTimingMode = Literal["auto", "force", False]


SHARE_BOUNDARIES_NS = 1000
"""How soon after another a boundary, on the same thread and stream, shares its event; 0: never."""


def start(mode: DeviceTimingMode, budget: float) -> None:
    """Time the device in the recording that is active, as soon as PyTorch uses one.

    Args:
        mode: "auto", where PyTorch uses a GPU; "force", also on side streams with
            CUDA_DEVICE_MAX_CONNECTIONS=1; or False.
        budget: share of the step time that the driver calls may cost.
    """
    if mode is False:
        return
    native.start_device_timing(
        budget=budget,
        share_boundaries_ns=SHARE_BOUNDARIES_NS,
        all_side_streams=mode == "force",
    )
    attach_if_initialized()


def torch_with_cuda() -> Any:
    """The program's torch if it has initialised CUDA, else None. Never the first to touch CUDA."""
    torch: Any = sys.modules.get("torch")
    try:
        # On a CPU build, and with ROCm, there is no such version.
        is_in_use = torch.version.cuda is not None and torch.cuda.is_initialized()
    except Exception:  # not imported, or half, or something that stands in for it
        return None
    return torch if is_in_use else None


def attach_if_initialized() -> None:
    """Attach device timing if PyTorch has initialised CUDA."""
    torch = torch_with_cuda()
    if torch is not None:
        native.attach_device(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))


def warn() -> None:
    """Say what device timing has to say: why it is off, or off in part."""
    for text in native.device_warnings():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
