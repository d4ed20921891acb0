# SPDX-License-Identifier: Apache-2.0
"""Trials whose times are made up: a known factor for each edit, and noise of a known kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.trial.child import MadeEdit, Met, TrialData
from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Value
from pyinstrument_gpu.trial.results import Results
from pyinstrument_gpu.trial.search import Candidate
from pyinstrument_gpu.trial.trials import TrialPlan, TrialResult

PLAN = TrialPlan(warmup=3, steps=30, limit_s=60)


class MadeUpEdit(Edit):
    """An edit by name."""

    group = "made up"

    def __init__(self, name: str, changes: Changes = Changes.NOTHING) -> None:
        self.name = name
        self.changes = changes

    def reach(self, facts: Facts) -> float:
        return 1.0

    def text(self, value: Value) -> str:
        return f"{self.name}={value}"


def candidate(name: str, value: Value = 1, changes: Changes = Changes.NOTHING) -> Candidate:
    return Candidate(MadeUpEdit(name, changes), MadeEdit(name, value), reach=1.0)


class ScriptedTrials:
    """A runner.

    Args:
        factors: by the text of an edit, by what the time is multiplied.
        noise: of the n-th trial, the logarithm of what else it is multiplied by.
        changing: the texts of edits that change the results; `failing`: those that fail.
        trial_s: how long each takes on the clock.
    """

    def __init__(
        self,
        factors: Mapping[str, float],
        noise: Callable[[int], float] = lambda number: 0.0,
        changing: Sequence[str] = (),
        failing: Sequence[str] = (),
        trial_s: float = 5.0,
        interrupted_at: int | None = None,
        draws: Random | None = None,
    ) -> None:
        self._factors = factors
        self._noise = noise
        self._changing = changing
        self._failing = failing
        self._trial_s = trial_s
        self._interrupted_at = interrupted_at
        self._draws = draws
        self.now_s = 0.0
        self.made: list[tuple[str, ...]] = []

    def clock(self) -> float:
        return self.now_s

    def trial(self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False) -> TrialResult:
        texts = tuple(f"{one.name}={one.value}" for one in made)
        if len(self.made) == self._interrupted_at:
            raise KeyboardInterrupt
        self.made.append(texts)
        self.now_s += self._trial_s
        if set(texts) & set(self._failing):
            raise TrialError("it ended with exit code 1\nThe last lines")
        factor = math.prod(self._factors.get(text, 1.0) for text in texts)
        step_ns = 1e7 * factor * math.exp(self._noise(len(self.made)))
        end = 1.0 if self._draws is None else self._draws.random()
        end += len(set(texts) & set(self._changing))
        results = Results(digest=str(end), first=(0.0,), third=(end,))
        data = TrialData(
            steps=plan.steps,
            warmup=plan.warmup,
            elapsed_ns=int(step_ns) * (plan.steps - plan.warmup),
            startup_ns=0,
            waiting_ns=0,
            results=results,
            met=tuple(Met(True) for _ in made),
        )
        return TrialResult(step_ns, self._trial_s, 0.0, data)
