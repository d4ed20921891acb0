# SPDX-License-Identifier: Apache-2.0
"""What to say of a run in which no step was seen."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinstrument_gpu.model.run_data import RunData


def what_was_seen(run: RunData) -> str:
    """A sentence on what this process did instead."""
    if "torch" not in sys.modules:
        seen = "this process did not import torch"
    elif not run.phases:
        seen = "this process imported torch, but nothing of a training loop was seen"
    else:
        counts = ", ".join(f"{phase.count} {path}" for path, phase in run.phases.items())
        seen = f"this process ran no training step, only {counts}"
        if any(path.startswith("compiled") for path in run.phases):
            seen += (
                "; what runs inside a compiled function is only seen to be training if it updates "
                "the parameters of a torch.optim optimizer in place, so if this does train, loop "
                "with pyinstrument_gpu.gpu_steps"
            )
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = children.ru_utime + children.ru_stime
    if children_s > 0:
        seen += (
            f"; its child processes, which are not recorded, used {children_s:.1f} s of CPU time"
        )
    return f"no steps: {seen}"
