# SPDX-License-Identifier: Apache-2.0
"""The slow steps of a run that is being recorded: the last one, and sums by cause, which only grow,
though the history that is looked at forgets its oldest part."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.slow_sums import UNEXPLAINED, SlowSums
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.slow_steps import SlowStep, slow_step, step_words


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
        self._sums = SlowSums()

    def look(self, run: Run) -> LiveSlowSteps:
        """Return the slow steps of the run as it is now. Costs the analysis of slow steps."""
        if run.environment.get("run_id") != self._run_id:
            self._run_id = run.environment.get("run_id")
            self._sums = SlowSums()
        self._sums.add(run)
        found = analysis.of(run).excess
        indices = found.steps["index"]
        last = slow_step(run, found, len(indices) - 1) if len(indices) else None
        words = [UNEXPLAINED, *(one.words for one in found.causes)]
        main = [words[row + 1] for row in found.main_cause.tolist()]
        return LiveSlowSteps(
            count=self._sums.count,
            excess_ns=dict(self._sums.excess_ns),
            last=last,
            words=None if last is None else step_words(last),
            causes=dict(zip(indices.tolist(), main, strict=True)),
        )
