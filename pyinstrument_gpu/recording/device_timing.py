# SPDX-License-Identifier: Apache-2.0
"""Device timing, as a recording asks for it."""

from __future__ import annotations

import warnings
from typing import Literal

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import torch_with_cuda

DeviceTimingMode = Literal["auto", "force", False]
GraphPhasesMode = Literal["auto"] | bool

SHARE_BOUNDARIES_NS = 350
"""How soon after another a boundary, on the same thread and stream, shares its event; 0: never. The
cheapest thing to enqueue that was found, cudaLaunchHostFunc on an H100, takes 398."""


_GRAPH_MARKS = {"auto": 256, True: 16_384, False: 0}
"""In one captured graph at most. All graphs of a device have 16,383."""


def start(mode: DeviceTimingMode, budget: float, graph_phases: GraphPhasesMode) -> None:
    """Time the device in the recording that is active, as soon as PyTorch uses one.

    Args:
        mode: "auto", where PyTorch uses a GPU; "force", also on side streams with
            CUDA_DEVICE_MAX_CONNECTIONS=1; or False.
        budget: share of the step time that the driver calls may cost.
        graph_phases: whether phases in graphs that are captured get marks.
    """
    if mode is False:
        return
    native.start_device_timing(
        budget=budget,
        share_boundaries_ns=SHARE_BOUNDARIES_NS,
        all_side_streams=mode == "force",
        graph_nodes=_GRAPH_MARKS[graph_phases],
    )
    attach_if_initialized()


def attach_if_initialized() -> None:
    """Attach device timing if PyTorch has initialised CUDA."""
    torch = torch_with_cuda()
    if torch is not None:
        native.attach_device(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))


def warn() -> None:
    """Say what device timing has to say: why it is off, or off in part."""
    for text in native.device_warnings():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
