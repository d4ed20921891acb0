# SPDX-License-Identifier: Apache-2.0
"""The line of the program in which a slow rank spends what it takes longer than the others, by
samples of the ranks' stacks.

Ranks run the same program, so what is usual in a function is what the others spend in it. A sample
is in a function or not, so a difference is certain only beyond the chance in their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pyinstrument_gpu.aspects.stacks.data import Stacks
from pyinstrument_gpu.aspects.stacks.functions import LEAST_SAMPLES, name_of_function
from pyinstrument_gpu.aspects.stacks.tree import phase_trees
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.job.findings import BETWEEN_STEPS, OUTSIDE_PHASES, Straggler
from pyinstrument_gpu.job.job import FunctionTime, RankData
from pyinstrument_gpu.job.joined import Joined

_MOST_FUNCTIONS = 12
_LEAST_SHARE = 0.5
"""Of the delay in a phase, a function that takes longer by less is not where it arises."""
_MOST_TIMES = 2.0
"""Between steps lies also what comes before the first one and after the last: a function that takes
longer by more than so many times the delay may have been at work there."""
_DEVIATIONS = 3.0


def functions_of(run: Run) -> tuple[FunctionTime, ...]:
    """Return the functions of the program in which each phase was, those with most time."""
    stacks: Stacks | None = run.stacks
    return () if stacks is None or not run.steps_ended else tuple(_functions_of(run, stacks))


def _functions_of(run: Run, stacks: Stacks) -> Iterator[FunctionTime]:
    for tree in phase_trees(stacks):
        if tree.scope is Scope.STEP:
            path = tree.path or OUTSIDE_PHASES
        elif tree.scope is Scope.OUTSIDE and not tree.path:
            path = BETWEEN_STEPS
        else:
            continue
        for one in tree.functions()[:_MOST_FUNCTIONS]:
            file = run.name_of_line(one.line).rpartition(":")[0]
            yield FunctionTime(
                path=path,
                function=(file, one.line.function),
                name=name_of_function(run, one),
                samples=one.samples,
                time_ns=one.time_ns / run.steps_ended,
            )


def with_line(joined: Joined, found: Straggler | None) -> Straggler | None:
    """Return who is waited for, with the line of the program in which its delay arises, if that can
    be told."""
    if found is None or found.path is None:
        return found
    ranks = [rank for rank in joined.ranks if rank.rank in found.ranks]
    others = [rank for rank in joined.ranks if rank.rank not in found.ranks and rank.functions]
    if not others or not all(rank.functions for rank in ranks):
        return found
    late_ns = found.path_share * found.lateness_ns
    best = max(
        (
            (more_ns, one.name)
            for one in ranks[0].functions
            if one.path == found.path
            and (more_ns := _more_ns(one, ranks, others)) >= _LEAST_SHARE * late_ns
            and (found.path != BETWEEN_STEPS or more_ns <= _MOST_TIMES * late_ns)
        ),
        default=None,
    )
    return found if best is None else replace(found, line=best[1], line_ns=best[0])


def _more_ns(one: FunctionTime, ranks: list[RankData], others: list[RankData]) -> float:
    """Return by how much longer these ranks are in a function than the median of the others, per
    step; 0 if that may be chance."""
    own = [_in_function(rank, one) for rank in ranks]
    usual = [_in_function(rank, one) for rank in others]
    if min(samples for samples, _ in own) < LEAST_SAMPLES:
        return 0.0
    usual_samples, usual_ns = np.median(usual, axis=0).tolist()
    more_ns = float(np.mean([time_ns for _, time_ns in own])) - usual_ns
    samples, time_ns = own[0]
    chance_ns = time_ns / samples * (samples + usual_samples) ** 0.5
    return more_ns if more_ns >= _DEVIATIONS * chance_ns else 0.0


def _in_function(rank: RankData, one: FunctionTime) -> tuple[int, float]:
    for other in rank.functions:
        if (other.path, other.function) == (one.path, one.function):
            return other.samples, other.time_ns
    return 0, 0.0
