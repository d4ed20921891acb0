# SPDX-License-Identifier: Apache-2.0
"""Where a run was when its file was last written, from its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pyinstrument_gpu.aspects.memory.data import OutOfMemory
from pyinstrument_gpu.core.open_phase import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.core.steps import Step

_LAST_STEPS = 5


def run_end(run: Run) -> RunEnd:
    """Where the run was at its last sign of life. Linear in its spans."""
    steps = run.steps
    closed = [step for step in steps[-_LAST_STEPS - 1 :] if step.end_ns >= 0]
    step = run.open_step or (closed[-1] if closed else None)
    path, begin_ns = _place(run, step)
    events = () if run.memory is None else run.memory.out_of_memory
    return RunEnd(
        anchor=dict(run.anchor),
        step=step,
        path=path,
        path_begin_ns=begin_ns,
        last_steps=tuple(closed[-_LAST_STEPS:]),
        out_of_memory=events[-1] if events else None,
        error=run.error,
    )


def innermost_phase(run: Run) -> OpenPhase | None:
    """The innermost open phase of the thread whose step is open, or else of any thread."""
    phases = run.open_phases
    if run.open_step is not None:
        thread = run.open_step.thread
        phases = tuple(phase for phase in phases if phase.thread == thread) or phases
    return max(phases, key=lambda phase: phase.depth, default=None)


def _place(run: Run, step: Step | None) -> tuple[str | None, int]:
    """The path of the phase in which it was, and when that began."""
    innermost = innermost_phase(run)
    if innermost is not None:
        return innermost.path, innermost.begin_ns
    if step is None or step.end_ns < 0 or step.complete:
        return None, -1
    # An exception has closed the phases that it came through, and perhaps it came through none.
    spans = run.spans
    is_in_step = (spans["step"] == step.index) & ((spans["flags"] & SpanFlag.STEP_THREAD) != 0)
    found = np.flatnonzero(is_in_step & (spans["depth"] == 0))
    if not len(found):
        return None, -1
    last = spans[found[np.argmax(spans["host_end_ns"][found])]]
    return run.paths[last["path"]], int(last["host_begin_ns"])


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
