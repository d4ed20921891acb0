# SPDX-License-Identifier: Apache-2.0
"""Phase "scheduler": the steps of learning rate schedulers."""

from __future__ import annotations

import inspect

from torch.optim import lr_scheduler

from pyinstrument_gpu.auto.session import Session, timed


def install(session: Session) -> None:
    """Patch `step` of every scheduler of torch that has one of its own."""
    wrap = timed(session, "scheduler")
    for scheduler in set(filter(inspect.isclass, vars(lr_scheduler).values())):
        if issubclass(scheduler, lr_scheduler.LRScheduler) and "step" in vars(scheduler):
            session.patches.wrap(scheduler, "step", wrap)
