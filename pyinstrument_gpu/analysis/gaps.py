# SPDX-License-Identifier: Apache-2.0
"""Time that the phases of a step don't show: gaps, which no phase covers, updates and trainings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import StepTotals

_OPTIMIZER = re.compile(r"optimizer( \d+)?")


@dataclass(frozen=True)
class Gap:
    """The time between the same two phases in all steps.

    Attributes:
        before: the outermost phase in front of it, as an index into `Run.paths`; -1: there is none,
            it begins with the step.
        behind: that behind it; -1: it ends with the step.
        time_ns: per step.
        is_rare: more than half of it lies in at most one step of ten.
    """

    before: int
    behind: int
    time_ns: float
    is_rare: bool


def gaps(run: Run, steps: NDArray[np.void]) -> list[Gap]:
    """The gaps of these steps (rows of `Run.steps.array`, closed and with all their spans), the
    largest first. About 0.2 s per million spans."""
    count = len(steps)
    if not count:
        return []
    covers, place = _outermost(run, steps)
    here, none = np.arange(count), np.full(count, -1)
    # The boundaries of a step are covers of no length.
    places = np.concatenate([here, place, here])
    begins_ns = np.concatenate([steps["begin_ns"], covers["host_begin_ns"], steps["end_ns"]])
    ends_ns = np.concatenate([steps["begin_ns"], covers["host_end_ns"], steps["end_ns"]])
    paths = np.concatenate([none, covers["path"].astype(np.int64), none])
    rank = np.repeat([0, 1, 2], [count, len(covers), count])
    order = np.lexsort((begins_ns, rank, places))
    is_inside = places[order][1:] == places[order][:-1]
    lengths_ns = np.maximum(begins_ns[order][1:] - ends_ns[order][:-1], 0)
    width = len(run.path_parents) + 1
    pairs = (paths[order][:-1] + 1) * width + paths[order][1:] + 1
    lengths_ns, steps_of = lengths_ns[is_inside], places[order][1:][is_inside]
    found = []
    for pair, chosen in groups(pairs[is_inside]):
        before, behind = divmod(int(pair), width)
        # Of a rare pair only the steps that have it.
        _, step = np.unique(steps_of[chosen], return_inverse=True)
        of_steps_ns = np.sort(np.bincount(step, lengths_ns[chosen]))[::-1]
        sum_ns = float(lengths_ns[chosen].sum())
        is_rare = bool(of_steps_ns[: count // 10].sum() > sum_ns / 2)
        found.append(Gap(before - 1, behind - 1, sum_ns / count, is_rare))
    return sorted(found, key=lambda gap: -gap.time_ns)


def _outermost(run: Run, steps: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The spans of the steps' own threads that lie in no other, each with the position of its
    step."""
    chosen = (span_scopes(run.spans) == Scope.STEP) & np.isin(run.spans["step"], steps["index"])
    spans = run.spans[chosen]
    spans = spans[np.lexsort((spans["depth"], spans["host_begin_ns"], spans["step"]))]
    place = np.searchsorted(steps["index"], spans["step"])
    latest_ns = np.maximum.accumulate(spans["host_end_ns"])
    is_outermost = np.ones(len(spans), dtype=bool)
    is_outermost[1:] = (spans["host_begin_ns"][1:] >= latest_ns[:-1]) | (place[1:] != place[:-1])
    return spans[is_outermost], place[is_outermost]


@dataclass(frozen=True)
class Updates:
    """The updates of several optimizers, which step unequally often.

    A step has one update of each optimizer at most. One that steps only now and then may make a
    step of its own, so that there may be more steps than updates of any optimizer.

    Attributes:
        counts: how often each has stepped, the most first.
        update_ns: the time in steps for each time that the first of them has.
    """

    counts: tuple[int, ...]
    update_ns: float


def updates(run: Run, totals: StepTotals) -> Updates | None:
    """Return the updates; None where all optimizers step equally often, where each step has one of
    the first, or where one begins to step when another has ended, as in successive trainings."""
    by_name = Counter[str]()
    for path, phase in run.phases_in(Scope.STEP).items():
        name = path.rpartition("/")[2]
        if _OPTIMIZER.fullmatch(name):
            by_name[name] += phase.count
    counts = sorted(by_name.values(), reverse=True)
    if len(set(counts)) < 2 or counts[0] >= totals.count or not _take_turns(run, by_name):
        return None
    return Updates(tuple(counts), totals.duration.total_ns / counts[0])


def optimizer_paths(run: Run) -> NDArray[np.bool_]:
    """Return for each path whether it is the step of an optimizer."""
    names = (path.rpartition("/")[2] for path in run.paths)
    return np.array([_OPTIMIZER.fullmatch(name) is not None for name in names], dtype=bool)


@dataclass(frozen=True)
class Training:
    """The steps of a run with several trainings that one optimizer updates in, and no other.

    Attributes:
        optimizer: its phase.
        steps: how many.
        step_ns: their mean.
        backward_passes: how many a step has in the optimizer's closure, on average.
    """

    optimizer: str
    steps: int
    step_ns: float
    backward_passes: float


def trainings(run: Run, steps: NDArray[np.void]) -> tuple[Training, ...]:
    """Return the trainings that these steps (rows of `Run.steps.array`) are divided into, one after
    the other; none where a step has no optimizer or several, or these take turns."""
    spans = run.spans[
        (span_scopes(run.spans) == Scope.STEP) & np.isin(run.spans["step"], steps["index"])
    ]
    of_optimizers = spans[optimizer_paths(run)[spans["path"]]]
    pairs = distinct(of_optimizers["step"] << 40 | of_optimizers["path"].astype(np.int64))
    step_of, paths = pairs >> 40, pairs & ((1 << 40) - 1)
    turns = np.count_nonzero(np.diff(paths))
    if not turns or turns >= len(np.unique(paths)) or not np.array_equal(step_of, steps["index"]):
        return ()
    closures = run.are_named(["backward"]) & (run.path_parents >= 0)
    durations_ns = durations_ns_of(steps)
    found = []
    for path, chosen in sorted(groups(paths), key=lambda one: one[1].min()):
        of_path = spans["path"][closures[spans["path"]]]
        passes = np.count_nonzero(run.path_parents[of_path] == path) / len(chosen)
        mean_ns = float(durations_ns[np.isin(steps["index"], step_of[chosen])].mean())
        found.append(Training(run.paths[path], len(chosen), mean_ns, passes))
    return tuple(found)


def _take_turns(run: Run, names: Iterable[str]) -> bool:
    """Return whether there is a step, of those in the history, that all of these phases are around:
    each is in an earlier one or in it, and in a later one or in it."""
    begins, ends = [], []
    for name in names:
        is_there = run.are_named([name])[run.spans["path"]] & (run.spans["step"] >= 0)
        steps = run.spans["step"][is_there]
        if not len(steps):
            return False
        begins.append(steps.min())
        ends.append(steps.max())
    return bool(np.max(begins) <= np.min(ends))
