# SPDX-License-Identifier: Apache-2.0
"""Updates: how often optimizers step, where they do so unequally often.

A step has one update of each optimizer at most. Without a loader, one that steps only now and then
makes a step of its own, so that there may be more steps than updates of any optimizer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_totals import StepTotals

_OPTIMIZER = re.compile(r"optimizer( \d+)?")


@dataclass(frozen=True)
class Updates:
    """The updates of several optimizers.

    Attributes:
        counts: how often each has stepped, the most first.
        update_ns: the time in steps for each time that the first of them has.
    """

    counts: tuple[int, ...]
    update_ns: float


def updates(run: Run, totals: StepTotals) -> Updates | None:
    """None where all optimizers step equally often, where each step has one of the first, or where
    one begins to step when another has ended, as in trainings one after the other."""
    by_name = Counter[str]()
    for path, phase in run.phases_in(Scope.STEP).items():
        name = path.rpartition("/")[2]
        if _OPTIMIZER.fullmatch(name):
            by_name[name] += phase.count
    counts = sorted(by_name.values(), reverse=True)
    if len(set(counts)) < 2 or counts[0] >= totals.count or not _take_turns(run, by_name):
        return None
    return Updates(tuple(counts), totals.duration.total_ns / counts[0])


def _take_turns(run: Run, names: Iterable[str]) -> bool:
    """Whether there is a step, of those in the history, that all of these phases are around: each
    is in an earlier one or in it, and in a later one or in it."""
    begins, ends = [], []
    for name in names:
        steps = run.spans["step"][run.are_named([name])[run.spans["path"]]]
        steps = steps[steps >= 0]
        if not len(steps):
            return False
        begins.append(steps.min())
        ends.append(steps.max())
    return bool(np.max(begins) <= np.min(ends))
