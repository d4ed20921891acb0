# SPDX-License-Identifier: Apache-2.0
"""The section on steps: how long they take, and how much of that phases account for."""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import outside_ns, startup_ns
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class StepTimes:
    """The steps that ended.

    Attributes:
        count: how many that ran to their end; of these are all other numbers here.
        cut_short: how many an exception, a break or the end of their loader cut short. If these
            can't be told from the others any more, `count` counts them too.
        p50_ns, p95_ns: of `quantile_steps` steps: those whose spans are all in the history.
        profiled: how many further steps the profiler slowed, which are left out of everything here.
        profiled_mean_ns: their mean.
        phases_ns: of `total_ns`, what phases account for.
        unattributed_ns: the rest; unknown where phases account for more than all.
        crossing_spans: spans that outlasted their step, of which only the part in steps counts.
            Unknown where the history is not whole: then `phases_ns` is a sum of self times.
        lost_spans: spans that are missing from the history for another reason than their age.
        lost_are_located: whether it is known which steps lack spans.
        in_a_row: whether the quantiles are of the longest row of steps that lack no spans.
        startup_ns: from the begin of the recording to that of the first step.
        outside_ns: the time outside steps.
        steps_per_second: of the time in steps.
        samples_per_second: of the time in those `sampled` steps whose samples are known.
        optimizer_seen: false: each step ends with a backward pass.
    """

    count: int
    cut_short: int
    total_ns: int
    mean_ns: float
    p50_ns: int | None
    p95_ns: int | None
    quantile_steps: int
    profiled: int
    profiled_mean_ns: float | None
    phases_ns: int
    unattributed_ns: int | None
    crossing_spans: int | None
    lost_spans: int
    lost_are_located: bool
    in_a_row: bool
    startup_ns: int | None
    outside_ns: int
    steps_per_second: float | None
    samples_per_second: float | None
    sampled: int
    optimizer_seen: bool | None


def steps(run: Run) -> StepTimes | None:
    """None where no step ended."""
    found, profiled = analysis.of(run), run.profiled_totals
    totals = found.step_totals
    if not totals.count:
        return None
    inside, quantiles, losses = found.attribution, found.step_quantiles, found.span_losses
    p50_ns, p95_ns = quantiles.duration_ns or (None, None)
    total_ns = totals.duration.total_ns
    return StepTimes(
        count=totals.count,
        cut_short=run.step_totals.count - run.step_totals.complete,
        total_ns=total_ns,
        mean_ns=totals.duration.mean_ns,
        p50_ns=p50_ns,
        p95_ns=p95_ns,
        quantile_steps=quantiles.steps,
        profiled=profiled.count,
        profiled_mean_ns=profiled.duration.mean_ns if profiled.count else None,
        phases_ns=inside.phases_ns,
        unattributed_ns=inside.unattributed_ns,
        crossing_spans=inside.crossing,
        lost_spans=losses.spans,
        lost_are_located=losses.are_located,
        in_a_row=bool(losses.lacking.any()),
        startup_ns=startup_ns(run),
        outside_ns=outside_ns(run),
        steps_per_second=totals.steps_per_second,
        samples_per_second=totals.samples_per_second,
        sampled=totals.sampled,
        optimizer_seen=run.environment.get("optimizer_seen"),
    )
