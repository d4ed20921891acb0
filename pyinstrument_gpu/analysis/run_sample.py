# SPDX-License-Identifier: Apache-2.0
"""A run as one observation: its times per step without the warm-up, where they went, and the last
values of its metrics."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis import of
from pyinstrument_gpu.analysis.contention import step_waits_ns
from pyinstrument_gpu.analysis.excess import NOT_LOOKED_AT
from pyinstrument_gpu.analysis.inference import difference_interval
from pyinstrument_gpu.analysis.step_times import longest_row, were_profiled
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of
from pyinstrument_gpu.core.gpu_readings import device_and_quantity
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name, span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_values import TOKENS, WITHOUT_PADDING, values_of_steps

OUTSIDE_PHASES = "outside phases"
"""What no phase accounts for, inside steps or outside."""
_BATCH = 5
_UNDISTURBED = 0.02
"""So many calls take less than the time that is called undisturbed. The shortest alone may be of
another kind, and with several programs for each processor, few calls are undisturbed."""
_FEWEST_CALLS = 10
Observation: TypeAlias = Run | Sequence[Run]
"""What is one observation: a run, or the runs of the ranks of a job, which depend on each other."""
FAMILY_CONFIDENCE = 0.95
"""The confidence with which no metric at all is reported to differ where none does."""
_NO_RESULTS = ("count",)
"""How much was counted, and not how training went."""
_OF_STEPS = "step/"
"""What the names of numbers begin with that each step has; they are no results either."""


@dataclass(frozen=True)
class Outside:
    """An outermost phase outside of steps, with all that it holds, as means per step."""

    calls: float
    total_ns: float


@dataclass(frozen=True)
class RunSample:
    """A sample of the steps of a run and what came between them, as means per step.

    Attributes:
        is_end_known: whether it is known when the device was done with them.
        elapsed_ns: from the begin of the first of the steps to that of the step after the last of
            them, or, where that was the last one, to the end of the last work on the host; from and
            to where a device is known to be done with the steps before, and with these.
        wait_ns: for how long their thread waited for a processor; None unknown.
        samples_per_step, tokens_per_step: None when not all are known.
        real_tokens_per_step: tokens without padding, likewise.
        phase_ns: self time by path, on the step's own thread; what no phase accounts for is
            `OUTSIDE_PHASES`. They add up to `step_ns`.
        outside_ns: the same of what is outside of steps: validation, checkpoints, gaps. They add up
            to `elapsed_ns - step_ns`.
        outside: the outermost phases outside of steps, by name.
        slow_ns: what slow ones of these steps took longer than their kind.
        cause_ns: by how much causes have made them slower, by their words.
    """

    steps: int
    is_end_known: bool
    elapsed_ns: float
    step_ns: float
    wait_ns: float | None
    samples_per_step: float | None
    tokens_per_step: float | None
    real_tokens_per_step: float | None
    phase_ns: Mapping[str, float]
    outside_ns: Mapping[str, float]
    outside: Mapping[str, Outside]
    slow_ns: float
    cause_ns: Mapping[str, float]

    def scaled(self, by: float) -> RunSample:
        """Return the sample with all of its times multiplied."""

        def scaled(times_ns: Mapping[str, float]) -> dict[str, float]:
            return {key: time_ns * by for key, time_ns in times_ns.items()}

        return replace(
            self,
            elapsed_ns=self.elapsed_ns * by,
            step_ns=self.step_ns * by,
            wait_ns=None if self.wait_ns is None else self.wait_ns * by,
            outside={k: Outside(one.calls, one.total_ns * by) for k, one in self.outside.items()},
            phase_ns=scaled(self.phase_ns),
            outside_ns=scaled(self.outside_ns),
            slow_ns=self.slow_ns * by,
            cause_ns=scaled(self.cause_ns),
        )


def ranks_of(one: Observation) -> tuple[Run, ...]:
    """The runs that are one observation."""
    return (one,) if isinstance(one, Run) else tuple(one)


def warmup_steps(durations_ns: NDArray[np.int64]) -> int:
    """Return how many of the first steps to omit, by the rule MSER-5: as many as make the standard
    error of the mean of the rest the smallest, in units of five, at most half of the steps.

    White, Cobb, Spratt: A comparison of five steady-state truncation heuristics for simulation
    (2000).
    """
    batches = len(durations_ns) // _BATCH
    if batches < 4:
        return min(1, max(len(durations_ns) - 1, 0))
    means = durations_ns[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    errors = [means[cut:].var() / (batches - cut) for cut in range(batches // 2 + 1)]
    return _BATCH * int(np.argmin(errors))


def run_samples(observations: Sequence[Observation], undisturbed: bool = False) -> list[RunSample]:
    """Return the observations over the same steps: what all of them have done from the end of the
    longest warm-up to the end of the shortest run. A drift that they share then cancels. If steps
    were profiled in one of them, these are left out: what counts is the longest stretch of steps
    that were profiled in none. Where a device was timed in some of the steps only, from and to
    steps of which it is known when the device was done with them.

    A job takes as long as the rank that takes longest; of its phases each takes as long as on the
    median rank.

    Args:
        undisturbed: whether calls of a phase, and what is left of steps, count as long as the
            fastest fiftieth of them takes at most. Where other programs keep all processors busy,
            the rest tells of them; what is rarer than steps and was called fewer than ten times
            does not count at all.

    Raises:
        ValueError: a run has no complete step, or no time passes in its steps; the ranks of a job
            have no step in common.
    """
    of_ranks = [ranks_of(one) for one in observations]
    steps = [
        _common_steps(ranks, f"run {number} of {len(of_ranks)}")
        for number, ranks in enumerate(of_ranks, 1)
    ]
    runs = [run for ranks in of_ranks for run in ranks]
    of_runs = [of_run for of_ranks_steps in steps for of_run in of_ranks_steps]
    count = min(map(len, of_runs))
    row = _never_profiled(runs, of_runs, count)
    durations_ns = [durations_ns_of(of_run)[row] for of_run in of_runs]
    begin = row.start + max(map(warmup_steps, durations_ns))
    samples = [
        _sample(ranks, [of_run[: row.stop] for of_run in of_ranks_steps], begin, undisturbed)
        for ranks, of_ranks_steps in zip(of_ranks, steps, strict=True)
    ]
    for number, sample in enumerate(samples):
        if sample.elapsed_ns <= 0:
            raise ValueError(
                f"in run {number + 1} of {len(samples)} no time passes from step to step"
            )
    return samples


def _never_profiled(runs: Sequence[Run], steps: Sequence[NDArray[np.void]], count: int) -> slice:
    """Return the longest stretch of the first `count` steps that no run profiled."""
    profiled = np.zeros(count, dtype=bool)
    for run, of_run in zip(runs, steps, strict=True):
        profiled |= were_profiled(run, of_run["index"][:count])
    # Between the step before and the first profiled one, the profiler starts.
    profiled[:-1] |= profiled[1:].copy()
    row = longest_row(~profiled)
    return row if row.stop else slice(0, count)


def _common_steps(ranks: Sequence[Run], name: str) -> list[NDArray[np.void]]:
    """The complete steps of each rank that all of them have."""
    steps = [run.steps.closed[run.steps.closed["complete"]] for run in ranks]
    if not all(map(len, steps)):
        raise ValueError(f"{name} has no complete step")
    if len(steps) > 1:
        common = functools.reduce(np.intersect1d, (of_run["index"] for of_run in steps))
        if not len(common):
            raise ValueError(f"the ranks of {name} have no complete step in common")
        steps = [of_run[np.isin(of_run["index"], common)] for of_run in steps]
    return steps


def _sample(
    ranks: Sequence[Run], steps: Sequence[NDArray[np.void]], begin: int, undisturbed: bool
) -> RunSample:
    known = np.logical_and.reduce(list(map(_device_known, ranks, steps)))
    end = len(known)
    begins = begin + np.flatnonzero(np.append(True, known)[begin:end])
    ends = begin + 1 + np.flatnonzero(known[begin:])
    is_known = bool(len(begins) and len(ends) and 2 * (ends[-1] - begins[0]) > end - begin)
    if is_known:
        begin, end = int(begins[0]), int(ends[-1])
    samples = [
        _sample_of_rank(run, of_run[begin:end], is_known, undisturbed)
        for run, of_run in zip(ranks, steps, strict=True)
    ]
    return samples[0] if len(samples) == 1 else _together(samples)


def _together(ranks: Sequence[RunSample]) -> RunSample:
    """Return the sample of a job. Time that its ranks' phases don't cover is its rest."""
    elapsed_ns = max(rank.elapsed_ns for rank in ranks)
    step_ns = max(rank.step_ns for rank in ranks)
    outside: dict[str, Outside] = {}
    for rank in ranks:
        for name, found in rank.outside.items():
            # Also what one rank does alone, a checkpoint for example, keeps all of them.
            if name not in outside or found.total_ns > outside[name].total_ns:
                outside[name] = found
    return RunSample(
        steps=ranks[0].steps,
        is_end_known=all(rank.is_end_known for rank in ranks),
        elapsed_ns=elapsed_ns,
        step_ns=step_ns,
        wait_ns=max((rank.wait_ns for rank in ranks if rank.wait_ns is not None), default=None),
        samples_per_step=_sum(rank.samples_per_step for rank in ranks),
        tokens_per_step=_sum(rank.tokens_per_step for rank in ranks),
        real_tokens_per_step=_sum(rank.real_tokens_per_step for rank in ranks),
        phase_ns=_medians([rank.phase_ns for rank in ranks], step_ns),
        outside_ns=_medians([rank.outside_ns for rank in ranks], elapsed_ns - step_ns),
        outside=outside,
        slow_ns=max(rank.slow_ns for rank in ranks),
        cause_ns={
            cause: max(rank.cause_ns[cause] for rank in ranks)
            for cause in ranks[0].cause_ns
            if all(cause in rank.cause_ns for rank in ranks)
        },
    )


def _sum(amounts: Iterable[float | None]) -> float | None:
    found = [*amounts]
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _medians(times_ns: Sequence[Mapping[str, float]], whole_ns: float) -> dict[str, float]:
    """Return the median over ranks by path; one that a rank does not have counts as 0 there."""
    paths = dict.fromkeys(path for of_rank in times_ns for path in of_rank)
    medians = {
        path: statistics.median(of_rank.get(path, 0.0) for of_rank in times_ns)
        for path in paths
        if path != OUTSIDE_PHASES
    }
    return {**medians, OUTSIDE_PHASES: whole_ns - sum(medians.values())}


def _sample_of_rank(
    run: Run, steps: NDArray[np.void], is_known: bool, undisturbed: bool
) -> RunSample:
    step_ns = float(durations_ns_of(steps).mean())
    waits_ns = step_waits_ns(run, steps)
    end_ns = _end_ns(run, steps)
    begin_ns = int(steps["begin_ns"][0])
    # To the end of the device's work, so from the end of what it was still behind with.
    earlier = (run.spans["step"] >= 0) & (run.spans["step"] < steps["index"][0])
    begin_ns = max(begin_ns, int(run.spans["device_end_ns"][earlier].max(initial=-1)))
    elapsed_ns = float(end_ns - begin_ns) / len(steps)
    spans, scopes = run.spans, span_scopes(run.spans)
    inside = (scopes == Scope.STEP) & np.isin(spans["step"], steps["index"])
    begins_ns = spans["host_begin_ns"]
    outside = (scopes == Scope.OUTSIDE) & np.isin(spans["thread"], distinct(steps["thread"]))
    # A phase around steps (an epoch) is neither inside nor outside of them.
    around = outside & _holds_a_step(run)
    outside &= ~around & (begins_ns >= steps["begin_ns"][0]) & (begins_ns < end_ns)
    parents = run.path_parents[spans["path"]]
    is_outermost = (parents < 0) | np.isin(parents, distinct(spans["path"][around]))
    sample = RunSample(
        steps=len(steps),
        is_end_known=is_known,
        elapsed_ns=elapsed_ns,
        step_ns=step_ns,
        wait_ns=None if np.isnan(waits_ns).all() else float(np.nanmean(waits_ns)),
        samples_per_step=_known_mean(steps["samples"]),
        tokens_per_step=_known_mean(values_of_steps(run, TOKENS, steps)),
        real_tokens_per_step=_known_mean(values_of_steps(run, WITHOUT_PADDING, steps)),
        phase_ns=_phase_ns(run, inside, len(steps), step_ns),
        outside_ns=_phase_ns(run, outside, len(steps), elapsed_ns - step_ns),
        outside=_outermost(run, outside & is_outermost, len(steps)),
        slow_ns=_slow_ns(run, steps),
        cause_ns=_cause_ns(run, steps),
    )
    return _undisturbed(run, steps, end_ns, inside, outside, sample) if undisturbed else sample


def _undisturbed(
    run: Run,
    steps: NDArray[np.void],
    end_ns: int,
    inside: NDArray[np.bool_],
    outside: NDArray[np.bool_],
    sample: RunSample,
) -> RunSample:
    """Return the sample with the times that are undisturbed."""

    def per_step_ns(times_ns: NDArray[Any]) -> float:
        if len(times_ns) < min(_FEWEST_CALLS, len(steps)):
            return 0.0
        each_ns = max(float(np.quantile(times_ns, _UNDISTURBED)), 0.0)
        return each_ns * len(times_ns) / len(steps)

    self_ns, paths = run.span_self_ns, run.spans["path"]
    inside, outside = inside & (self_ns >= 0), outside & (self_ns >= 0)
    of_paths = [
        {run.paths[i]: per_step_ns(self_ns[chosen & (paths == i)]) for i in distinct(paths[chosen])}
        for chosen in (inside, outside)
    ]
    chosen = inside | outside
    places = steps["begin_ns"].searchsorted(run.spans["host_begin_ns"][chosen], "right") - 1
    rests_ns = np.diff(steps["begin_ns"], append=end_ns)
    rests_ns = rests_ns - np.bincount(np.maximum(places, 0), self_ns[chosen], len(steps))
    phase_ns, outside_ns = {**of_paths[0], OUTSIDE_PHASES: per_step_ns(rests_ns)}, of_paths[1]
    step_ns = sum(phase_ns.values())
    elapsed_ns = step_ns + sum(outside_ns.values())
    return replace(
        sample,
        elapsed_ns=elapsed_ns,
        step_ns=step_ns,
        wait_ns=0.0,
        phase_ns=phase_ns,
        outside_ns=outside_ns,
        slow_ns=0.0,
        cause_ns={},
    )


def _known_mean(values: NDArray[np.float64]) -> float | None:
    return None if np.isnan(values).any() else float(values.mean())


def _slow_ns(run: Run, steps: NDArray[np.void]) -> float:
    found = of(run).excess
    chosen = np.isin(found.steps["index"], steps["index"])
    return float(found.excess_ns[chosen].sum()) / len(steps)


def _cause_ns(run: Run, steps: NDArray[np.void]) -> dict[str, float]:
    found = of(run).excess
    chosen = np.isin(found.steps["index"], steps["index"])
    return {
        one.words: float(times_ns[chosen].sum()) / len(steps)
        for one, times_ns in zip(found.causes, found.parts_ns, strict=True)
        if one.name != NOT_LOOKED_AT
    }


def _holds_a_step(run: Run) -> NDArray[np.bool_]:
    steps, spans = run.steps.closed, run.spans
    first = np.searchsorted(np.sort(steps["begin_ns"]), spans["host_begin_ns"], "left")
    behind = np.searchsorted(np.sort(steps["end_ns"]), spans["host_end_ns"], "right")
    holds: NDArray[np.bool_] = behind > first
    return holds


def _end_ns(run: Run, steps: NDArray[np.void]) -> int:
    closed = run.steps.closed
    later = closed["begin_ns"][closed["begin_ns"] > steps["begin_ns"][-1]]
    if len(later):
        of_these = (run.spans["step"] >= 0) & (run.spans["step"] <= steps["index"][-1])
        device_ns = run.spans["device_end_ns"][of_these].max(initial=-1)
        return max(int(later.min()), int(device_ns))
    of_thread = np.isin(run.spans["thread"], distinct(steps["thread"]))
    host_ns = run.spans["host_end_ns"][of_thread]
    # A wait for the device behind the last step need not be in a phase.
    waits = run.syncs.events[np.isin(run.syncs.events["thread"], distinct(steps["thread"]))]
    waits_ns = waits["begin_ns"] + np.maximum(waits["duration_ns"], 0)
    ends_ns = (steps["end_ns"], host_ns, waits_ns, run.spans["device_end_ns"])
    return int(max(ends.max(initial=-1) for ends in ends_ns))


def _device_known(run: Run, steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return for each of the first steps whether it is known when the device was done with it: it
    was timed there, the host waited for it in that step or behind it, or there is none."""
    is_timed = run.span_device_ns >= 0
    waits = run.syncs.events[run.syncs.events["duration_ns"] >= 0]
    if not (is_timed.any() or len(waits) or run.environment.get("gpus")):
        return np.ones(len(steps), dtype=bool)
    known = np.isin(steps["index"], distinct(run.spans["step"][is_timed]))
    waits_ns = np.sort(waits["begin_ns"])
    until_ns = np.append(steps["begin_ns"][1:], np.iinfo(np.int64).max)
    known |= np.searchsorted(waits_ns, until_ns) > np.searchsorted(waits_ns, steps["begin_ns"])
    return known


def _phase_ns(run: Run, chosen: NDArray[np.bool_], steps: int, whole_ns: float) -> dict[str, float]:
    chosen = chosen & (run.span_self_ns >= 0)
    sums_ns = np.bincount(
        run.spans["path"][chosen], run.span_self_ns[chosen], minlength=len(run.paths)
    )
    means_ns = {
        path: float(sum_ns) / steps
        for path, sum_ns in zip(run.paths, sums_ns, strict=True)
        if sum_ns
    }
    means_ns[OUTSIDE_PHASES] = whole_ns - sum(means_ns.values())
    return means_ns


def _outermost(run: Run, chosen: NDArray[np.bool_], steps: int) -> dict[str, Outside]:
    spans = run.spans[chosen]
    durations_ns = np.maximum(durations_ns_of(spans, "host_"), 0)
    counts = np.bincount(spans["path"], minlength=len(run.paths))
    sums_ns = np.bincount(spans["path"], durations_ns, minlength=len(run.paths))
    return {
        path: Outside(float(count) / steps, float(sum_ns) / steps)
        for path, count, sum_ns in zip(run.paths, counts, sums_ns, strict=True)
        if count
    }


@dataclass(frozen=True)
class FinalValue:
    """A metric's last value in each run of both sides.

    `interval` is that of the difference of the means, after minus before; None where a side is a
    single run, or a value is not finite.
    """

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: tuple[float, float] | None

    @property
    def before_mean(self) -> float:
        return sum(self.before) / len(self.before)

    @property
    def after_mean(self) -> float:
        return sum(self.after) / len(self.after)

    @property
    def differs(self) -> bool | None:
        """Whether the sides differ beyond the spread of runs; None where that is unknown. A side
        that alone has values which are not finite differs."""
        wild = [not all(map(math.isfinite, side)) for side in (self.before, self.after)]
        if any(wild):
            return True if wild[0] != wild[1] else None
        if self.interval is None:
            return None
        low, high = self.interval
        return low > 0 or high < 0


def final_values(before: Sequence[Run], after: Sequence[Run]) -> tuple[FinalValue, ...]:
    """The metrics that every run has, in the order of the first.

    Each difference of means has Welch's interval. The more metrics, the wider the intervals
    (Bonferroni): `FAMILY_CONFIDENCE` is that of all of them together.

    Raises:
        MissingDependencyError: there are several runs a side, and scipy is not installed.
    """
    lasts = [_last_values(run) for run in (*before, *after)]
    names = [name for name in lasts[0] if all(name in last for last in lasts)]
    found = []
    for name in names:
        values = [last[name] for last in lasts]
        first, second = values[: len(before)], values[len(before) :]
        interval = None
        if np.isfinite(values).all():
            confidence = 1 - (1 - FAMILY_CONFIDENCE) / len(names)
            interval = difference_interval(np.array(first), np.array(second), confidence)
        found.append(FinalValue(name, tuple(first), tuple(second), interval))
    return tuple(found)


def _last_values(run: Run) -> Mapping[str, float]:
    values = {}
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        is_result = not name.startswith(_OF_STEPS) and name.rpartition("/")[2] not in _NO_RESULTS
        is_result &= device_and_quantity(name) is None
        if is_result:
            values[name] = float(readings["value"][-1])
    return values
