# SPDX-License-Identifier: Apache-2.0
"""A side that is a function, which runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyinstrument_gpu.auto import auto_phases
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.recording.recording import record
from pyinstrument_gpu.recording.steps import gpu_step


class CallSide:
    """A function that trains; each call of it is a run.

    Args:
        steps: None if the function has the loop, whose steps are its own (`gpu_steps`) or found as
            under `pyinstrument-gpu run`. A number if it is one step, to be called as often for a
            run.
    """

    def __init__(self, function: Callable[[], object], steps: int | None = None) -> None:
        self._function = function
        self._steps = steps

    @property
    def text(self) -> str:
        return getattr(self._function, "__qualname__", None) or repr(self._function)

    def record(self, name: str, folder: Path) -> Run:
        with record(folder / f"{name}.gpurun") as recording, auto_phases():
            if self._steps is None:
                self._function()
            else:
                for _ in range(self._steps):
                    with gpu_step():
                        self._function()
        return recording.run
