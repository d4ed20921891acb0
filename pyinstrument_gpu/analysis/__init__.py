# SPDX-License-Identifier: Apache-2.0
"""The analysis of a run: functions of its data, which measure nothing themselves.

`of(run)` gives the results, each computed once, when it is asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import cache, cached_property, partial
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis import (
    advice,
    batches,
    bottleneck,
    contention,
    correlation_points,
    excess,
    gaps,
    host_timeline,
    loader_replay,
    sampled_time,
    savings,
    step_kinds,
    step_times,
    time_budget,
    trend,
    undisturbed,
)
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.correlation_points import Premises, premises
from pyinstrument_gpu.analysis.gaps import Training, Updates
from pyinstrument_gpu.analysis.savings import Change, ReplayedSaving, ReplayedSavings
from pyinstrument_gpu.analysis.time_budget import TimeBudget, TimeBudgetEntries, mean_time_budget
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import StepTotals

_analyses: MutableMapping[Run, Analysis] = WeakKeyDictionary()


def of(run: Run) -> Analysis:
    """The analysis of a run. All that read it share its parts, as long as the run exists.

    The run must not change once its analysis has been asked for.
    """
    found = _analyses.get(run)
    if found is None:
        # Of a copy, which shares the data: a reference to the run would keep it.
        found = _analyses[run] = Analysis(copy.copy(run))
    return found


class Analysis:
    """The results that follow from a run, each part computed once. `of` makes it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @cached_property
    def kept_steps(self) -> NDArray[np.void]:
        return step_times.kept_steps(self._run, self.span_losses)

    @cached_property
    def span_losses(self) -> step_times.SpanLosses:
        """The spans that are missing from the history for another reason than their age."""
        return step_times.span_losses(self._run)

    @cached_property
    def step_quantiles(self) -> step_times.StepQuantiles:
        return step_times.step_quantiles(self._run, self.whole_steps)

    @cached_property
    def cut_short(self) -> NDArray[np.void]:
        """The steps that were cut short, of which no mean is made."""
        return step_times.cut_short(self._run, self.kept_steps)

    @property
    def whole_steps(self) -> NDArray[np.void]:
        """The kept steps without those that were cut short."""
        return self.kept_steps[~np.isin(self.kept_steps["index"], self.cut_short["index"])]

    @cached_property
    def step_totals(self) -> StepTotals:
        """The totals of the run, without the steps that were cut short."""
        return self._run.step_totals.without(self.cut_short) or self._run.step_totals

    @cached_property
    def gaps(self) -> list[gaps.Gap]:
        """The time that no phase covers, by the phases around it, the largest first."""
        return gaps.gaps(self._run, self.host_timeline.steps)

    @cached_property
    def updates(self) -> Updates | None:
        """The steps of optimizers, where several step unequally often."""
        return gaps.updates(self._run, self.step_totals)

    @cached_property
    def trainings(self) -> tuple[Training, ...]:
        """The steps by optimizer, where each has one and these differ."""
        steps = self.whole_steps[self.whole_steps["end_ns"] >= 0]
        return gaps.trainings(
            self._run, steps[~step_times.were_profiled(self._run, steps["index"])]
        )

    @cached_property
    def attribution(self) -> step_times.Attribution:
        return step_times.attribution(self._run, self.step_totals, self.cut_short)

    @cached_property
    def clock_uncertainty_ns(self) -> NDArray[np.float64]:
        return bottleneck.clock_uncertainty_ns(self._run)

    @cached_property
    def queue_times(self) -> Callable[..., Mapping[int, bottleneck.QueueTime]]:
        """The queue time by path (an index into `Run.paths`), of a scope or of all."""
        return cache(partial(bottleneck.queue_times, self._run, self.clock_uncertainty_ns))

    @cached_property
    def span_bottlenecks(self) -> NDArray[np.int64]:
        return bottleneck.span_bottlenecks(self._run, self.clock_uncertainty_ns)

    def bottlenecks(self, scope: Scope | None = None) -> Mapping[int, bottleneck.PhaseBottleneck]:
        """Return what limits each path (an index into `Run.paths`), in a scope or in all."""
        doubted = self.savings.paths_that_wait_for_the_host if scope == Scope.STEP else ()
        return {
            path: replace(one, is_certain=False)
            if path in doubted and one.kind == bottleneck.Bottleneck.DEVICE
            else one
            for path, one in self._bottlenecks(scope).items()
        }

    @cached_property
    def _bottlenecks(self) -> Callable[..., Mapping[int, bottleneck.PhaseBottleneck]]:
        return cache(partial(bottleneck.bottlenecks, self._run, self.span_bottlenecks))

    @cached_property
    def host_timeline(self) -> host_timeline.HostTimeline:
        return host_timeline.host_timeline(self._run, self.whole_steps)

    @cached_property
    def correlation_points(self) -> correlation_points.CorrelationPoints:
        return correlation_points.correlation_points(
            self._run, self.host_timeline, self.clock_uncertainty_ns
        )

    @property
    def knows_waits(self) -> bool:
        """True if the device was timed, or syncs have prices. Without either, time budget and
        savings say no more than the times of the phases."""
        return bool((self._run.span_device_ns >= 0).any()) or self._run.syncs.are_priced

    @cached_property
    def contention(self) -> contention.Contention | None:
        """The run's contention for processors; None where it is unknown."""
        return contention.contention(self._run, self.step_totals)

    @property
    def is_contended(self) -> bool:
        """True if steps waited for a processor for so long that savings are known roughly only."""
        return self.contention is not None and self.contention.is_large

    @property
    def certain_share(self) -> float:
        """The part of a saving that is left if all waits for a processor fell on what it takes
        away; 1 where there are few."""
        if not self.is_contended or self.contention is None:
            return 1.0
        return 1.0 - (self.contention.share or 0.0)

    @cached_property
    def trend(self) -> trend.Trend | None:
        """The change of the step over the run; None where there is none, or it is unknown."""
        kinds = step_kinds.step_kinds(self._run)
        return trend.trend(self._run, kinds, self.whole_steps, self.batches)

    @cached_property
    def excess(self) -> excess.Excess:
        """The slow steps, and what made them slow."""
        return excess.excess(self._run)

    @cached_property
    def time_budget(self) -> TimeBudgetEntries:
        """The time of each step, entered once for the host and once for the device."""
        return time_budget.time_budget(self._run, self.host_timeline, self.correlation_points)

    @cached_property
    def mean_time_budget(self) -> TimeBudget | None:
        """The time budget per step; None where it would add nothing to the times of the phases."""
        if not self.knows_waits or not len(self.time_budget.entries):
            return None
        return mean_time_budget(self._run, self.time_budget, self.premises.doubt)

    @cached_property
    def undisturbed(self) -> undisturbed.UndisturbedSteps | None:
        """The times of a step without what other programs took of the processors, where that is
        much; None without contention, or where it can't be told."""
        found = self.contention
        if found is None or found.share is None or self._run.environment.get("gpus") != []:
            return None
        return undisturbed.undisturbed(self._run, self.time_budget, found.share)

    @cached_property
    def batches(self) -> batches.LoaderBatches:
        """The times at which the loop asked for each batch, had it, and the loader had made it."""
        return batches.batches(self._run, self.host_timeline)

    @cached_property
    def loader_model(self) -> loader_replay.LoaderModel | None:
        """A model of how batches were made and used, to be replayed with other workers."""
        return loader_replay.model_of(self._run, self.batches, self.contention)

    @cached_property
    def loader_predictions(self) -> tuple[loader_replay.Prediction, ...]:
        """The waits of the loop with other workers; none where others may take so much of the
        processors that the times are theirs."""
        found, model = self.contention, self.loader_model
        if model is None or (found is not None and found.is_large and not found.is_own):
            return ()
        return tuple(model.predictions())

    @cached_property
    def workers_may_lose(self) -> bool:
        """True if more loader workers may well make the loop slower: with each number of them it
        would likely wait longer for a batch, processors are too busy to tell, or a loop that trains
        on the CPU makes its batches so fast that handing one over takes as long."""
        model = self.loader_model
        if model is None:
            return self.is_contended
        more = [one for one in self.loader_predictions if one.workers > model.workers]
        may_lose = all(one.wait_ns > model.wait_ns for one in more)
        is_fast = model.workers == 0 and model.wait_ns < loader_replay.FROM_WORKER_NS
        is_fast = is_fast and self._run.environment.get("gpus") == []
        return is_fast or (bool(more) and may_lose) or (self.is_contended and not more)

    @cached_property
    def premises(self) -> Premises:
        """The premises of conclusions from device times, as far as they are known."""
        return premises(self._run, self.correlation_points)

    @cached_property
    def savings(self) -> ReplayedSavings:
        """The savings of changes."""
        return savings.savings(
            self._run,
            self.host_timeline,
            self.correlation_points,
            self._bottlenecks(Scope.STEP),
            self.batches,
            self.premises,
        )

    @cached_property
    def _savings_to_advise(self) -> ReplayedSavings:
        """The savings without that of a change which may lose, and with as much less at the low end
        as processors were waited for."""
        rows = self.savings.rows
        if self.workers_may_lose:
            rows = tuple(row for row in rows if row.change != Change.DATA_WAIT)
        if self.is_contended:
            rows = tuple(replace(row, low_ns=self.certain_share * row.low_ns) for row in rows)
        share = self.waiting_share
        if share is not None:
            rows = tuple(
                _less(row, share) if row.change == Change.DATA_WAIT else row for row in rows
            )
        return replace(self.savings, rows=rows)

    @cached_property
    def waiting_share(self) -> float | None:
        """The part of the time in "data" in which the loop waits for workers; None where it has
        none, or that is unknown."""
        has_workers = bool(self._run.program_facts.loader_workers)
        return sampled_time.waiting_share(self._run, batches.BATCH_PHASE) if has_workers else None

    @cached_property
    def advice(self) -> list[Finding]:
        """The changes to make, by the middle of what they save."""
        return advice.advice(self._run, self._savings_to_advise, self.time_budget, self.premises)

    @cached_property
    def doubts(self) -> list[Finding]:
        """The changes that may be worth it or not, because the run can't tell; what may save most
        first."""
        return advice.doubts(self._run, self._savings_to_advise, self.premises)


def _less(saving: ReplayedSaving, share: float) -> ReplayedSaving:
    """Return the saving of a change that helps with so much of the time only."""
    low_ns, likely_ns, high_ns = (
        share * ns for ns in (saving.low_ns, saving.likely_ns, saving.high_ns)
    )
    return replace(saving, low_ns=low_ns, likely_ns=likely_ns, high_ns=high_ns)
