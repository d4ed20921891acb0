# SPDX-License-Identifier: Apache-2.0
"""The times of a run's steps, which of them are whole, and which were profiled.

Totals come from the statistics, which cover the whole run, and what needs the single steps from the
history, which may have lost its oldest part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import covered_before, joined, quantiles
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import (
    PhaseStatistics,
    Scope,
    Statistic,
    as_if_not_profiled,
    fold_spans,
)
from pyinstrument_gpu.core.steps import StepTotals

QUANTILES = (0.5, 0.95)
USUAL_SHARE = 0.5
"""The share of the steps that have a path from which on it has to tell which of them lack it."""


def were_profiled(run: Run, steps: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return for each of these indices of steps whether the step is to be left out because it was
    profiled. None is where all were."""
    if not run.profiled_totals.count:
        return np.zeros(len(steps), dtype=bool)
    return run.profiled.among(steps)


def longest_row(chosen: NDArray[np.bool_]) -> slice:
    """Return the longest stretch of consecutive chosen elements, the first of them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return slice(0, 0)
    longest = int(np.argmax(ends - begins))
    return slice(int(begins[longest]), int(ends[longest]))


@dataclass(frozen=True)
class StepQuantiles:
    """Quantiles of what each step spent, over the `steps` whose spans are all kept.

    Attributes:
        duration_ns: of a step's duration, one value per `QUANTILES`; empty when `steps` is 0.
        phase_ns: by path, of the host time that a step spent there on its own thread. A step
            without the phase counts as 0; a path that is not here occurred in none of them.
    """

    steps: int
    duration_ns: tuple[int, ...]
    phase_ns: Mapping[int, tuple[int, ...]]

    def of_path(self, path: int) -> tuple[int, ...]:
        return self.phase_ns.get(path, (0,) * len(self.duration_ns))


@dataclass(frozen=True)
class Attribution:
    """The share of the step time for which phases on the step's own thread account.

    Attributes:
        phases_ns: time inside phases.
        crossing: number of spans that outlasted their step; only what lies inside steps is in
            `phases_ns`. None when the history is not whole: then `phases_ns` is the sum of the
            phases' self times, which is too much where a phase outlasts its step or, with
            interleaved generators, the phase around it.
        outside_phases_ns: the rest of the step time; None where `phases_ns` is more than that.
    """

    phases_ns: int
    crossing: int | None
    outside_phases_ns: int | None


def kept_steps(run: Run, losses: SpanLosses) -> NDArray[np.void]:
    """The steps whose spans were not dropped for their age, as rows of `Run.steps.array`. If others
    are known to lack spans, the most in a row that do not."""
    steps = run.steps.array
    kept = np.ones(len(steps), dtype=bool)
    is_cut = bool(run.dropped.get("span_history")) or not losses.are_located
    if is_cut and len(run.spans) < run.phases_recorded:
        # A thread's spans are dropped in the order in which they ended, so a step is whole when it
        # began after the first one that was kept.
        for thread in distinct(steps["thread"]):
            ends_ns = run.spans["host_end_ns"][run.spans["thread"] == thread]
            since_ns = ends_ns[0] if len(ends_ns) else np.iinfo(np.int64).max
            kept &= (steps["thread"] != thread) | (steps["begin_ns"] >= since_ns)
    if losses.lacking.any():
        return steps[longest_row(kept & ~losses.lacking)]
    return steps[kept]


def startup_ns(run: Run) -> int | None:
    """The time until the first step began: imports, making the model, starting the loader. None
    where that step is not known any more."""
    steps = run.steps.array
    return int(steps["begin_ns"][0]) if len(steps) and steps["index"][0] == 0 else None


def is_mostly_first(run: Run) -> bool:
    """Return whether the first step takes most of the time of all steps, as where it imports, or
    makes what later ones reuse: then the mean says nothing of the others."""
    steps, total_ns = run.steps.array, run.step_totals.duration.total_ns
    if startup_ns(run) is None or steps["end_ns"][0] < 0:
        return False
    return 2 * int(steps["end_ns"][0] - steps["begin_ns"][0]) > total_ns


def outside_ns(run: Run) -> int:
    """The time outside steps, open and profiled ones included among the steps."""
    inside_ns = run.step_totals.duration.total_ns + run.profiled_totals.duration.total_ns
    if run.open_step is not None:
        inside_ns += run.duration_ns - run.open_step.begin_ns
    return run.duration_ns - inside_ns


def cut_short(run: Run, kept_steps: NDArray[np.void]) -> NDArray[np.void]:
    """The steps that an exception, a break or the end of their loader cut short, as rows of
    `Run.steps.array`: means leave them out. None where some of them are not among the kept steps,
    where their phases can't be told from others, or where there is no other step."""
    totals = run.step_totals
    steps = kept_steps[(kept_steps["end_ns"] >= 0) & ~kept_steps["complete"]]
    steps = steps[~were_profiled(run, steps["index"])]
    are_known = len(steps) == totals.count - totals.complete and _are_counted(run)
    found: NDArray[np.void] = steps[: len(steps) if are_known and totals.complete else 0]
    return found


def _are_counted(run: Run) -> bool:
    return sum(phase.count for phase in run.statistics.values()) >= run.phases_recorded


def in_unfinished_steps(
    run: Run, cut_short: NDArray[np.void]
) -> Mapping[tuple[int, Scope], PhaseStatistics]:
    """The spans in steps of which the end is not known, or that were cut short, by path and scope,
    as far as they are kept. They are in the statistics, but the time of their step is in no total:
    a mean per step has to leave them out. Nothing where the statistics lack spans, these
    perhaps."""
    last = int(run.steps.closed["index"].max(initial=-1))
    if run.steps_ended > last + 1:  # the newest that ended are missing from the history
        last = 1 << 62 if run.open_step is None else run.open_step.index - 1
    chosen = (run.spans["step"] > last) | np.isin(run.spans["step"], cut_short["index"])
    if not chosen.any() or not _are_counted(run):
        return {}
    spans = run.spans[chosen]
    return fold_spans(
        spans["path"],
        span_scopes(spans, were_profiled(run, spans["step"])),
        host=durations_ns_of(spans, "host_"),
        self_host=run.span_self_ns[chosen],
        device=run.span_device_ns[chosen],
        blocked=spans["blocked_ns"],
    )


def mean_per_step_ns(
    steps: int, all_steps: Statistic | None, unfinished: Statistic | None, calls: int
) -> float | None:
    """Return what a phase took in each of so many steps, by one of its statistics and the part of
    it in steps that do not count; `calls` are those in steps that do. None unknown.

    Where a time is known of some of the calls only, their mean stands for all.
    """
    if all_steps is None or not all_steps.count or not steps:
        return None
    count, total_ns = all_steps.count, all_steps.total_ns
    # The last device times may be missing from the statistics: then none of these are left out.
    if unfinished is not None and unfinished.count <= count and unfinished.total_ns <= total_ns:
        count, total_ns = count - unfinished.count, total_ns - unfinished.total_ns
    if not calls:
        return 0.0
    return total_ns * calls / (count * steps) if count else None


def step_quantiles(run: Run, kept_steps: NDArray[np.void]) -> StepQuantiles:
    """Quantiles per step, by nearest rank, of the closed ones that were not profiled. Sorts the
    kept spans: about 0.3 s per million."""
    steps = kept_steps[kept_steps["end_ns"] >= 0]
    steps = steps[~were_profiled(run, steps["index"])]
    count = len(steps)
    if not count:
        return StepQuantiles(0, (), {})
    ranks = [int(np.ceil(q * count)) for q in QUANTILES]
    position, belongs = _step_positions(run, steps)
    host_ns = durations_ns_of(run.spans, "host_")[belongs]
    # Of a rare phase only the steps that have it, as zeros come first anyway.
    key = run.spans["path"][belongs].astype(np.int64) * count + position
    in_step, places = np.unique(key, return_inverse=True)
    sums_ns = np.bincount(places, host_ns, len(in_step)).astype(np.int64)
    path = in_step // count
    sums_ns = np.append(sums_ns[np.lexsort((sums_ns, path))], 0)  # one more, as there may be none
    paths, begins = np.unique(path, return_index=True)
    ends = np.append(begins[1:], len(path))
    phase_ns: dict[int, tuple[int, ...]] = dict.fromkeys(paths.tolist(), ())
    for rank in ranks:
        place = ends - 1 - (count - rank)  # before the begin are the steps without
        found_ns = np.where(place >= begins, sums_ns[np.maximum(place, 0)], 0)
        phase_ns = {
            path: (*before, ns)
            for (path, before), ns in zip(phase_ns.items(), found_ns.tolist(), strict=True)
        }
    duration_ns = tuple(quantiles(durations_ns_of(steps), QUANTILES))
    return StepQuantiles(count, duration_ns, phase_ns)


def _step_positions(
    run: Run, steps: NDArray[np.void]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the position in `steps` of each span on its step's thread, and those spans."""
    belongs = span_scopes(run.spans) == Scope.STEP
    position = np.searchsorted(steps["index"], run.spans["step"])
    position = np.minimum(position, len(steps) - 1)
    belongs &= steps["index"][position] == run.spans["step"]
    return position[belongs], belongs


def attribution(run: Run, totals: StepTotals, cut_short: NDArray[np.void]) -> Attribution:
    """Return the attribution of the steps that `totals` count: all but those cut short."""
    steps, total_ns = run.steps.closed, totals.duration.total_ns
    steps = steps[
        ~were_profiled(run, steps["index"]) & ~np.isin(steps["index"], cut_short["index"])
    ]
    if not totals.count:
        return Attribution(0, 0, 0)
    if len(steps) == totals.count and len(run.spans) == run.phases_recorded:
        position, belongs = _step_positions(run, steps)
        crossing = run.spans["host_end_ns"][belongs] > steps["end_ns"][position]
        inside_ns = int(phases_ns(run, steps).sum())
        return Attribution(inside_ns, int(np.count_nonzero(crossing)), total_ns - inside_ns)
    self_ns = _self_ns(run.statistics) - _self_ns(in_unfinished_steps(run, cut_short))
    return Attribution(self_ns, None, total_ns - self_ns if self_ns <= total_ns else None)


def _self_ns(statistics: Mapping[tuple[int, Scope], PhaseStatistics]) -> int:
    return sum(
        phase.self_host.total_ns
        for (_, scope), phase in statistics.items()
        if scope == Scope.STEP and phase.self_host is not None
    )


def phases_ns(run: Run, steps: NDArray[np.void]) -> NDArray[np.int64]:
    """The time of each of `steps` inside phases that began in it or in an earlier step.

    Those of its own thread; a phase that began outside the steps is around them, not in them.
    """
    in_steps = span_scopes(run.spans) == Scope.STEP
    times_ns = np.zeros(len(steps), np.int64)
    for thread in distinct(steps["thread"]):
        spans = run.spans[in_steps & (run.spans["thread"] == thread)]
        of_thread = steps["thread"] == thread
        covered = joined(spans["host_begin_ns"], spans["host_end_ns"])
        times_ns[of_thread] = covered_before(*covered, steps["end_ns"][of_thread])
        times_ns[of_thread] -= covered_before(*covered, steps["begin_ns"][of_thread])
    return times_ns


def outside_during_steps(run: Run) -> set[int]:
    """The paths of kept spans that began outside the steps and were open during a kept one."""
    steps = run.steps.array
    # At most one step is open at a time, so begins and ends ascend alike.
    ends_ns = np.where(steps["end_ns"] < 0, run.duration_ns, steps["end_ns"])
    spans = span_scopes(run.spans) == Scope.OUTSIDE
    following = np.searchsorted(ends_ns, run.spans["host_begin_ns"][spans], side="right")
    never_ns = np.iinfo(np.int64).max
    step_begins_ns = np.append(steps["begin_ns"], never_ns)[following]
    during = step_begins_ns < run.spans["host_end_ns"][spans]
    return set(distinct(run.spans["path"][spans][during]).tolist())


@dataclass(frozen=True)
class SpanLosses:
    """Spans that are missing from the history for another reason than their age.

    Attributes:
        spans: their number, inside steps and outside.
        lacking: whether each of `Run.steps` is known to lack spans.
        are_located: whether all steps that lack spans are known.
    """

    spans: int
    lacking: NDArray[np.bool_]
    are_located: bool


def span_losses(run: Run) -> SpanLosses:
    """The spans that are missing from the history for another reason than their age.

    Statistics cover every span, so that it is known of each path how many spans are missing, but
    not of which steps. A path that occurs equally often in each step tells: the steps that have
    fewer of its spans lack as many as are missing in all. What is missing of other paths went the
    same way, because a full ring is emptied at once.
    """
    lost = max(0, run.phases_recorded - len(run.spans) - run.dropped.get("span_history", 0))
    lacking, rare = np.zeros(len(run.steps), dtype=bool), 0
    if not lost or not len(lacking):
        return SpanLosses(lost, lacking, are_located=not lost)
    counted = sum(phase.count for phase in run.statistics.values()) == run.phases_recorded
    are_located = counted and not run.dropped.get("span_history", 0)
    indices = run.steps.array["index"]
    in_steps = run.spans[span_scopes(run.spans) == Scope.STEP]
    of_paths = {path: in_steps["step"][places] for path, places in groups(in_steps["path"])}
    for (path, scope), phase in as_if_not_profiled(run.statistics).items():
        steps = of_paths.get(path, in_steps["step"][:0])
        missing = phase.count - len(steps)
        if scope != Scope.STEP or missing <= 0:
            continue
        place = np.searchsorted(indices, steps[np.isin(steps, indices)])
        counts = np.bincount(place, minlength=len(lacking))
        usual = int(np.argmax(np.bincount(counts[counts > 0]))) if counts.any() else 0
        fewer = np.maximum(usual - counts, 0)
        if int(fewer.sum()) == missing:
            lacking |= fewer > 0
        else:
            rare += missing
            are_located &= phase.count < USUAL_SHARE * len(lacking)
    return SpanLosses(lost, lacking, are_located and (not rare or bool(lacking.any())))
