# SPDX-License-Identifier: Apache-2.0
"""Where a run was when its file was last written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyinstrument_gpu.aspects.memory.data import OutOfMemory
from pyinstrument_gpu.core.steps import Step


@dataclass(frozen=True)
class RunEnd:
    """Where a run was when its file was last written.

    Attributes:
        anchor: the last reading of the machine's clocks, as in `Run.anchor`.
        step: the step that was open, or else the last one that had closed; None if there was none.
        path: of the phase in which it was: the innermost open one of the step's thread, or of any
            thread where no step was open. Where the last step was cut short, the outermost phase
            that ended in it last. None if there was none.
        path_begin_ns: when that phase began, since the run began; -1 if there was none.
        last_steps: those that closed last, the oldest first.
        out_of_memory: the last time that a device had no memory left.
        error: why the file could not be written to its end.
    """

    anchor: Mapping[str, int] = field(default_factory=dict)
    step: Step | None = None
    path: str | None = None
    path_begin_ns: int = -1
    last_steps: tuple[Step, ...] = ()
    out_of_memory: OutOfMemory | None = None
    error: str | None = None

    @property
    def is_step_open(self) -> bool:
        return self.step is not None and self.step.end_ns < 0
