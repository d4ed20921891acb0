# SPDX-License-Identifier: Apache-2.0
"""A step of somebody's run, to hold a phase's cost against."""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope


@dataclass(frozen=True)
class RunStep:
    """A typical step of a run: the mean number of phases on its own thread, the median duration
    (within 1.6 %), and where it was recorded."""

    phases: float
    median_ns: int
    host: str | None = None
    device_timed: bool = False

    @classmethod
    def of(cls, run: Run) -> RunStep:
        """Raises ValueError if the run has no steps, or they took no time."""
        totals = run.step_totals
        if not totals.count or not totals.duration.total_ns:
            raise ValueError(
                "the run has no steps, so there is no step to take a share of: loop over "
                "gpu_steps(loader), or put `with gpu_step():` around an iteration"
            )
        phases = sum(phase.count for phase in run.phases_in(Scope.STEP).values())
        return cls(
            phases / totals.count,
            max(totals.duration.p50_ns, 1),
            run.environment.get("host"),
            bool(run.device_clocks),
        )

    def share(self, use_ns: float) -> float:
        return self.phases * use_ns / self.median_ns
