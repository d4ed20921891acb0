# SPDX-License-Identifier: Apache-2.0
"""Device timing, as a recording asks for it."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from pyinstrument_gpu.native import native

DeviceTimingMode = Literal["auto", "force", False]


@dataclass(frozen=True)
class DeviceTimingOptions:
    """What a recording does about device times.

    Attributes:
        mode: "auto", where PyTorch uses a GPU; "force", also on side streams with
            CUDA_DEVICE_MAX_CONNECTIONS=1; or False.
        budget: share of the step time that the driver calls may cost.
        share_boundaries_ns: how soon after another a boundary shares its event; 0 never.
    """

    mode: DeviceTimingMode
    budget: float
    share_boundaries_ns: int

    def __post_init__(self) -> None:
        if self.mode is not False and self.mode not in ("auto", "force"):
            raise ValueError(f'device_timing must be "auto", "force" or False, got {self.mode!r}')
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float)):
            raise TypeError(f"device_timing_budget must be a number, got {self.budget!r}")
        if not self.budget > 0:  # NaN too
            raise ValueError(
                f"device_timing_budget must be more than 0, got {self.budget!r}: "
                "device_timing=False turns device times off"
            )
        share_ns = self.share_boundaries_ns
        if isinstance(share_ns, bool) or not isinstance(share_ns, int) or not 0 <= share_ns < 2**63:
            raise ValueError(f"share_boundaries_ns must be an int >= 0, got {share_ns!r}")

    def facts(self) -> dict[str, Any] | None:
        """As it stands in a run's environment; None when off. No budget is None."""
        if self.mode is False:
            return None
        limited = self.budget != float("inf")
        return {
            "mode": self.mode,
            "budget": self.budget if limited else None,
            "share_boundaries_ns": self.share_boundaries_ns,
        }

    def start(self) -> None:
        """Time the device in the recording that is active, as soon as PyTorch uses one."""
        if self.mode is False:
            return
        native.start_device_timing(
            budget=self.budget,
            share_boundaries_ns=self.share_boundaries_ns,
            all_side_streams=self.mode == "force",
        )
        attach_if_initialized()


def attach_if_initialized() -> None:
    """Attach device timing if PyTorch has initialised CUDA. Never the first to touch CUDA."""
    torch: Any = sys.modules.get("torch")
    try:
        # On a CPU build, and with ROCm, there is no such version.
        initialized = torch.version.cuda is not None and torch.cuda.is_initialized()
        tensor = torch.Tensor
    except AttributeError:  # not imported, or half
        return
    if initialized:
        native.attach_device(getattr(tensor, "__dlpack_c_exchange_api__", None))


def warn() -> None:
    """Say what device timing has to say: why it is off, or off in part."""
    for text in native.device_warnings():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
