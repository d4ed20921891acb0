# SPDX-License-Identifier: Apache-2.0
"""The line of the program in which a slow rank spends what it takes longer than the others, by
samples of the ranks' stacks.

Ranks run the same program, so what is usual in a function is what the others spend in it. The share
of a function in the samples of steps is that in their time, though samples may not have been taken
all the time. A sample is in a function or not, so a difference is certain only beyond the chance in
their numbers. Outside of steps it is not known to which of them a sample belongs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.aspects.stacks.data import Stacks
from pyinstrument_gpu.aspects.stacks.functions import name_of_function
from pyinstrument_gpu.aspects.stacks.tree import phase_trees
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.job.findings import OUTSIDE_PHASES, Straggler
from pyinstrument_gpu.job.job import FunctionTime, RankData
from pyinstrument_gpu.job.joined import Joined

_MOST_FUNCTIONS = 12
_LEAST_SAMPLES = 30
"""In steps. With fewer, nothing is known of a rank."""
_LEAST_SHARE = 0.5
"""Of the delay in a phase, a function that takes longer by less is not where it arises."""
_DEVIATIONS = 3.0


def functions_of(run: Run) -> tuple[FunctionTime, ...]:
    """Return the functions of the program in which each phase was, those with most time."""
    stacks: Stacks | None = run.stacks
    trees = [] if stacks is None else phase_trees(stacks)
    in_steps = [tree for tree in trees if tree.scope is Scope.STEP]
    sampled_ns = sum(tree.time_ns for tree in in_steps)
    steps = analysis.of(run).step_totals.duration
    if not sampled_ns or not steps.count:
        return ()
    scale = steps.mean_ns / sampled_ns
    return tuple(
        FunctionTime(
            path=tree.path or OUTSIDE_PHASES,
            function=(run.name_of_line(one.line).rpartition(":")[0], one.line.function),
            name=name_of_function(run, one),
            samples=one.samples,
            time_ns=one.time_ns * scale,
        )
        for tree in in_steps
        for one in tree.functions()[:_MOST_FUNCTIONS]
    )


def with_line(joined: Joined, found: Straggler | None) -> Straggler | None:
    """Return who is waited for, with the line of the program in which its delay arises, if that can
    be told."""
    if found is None or found.path is None:
        return found
    ranks = [rank for rank in joined.ranks if rank.rank in found.ranks]
    others = [rank for rank in joined.ranks if rank.rank not in found.ranks]
    others = [rank for rank in others if _samples(rank) >= _LEAST_SAMPLES]
    if not others or min(map(_samples, ranks)) < _LEAST_SAMPLES:
        return found
    least_ns = _LEAST_SHARE * found.path_share * found.lateness_ns
    best = max(
        (
            (more_ns, one.name)
            for one in ranks[0].functions
            if one.path == found.path and (more_ns := _more_ns(one, ranks, others)) >= least_ns
        ),
        default=None,
    )
    return found if best is None else replace(found, line=best[1], line_ns=best[0])


def _samples(rank: RankData) -> int:
    return sum(one.samples for one in rank.functions)


def _more_ns(one: FunctionTime, ranks: list[RankData], others: list[RankData]) -> float:
    """Return by how much longer these ranks are in a function than the median of the others, per
    step; 0 if that may be chance."""
    own_ns, usual_ns = ([_time_ns(rank, one) for rank in some] for some in (ranks, others))
    more_ns = float(np.mean(own_ns) - np.median(usual_ns))
    of_sample_ns = max(
        sum(one.time_ns for one in rank.functions) / _samples(rank) for rank in (*ranks, *others)
    )
    variance = one.time_ns**2 / one.samples
    variance += of_sample_ns * max(float(np.median(usual_ns)), of_sample_ns)
    is_certain = min(own_ns) > 0 and more_ns > _DEVIATIONS * variance**0.5
    return more_ns if is_certain else 0.0


def _time_ns(rank: RankData, one: FunctionTime) -> float:
    return sum(
        other.time_ns
        for other in rank.functions
        if (other.path, other.function) == (one.path, one.function)
    )
