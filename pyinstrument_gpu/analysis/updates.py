# SPDX-License-Identifier: Apache-2.0
"""Updates: how often optimizers step, where they do so unequally often.

A step has one update of each optimizer at most. Without a loader, one that steps only now and then
makes a step of its own, so that there may be more steps than updates of any optimizer.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.model.step_totals import StepTotals

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


def updates(run: RunData, totals: StepTotals) -> Updates | None:
    """None where all optimizers step equally often."""
    by_name = Counter[str]()
    for path, phase in run.phases_in(Scope.STEP).items():
        name = path.rpartition("/")[2]
        if _OPTIMIZER.fullmatch(name):
            by_name[name] += phase.count
    counts = sorted(by_name.values(), reverse=True)
    if len(set(counts)) < 2:
        return None
    return Updates(tuple(counts), totals.duration.total_ns / counts[0])
