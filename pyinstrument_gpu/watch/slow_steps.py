# SPDX-License-Identifier: Apache-2.0
"""The slow steps of a run that is being recorded: the last one, and sums by cause, which only grow,
though the history that is looked at forgets its oldest part."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.slow_steps import UNEXPLAINED, SlowStep, slow_step, step_words


@dataclass(frozen=True)
class LiveSlowSteps:
    """The slow steps that were seen.

    Attributes:
        count: how many.
        excess_ns: what each cause has added to them, by its name, and what none explains.
        last: the last one.
        words: the same in a sentence.
        causes: the words of the main cause of each slow step in the history, by the step's index.
    """

    count: int = 0
    excess_ns: dict[str, int] = field(default_factory=dict)
    last: SlowStep | None = None
    words: str | None = None
    causes: dict[int, str] = field(default_factory=dict)


class SlowStepSums:
    """Counts each slow step of one run once, in the look that first has it."""

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._last_index = -1
        self._count = 0
        self._excess_ns: dict[str, int] = {}

    def look(self, run: Run) -> LiveSlowSteps:
        """Those of the run as it is now. Costs the analysis of slow steps."""
        if run.environment.get("run_id") != self._run_id:
            self._run_id = run.environment.get("run_id")
            self._begin()
        found = analysis.of(run).excess
        indices = found.steps["index"]
        new = indices > self._last_index
        self._count += int(np.count_nonzero(new))
        names = [*(one.name for one in found.causes), UNEXPLAINED]
        for name, times_ns in zip(
            names, [*found.parts_ns[:, new], found.unexplained_ns[new]], strict=True
        ):
            if times_ns.any():
                self._excess_ns[name] = self._excess_ns.get(name, 0) + int(times_ns.sum())
        closed = run.steps.closed
        self._last_index = max(self._last_index, int(closed["index"].max(initial=-1)))
        last = slow_step(run, found, len(indices) - 1) if len(indices) else None
        words = [UNEXPLAINED, *(one.words for one in found.causes)]
        main = [words[row + 1] for row in found.main_cause.tolist()]
        return LiveSlowSteps(
            count=self._count,
            excess_ns=dict(self._excess_ns),
            last=last,
            words=None if last is None else step_words(last),
            causes=dict(zip(indices.tolist(), main, strict=True)),
        )
