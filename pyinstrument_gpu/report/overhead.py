# SPDX-License-Identifier: Apache-2.0
"""What a phase costs, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import counted, duration, printable, small_percent
from pyinstrument_gpu.report.console import printed

_WIDTH = 80
_FEW_ROUNDS = 10


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one use of a phase, or of another context manager, without the loop around it.

    What could not be measured has the reason in `missing`, and no times.
    """

    name: str
    is_ours: bool
    best_ns: float | None = None
    median_ns: float | None = None
    rounds: int = 0
    missing: str | None = None


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


def overhead_report(costs: Sequence[PhaseCost], step: RunStep | None = None) -> str:
    """A row for each way to mark a block, the first of which the others are compared with, and what
    could not be measured; with the share of a run's step, if there is one."""
    ours_ns = costs[0].median_ns
    blocks = [
        [row for cost in costs if cost.is_ours == ours and (row := _row(cost, ours_ns, step))]
        for ours in (True, False)
    ]
    headers = ["ns per use, without the loop", "median", "best", "x ours"]
    parts: list[Part] = [
        table([*headers, *(["% step"] if step else [])], blocks),
        Sentence(),
        Sentence(_rounds(costs)),
    ]
    missing = [cost for cost in costs if cost.missing is not None]
    parts += [Sentence(f"Missing: {cost.name}: {cost.missing}") for cost in missing]
    if step is not None and ours_ns is not None:
        parts += map(Sentence, [_of_step(step, ours_ns), *_caveats(step)])
    return printed(parts, _WIDTH)


def overhead_facts(costs: Sequence[PhaseCost], step: RunStep | None = None) -> dict[str, Any]:
    def share(cost: PhaseCost) -> dict[str, float | None]:
        if step is None:
            return {}
        use_ns = cost.median_ns
        return {"share_of_step": None if use_ns is None else step.share(use_ns)}

    return {
        "costs": [{**dataclasses.asdict(cost), **share(cost)} for cost in costs],
        "step": None if step is None else dataclasses.asdict(step),
    }


def _row(cost: PhaseCost, ours_ns: float | None, step: RunStep | None) -> Row | None:
    if cost.median_ns is None or cost.best_ns is None:
        return None
    cells = [f"{cost.median_ns:,.1f}", f"{cost.best_ns:,.1f}"]
    cells.append(f"{cost.median_ns / ours_ns:.3g}" if ours_ns and ours_ns > 0 else "-")
    if step is not None:
        cells.append(small_percent(step.share(cost.median_ns), 1))
    return Row(cost.name, cells)


def _of_step(step: RunStep, ours_ns: float) -> str:
    return (
        f"A step of the run: {step.phases:.1f} phases x {ours_ns:.1f} ns = "
        f"{duration(step.phases * ours_ns)}, {small_percent(step.share(ours_ns), 1)} of "
        f"{duration(step.median_ns)} (the median step)"
    )


def _rounds(costs: Sequence[PhaseCost]) -> str:
    rounds = max(cost.rounds for cost in costs)
    text = f"The figures come from {counted(rounds, 'round')}, taken in turn."
    return f"{text} So few are not reliable." if rounds < _FEW_ROUNDS else text


def _caveats(step: RunStep) -> list[str]:
    caveats = []
    if step.host is not None and step.host != platform.node():
        caveats.append(
            f"The run was recorded on another machine ({printable(step.host)}); the cost of a "
            "phase was measured on this one."
        )
    if step.device_timed:
        caveats.append("The run also timed a device, which costs more than what is measured here.")
    return caveats
