# SPDX-License-Identifier: Apache-2.0
"""Did a change make training faster or slower, and did time only move from phase to phase?

Each run is one observation; docs/compare.md says why.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.contention import CONTENTION, contention, waited_for_processor
from pyinstrument_gpu.analysis.differences import Differences, differences
from pyinstrument_gpu.analysis.inference import (
    Order,
    difference_interval,
    paired,
    t_quantile,
    to_one_level,
    welch,
)
from pyinstrument_gpu.analysis.memory_change import MemoryChange, memory_change
from pyinstrument_gpu.analysis.run_sample import (
    FinalValue,
    Observation,
    Outside,
    RunSample,
    final_values,
    ranks_of,
    run_samples,
)
from pyinstrument_gpu.core.job_membership import different_ranks, not_one_job, same_run_twice
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import ranks_text

CONFIDENCE = 0.95
POWER = 0.8
DEFAULT_MARGIN_PERCENT = 1.0
MIN_RUNS = 6
"""Of both sides together, for a verdict. A program that runs in one of two modes, by chance, has
all runs of one side in one mode and all of the other side in the other in 2 * 0.5**n of the cases.
That is below 5 % from six on."""
_RECORD_IN_TURN = "Record in turn, in an order that changes at random, as `gate` does"
_LONGEST = 20.0
"""Of logarithms of ratios: what is beyond is as good as infinite, and yet a number."""
_UNEVEN_CALLS = 0.1
_UNEVEN_SHARE = 0.001
_NEVER = Outside(0.0, 0.0)


class Verdict(enum.Enum):
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    """The difference is within the margin, with confidence."""
    AMBIGUOUS = "AMBIGUOUS"
    """They show neither a difference nor that there is none."""


@dataclass(frozen=True)
class _Change:
    """A time of both sides, and whether it differs beyond the noise.

    Attributes:
        interval_ns: of the change; all intervals of a comparison hold together at its confidence.
            None when it is not known.
    """

    before_ns: float
    after_ns: float
    interval_ns: tuple[float, float] | None

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns

    @property
    def is_significant(self) -> bool:
        return self.interval_ns is not None and (self.interval_ns[0] > 0 or self.interval_ns[1] < 0)


@dataclass(frozen=True)
class PhaseChange(_Change):
    """The mean self time per step of one phase on both sides; 0 where it did not occur.

    Attributes:
        is_outside: what happened outside of steps.
    """

    path: str
    is_outside: bool


@dataclass(frozen=True)
class CauseChange(_Change):
    """The change of the time by which a cause has made slow steps slower, per step of all.

    Attributes:
        cause: in words.
    """

    cause: str


@dataclass(frozen=True)
class TimeChange:
    """A time per step of both sides.

    Attributes:
        before_ns, after_ns: its mean in each run.
        change: relative change of it, per token or sample where the comparison is; -0.06 is 6 %
            less.
        interval: of that change, at the confidence of the comparison; None when it is not known.
        smallest_effect: the smallest relative change that such runs show in `POWER` of the cases;
            None when it is not known.
        verdict: on that time alone.
    """

    before_ns: tuple[float, ...]
    after_ns: tuple[float, ...]
    change: float
    interval: tuple[float, float] | None
    smallest_effect: float | None
    verdict: Verdict

    @property
    def before_mean_ns(self) -> float:
        return fmean(self.before_ns)

    @property
    def after_mean_ns(self) -> float:
        return fmean(self.after_ns)


@dataclass(frozen=True)
class Uneven:
    """A phase outside of steps that one side's loop runs more often: calls per step."""

    path: str
    before_calls: float
    after_calls: float


@dataclass(frozen=True)
class Comparison:
    """Two sides of runs.

    Attributes:
        unit: what the changes are of: time per "token" where the tokens are known, else per
            "sample" where the samples are, else per "step".
        margin: relative change up to which times are called the same.
        confidence: of the intervals.
        elapsed: all time from the first step that was compared to the end of the last work,
            divided by the steps. The verdict is on this.
        inside: the time inside steps.
        uneven: phases outside of steps that one side's loop runs more often.
        without_uneven: elapsed time without these; None when there are none.
        before_rate, after_rate: mean samples per second of elapsed time; None when not known.
        before_tokens_rate, after_tokens_rate: the same of tokens.
        is_without_padding: whether tokens are counted without padding, as where all runs know that.
        price_per_hour: of all that a run uses; None where nothing was given.
        before_wait, after_wait: for which share of the time of steps their thread waited for a
            processor, on average over runs; None when not known.
        other_processors: how many of their processors other processes used meanwhile, in the run in
            which they used most; None when not known.
        steps: number of steps of each run that were compared.
        phases: the largest change first; the changes add up to that of the elapsed time.
        before_slow_ns, after_slow_ns: what slow steps took longer than their kind, per step of all,
            on average over runs.
        causes: of that, those that were looked for in all runs and found in one; the largest change
            first. Their time is a part of that of the phases.
        finals: the last values of the metrics that all runs have.
        memory: peaks of memory; None when not known of all runs.
        differences: what else is not the same on both sides.
        warnings: sentences on why the sides may not be comparable; first what decides on a verdict.
    """

    unit: str
    margin: float
    confidence: float
    elapsed: TimeChange
    inside: TimeChange
    uneven: tuple[Uneven, ...]
    without_uneven: TimeChange | None
    before_rate: float | None
    after_rate: float | None
    before_tokens_rate: float | None
    after_tokens_rate: float | None
    is_without_padding: bool
    price_per_hour: float | None
    before_wait: float | None
    after_wait: float | None
    other_processors: float | None
    steps: int
    phases: tuple[PhaseChange, ...]
    before_slow_ns: float
    after_slow_ns: float
    causes: tuple[CauseChange, ...]
    finals: tuple[FinalValue, ...]
    memory: MemoryChange | None
    differences: Differences
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        return self.elapsed.verdict

    @property
    def costs(self) -> tuple[float, float] | None:
        """The cost of a million units before and after; None where that is not known."""
        if self.price_per_hour is None:
            return None
        rates: tuple[float | None, float | None] = {
            "token": (self.before_tokens_rate, self.after_tokens_rate),
            "sample": (self.before_rate, self.after_rate),
            "step": (1e9 / self.elapsed.before_mean_ns, 1e9 / self.elapsed.after_mean_ns),
        }[self.unit]
        before, after = (
            self.price_per_hour / 3600 * 1e6 / rate if rate else None for rate in rates
        )
        return None if before is None or after is None else (before, after)

    @property
    def is_moved_out(self) -> bool:
        """True if steps became faster or slower, and the elapsed time did not: what left the steps
        happens outside of them, or the other way round."""
        return (
            self.inside.verdict in (Verdict.FASTER, Verdict.SLOWER)
            and self.verdict is not self.inside.verdict
            and self.elapsed.interval is not None
            and not self.elapsed.interval[0] <= self._inside_share <= self.elapsed.interval[1]
        )

    @property
    def is_noise_known(self) -> bool:
        """True if changes of phases can be told from the noise between runs."""
        return any(phase.interval_ns is not None for phase in self.phases)

    @property
    def left_ns(self) -> float:
        """Time per step that went out of phases which became shorter beyond noise. None is named
        where the comparison shows nothing."""
        return -sum(change for change in self._significant_ns if change < 0)

    @property
    def arrived_ns(self) -> float:
        """Time per step that came into phases which became longer beyond noise."""
        return sum(change for change in self._significant_ns if change > 0)

    @property
    def moved_ns(self) -> float:
        """Time per step that only moved from one phase to another."""
        return min(self.left_ns, self.arrived_ns)

    @property
    def _significant_ns(self) -> list[float]:
        return [phase.change_ns for phase in self.significant_phases]

    @property
    def significant_phases(self) -> tuple[PhaseChange, ...]:
        if self.verdict is Verdict.AMBIGUOUS and not self.is_moved_out:
            return ()
        return tuple(phase for phase in self.phases if phase.is_significant)

    @property
    def _inside_share(self) -> float:
        """The change of the elapsed time had nothing else changed than the steps."""
        return (self.inside.after_mean_ns - self.inside.before_mean_ns) / (
            self.elapsed.before_mean_ns
        )


def compare(
    before: Sequence[Observation],
    after: Sequence[Observation],
    *,
    noise_percent: float | None = None,
    margin_percent: float = DEFAULT_MARGIN_PERCENT,
    confidence: float = CONFIDENCE,
    price_per_hour: float | None = None,
    in_pairs: bool = False,
    undisturbed: bool = False,
) -> Comparison:
    """Compare the runs without a change with those that have it.

    Args:
        before, after: runs; for jobs of several ranks, the runs of the ranks of each together.
        noise_percent: a floor for the standard deviation between runs of one side; fewer than
            `MIN_RUNS` runs need it for a verdict.
        margin_percent: change up to which times are called the same.
        confidence: of the intervals, but for those of the final values of metrics. More than the
            default where the same runs are looked at more than once (`looks`).
        price_per_hour: what all that a run uses costs, in any currency.
        in_pairs: whether the runs of the same number on both sides were made one beside the other,
            in random order. Then only the changes within pairs count, and all times are brought to
            the level of all pairs: what both runs of a pair have in common, such as a drift or
            other processes that stay for a while, is no noise.
        undisturbed: whether `elapsed` and the phases are what calls take undisturbed
            (`run_samples`): for runs that were made at once.

    Raises:
        ValueError: a side has no run, a run has no complete step, no time passes in its steps, one
            is given twice, or they are of different ranks, or of jobs of which not all ranks are
            there.
        MissingDependencyError: scipy is not installed.
    """
    if not before or not after:
        raise ValueError("a comparison needs at least one run on each side")
    _check_separate(before, after)
    samples = run_samples([*before, *after], undisturbed)
    if in_pairs:
        if len(before) != len(after):
            raise ValueError(f"{len(before)} and {len(after)} runs can't be pairs")
        elapsed_ns = np.array([sample.elapsed_ns for sample in samples])
        scales = to_one_level(*np.split(elapsed_ns, 2)).tolist()
        samples = [one.scaled(by) for one, by in zip(samples, 2 * scales, strict=True)]
    sides = samples[: len(before)], samples[len(before) :]
    is_without_padding = all(s.real_tokens_per_step for s in samples)
    units: dict[str, Callable[[RunSample], float | None]] = {
        "token": lambda s: s.real_tokens_per_step if is_without_padding else s.tokens_per_step,
        "sample": lambda s: s.samples_per_step,
        "step": lambda s: 1,
    }
    # One of which there is none tells nothing either.
    unit = next(one for one, per_step in units.items() if all(map(per_step, samples)))
    # Of the ranks of a job the first stands for the rest where one is enough.
    leads = [[ranks_of(one)[0] for one in side] for side in (before, after)]
    order = Order(*leads)
    margin = margin_percent / 100

    is_end_known = all(s.is_end_known for s in samples)
    machine = _Machine.of([*_runs(before), *_runs(after)], *sides)

    def change_of(time_ns: Callable[[RunSample], float]) -> TimeChange:
        before_ns, after_ns = (tuple(map(time_ns, side)) for side in sides)
        divisors = [np.array([units[unit](s) or 1 for s in side], np.float64) for side in sides]
        times = [np.array(before_ns) / divisors[0], np.array(after_ns) / divisors[1]]
        change, interval, smallest = _relative(times, noise_percent, order, confidence, in_pairs)
        if machine.is_contended and not in_pairs:
            # Other processes may not have been the same on both sides.
            waits_ns = [np.array([s.wait_ns or 0.0 for s in side]) for side in sides]
            without = [t - w / d for t, w, d in zip(times, waits_ns, divisors, strict=True)]
            also = _relative(without, noise_percent, order, confidence, in_pairs)
            interval, smallest = _both(interval, also[1]), _most(smallest, also[2])
        if not is_end_known:
            interval = smallest = None
        verdict = _verdict(interval, margin)
        return TimeChange(before_ns, after_ns, change, interval, smallest, verdict)

    uneven = _uneven(*sides)
    left_out = {phase.path for phase in uneven}

    def without_uneven_ns(sample: RunSample) -> float:
        return sample.elapsed_ns - sum(
            phase.total_ns for path, phase in sample.outside.items() if path in left_out
        )

    rates, token_rates = (
        [_rate(side, units[one]) for side in sides] for one in ("sample", "token")
    )
    finals = final_values(*leads)
    slow_ns = [fmean(sample.slow_ns for sample in side) for side in sides]
    return Comparison(
        unit=unit,
        margin=margin,
        confidence=confidence,
        elapsed=change_of(lambda sample: sample.elapsed_ns),
        inside=change_of(lambda sample: sample.step_ns),
        uneven=uneven,
        without_uneven=change_of(without_uneven_ns) if uneven else None,
        before_rate=rates[0],
        after_rate=rates[1],
        before_tokens_rate=token_rates[0],
        after_tokens_rate=token_rates[1],
        is_without_padding=is_without_padding,
        price_per_hour=price_per_hour,
        before_wait=machine.waits[0],
        after_wait=machine.waits[1],
        other_processors=machine.others,
        steps=samples[0].steps,
        phases=_phase_changes(*sides, confidence, in_pairs),
        before_slow_ns=slow_ns[0],
        after_slow_ns=slow_ns[1],
        causes=_cause_changes(*sides, confidence, in_pairs),
        finals=finals,
        memory=memory_change(_runs(before), _runs(after)),
        differences=differences(_runs(before), _runs(after)),
        warnings=(
            *machine.warnings(in_pairs),
            *_warnings(_runs(before), _runs(after), sides, order, undisturbed),
            *_differing(finals),
        ),
    )


@dataclass(frozen=True)
class _Machine:
    """The effect of other processes on the runs.

    Attributes:
        waits: of both sides, for which share of the time of steps their thread waited for a
            processor; None unknown.
        others: how many of the processors other processes used, in the run in which they used
            most; None unknown.
        processors: those that the runs might use.
        has_many_others: whether they were many in some run.
    """

    waits: tuple[float | None, float | None]
    others: float | None
    processors: int | None
    has_many_others: bool

    @classmethod
    def of(cls, runs: Sequence[Run], *sides: Sequence[RunSample]) -> _Machine:
        found = [one for one in map(contention, runs) if one is not None]
        others = [one.others for one in found if one.others is not None]
        shares = [[s.wait_ns / s.step_ns for s in o if s.wait_ns is not None] for o in sides]
        before, after = (
            fmean(of_side) if len(of_side) == len(side) else None
            for of_side, side in zip(shares, sides, strict=True)
        )
        return cls(
            waits=(before, after),
            others=max(others, default=None),
            processors=next((one.processors for one in found if one.processors), None),
            has_many_others=any(one.has_many_others for one in found),
        )

    @property
    def is_contended(self) -> bool:
        """True if the waits are known, and other processes may be to blame for them."""
        return self.has_many_others and None not in self.waits

    def warnings(self, in_pairs: bool) -> Iterator[str]:
        if not self.has_many_others:
            return
        of_all = f"{self.others:.1f} of {self.processors} processors"
        used = f"{CONTENTION}: other processes used up to {of_all} meanwhile"
        before, after = self.waits
        if in_pairs or before is None or after is None:
            yield f"{used}: the less they use, the smaller the changes that can be shown"
        else:
            yield (
                f"{used}, and {waited_for_processor(before, after)}: the interval is as wide as "
                "these waits allow"
            )


def _both(
    one: tuple[float, float] | None, other: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The interval that holds both."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _most(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def _runs(side: Sequence[Observation]) -> list[Run]:
    """Return all runs of a side, those of all ranks among them."""
    return [run for one in side for run in ranks_of(one)]


def _check_separate(before: Sequence[Observation], after: Sequence[Observation]) -> None:
    """Raise ValueError if the runs are not as many independent observations of the same thing."""
    names = [
        f"run {position} {side}"
        for side, runs in (("before", before), ("after", after))
        for position in range(1, len(runs) + 1)
    ]
    observations = [ranks_of(one) for one in (*before, *after)]
    twice = same_run_twice(
        [run for ranks in observations for run in ranks],
        [name for name, ranks in zip(names, observations, strict=True) for _ in ranks],
    )
    if twice is not None:
        raise ValueError(twice)
    if all(len(ranks) == 1 for ranks in observations):
        different = different_ranks([ranks[0] for ranks in observations], names)
        if different is not None:
            raise ValueError(
                f"{different}: the ranks of a job are one observation together, and do different "
                "work. Give all ranks of each job, or the run of the same rank of each"
            )
        return
    for name, ranks in zip(names, observations, strict=True):
        wrong = not_one_job(ranks, [f"rank {run.environment.get('rank')}" for run in ranks])
        if wrong is not None:
            raise ValueError(f"{name}: {wrong}")
    found = [_which_ranks(ranks) for ranks in observations]
    for name, which in zip(names, found, strict=True):
        if which != found[0]:
            raise ValueError(
                f"{names[0]} is of {_ranks_in_words(found[0])}, and {name} of "
                f"{_ranks_in_words(which)}: give all ranks of each job, or the same of each"
            )


def _which_ranks(ranks: Sequence[Run]) -> frozenset[int] | None:
    """Return the ranks of a job that are there; None where all are, or it is none of a rank."""
    numbers = {run.environment.get("rank", 0) for run in ranks}
    size = max(run.environment.get("world_size", 1) for run in ranks)
    return None if len(numbers) == size else frozenset(numbers)


def _ranks_in_words(ranks: frozenset[int] | None) -> str:
    return "all ranks" if ranks is None else ranks_text(ranks)


def _rate(side: Sequence[RunSample], per_step: Callable[[RunSample], float | None]) -> float | None:
    amounts = [(per_step(s), s.elapsed_ns) for s in side]
    rates = [amount / ns * 1e9 for amount, ns in amounts if amount is not None]
    return fmean(rates) if len(rates) == len(side) else None


def _relative(
    sides: Sequence[NDArray[np.float64]],
    noise_percent: float | None,
    order: Order,
    confidence: float,
    in_pairs: bool,
) -> tuple[float, tuple[float, float] | None, float | None]:
    """The relative change of the mean, its interval, and the smallest effect that shows.

    The interval is one of the logarithm of the ratio: no change is below -100 %, and to be twice as
    slow is as much as to be twice as fast.
    """
    before, after = sides
    if min(before.min(), after.min()) <= 0:
        return float(after.mean()) / (float(before.mean()) or math.inf) - 1, None, None
    logs = np.log(before), np.log(after)
    change = math.log(after.mean() / before.mean())
    if in_pairs:
        change = paired(*logs).mean
    error, freedom = _error(before, after, noise_percent, in_pairs)
    if error is None:
        return math.expm1(change), None, None
    reach, smallest = _reach(error, freedom, confidence)
    low, high = change - reach, change + reach
    if order.is_in_turn is False:
        # A drift would count as a change. So the interval also holds what is left without one.
        without_drift = order.difference(np.concatenate(logs))
        if without_drift is None:
            return math.expm1(change), None, None
        middle, drift_error, drift_freedom = without_drift
        drift_reach, drift_smallest = _reach(max(drift_error, error), drift_freedom, confidence)
        low, high = min(low, middle - drift_reach), max(high, middle + drift_reach)
        smallest = max(smallest, drift_smallest)
    return math.expm1(change), (_as_change(low), _as_change(high)), _as_change(smallest)


def _as_change(log_ratio: float) -> float:
    """Return the relative change to times that are so much longer by their logarithm."""
    return math.expm1(min(log_ratio, _LONGEST))


def _reach(error: float, freedom: float, confidence: float) -> tuple[float, float]:
    """Return how far an interval reaches on each side, and the effect that shows with `POWER`."""
    quantile, power_quantile = (t_quantile(p, freedom) for p in ((1 + confidence) / 2, POWER))
    return quantile * error, (quantile + power_quantile) * error


def _error(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    noise_percent: float | None,
    in_pairs: bool,
) -> tuple[float | None, float]:
    """The standard error of the logarithm of the ratio of the means (None: not known) and the
    degrees of freedom; where they are no pairs, as that of means divided by themselves."""
    if in_pairs:
        error, freedom = paired(np.log(before), np.log(after))[1:]
    else:
        error, freedom = welch(before / before.mean(), after / after.mean())
    if noise_percent is None:
        if len(before) + len(after) < MIN_RUNS:
            error = None
    else:
        floor = noise_percent / 100 * math.sqrt(1 / len(before) + 1 / len(after))
        if error is None or floor > error:
            error, freedom = floor, math.inf
    return error, freedom


def _verdict(interval: tuple[float, float] | None, margin: float) -> Verdict:
    if interval is None:
        return Verdict.AMBIGUOUS
    low, high = interval
    if -margin <= low and high <= margin:
        return Verdict.SAME
    if high < 0:
        return Verdict.FASTER
    return Verdict.SLOWER if low > 0 else Verdict.AMBIGUOUS


def _uneven(*sides: Sequence[RunSample]) -> tuple[Uneven, ...]:
    """Phases outside of steps that one side's loop runs more often, and that matter."""
    paths = dict.fromkeys(path for side in sides for sample in side for path in sample.outside)
    found = []
    for path in paths:
        calls = [fmean(s.outside.get(path, _NEVER).calls for s in side) for side in sides]
        share = max(
            fmean(s.outside.get(path, _NEVER).total_ns / s.elapsed_ns for s in side)
            for side in sides
        )
        differs = abs(calls[1] - calls[0]) > _UNEVEN_CALLS * max(calls)
        if differs and share > _UNEVEN_SHARE:
            found.append(Uneven(path, *calls))
    return tuple(found)


def _phase_changes(
    before: Sequence[RunSample], after: Sequence[RunSample], confidence: float, in_pairs: bool
) -> tuple[PhaseChange, ...]:
    keys = dict.fromkeys(
        (is_outside, path)
        for sample in (*before, *after)
        for is_outside, times_ns in ((False, sample.phase_ns), (True, sample.outside_ns))
        for path in times_ns
    )
    changes = []
    for is_outside, path in keys:
        times = [
            [(s.outside_ns if is_outside else s.phase_ns).get(path, 0.0) for s in side]
            for side in (before, after)
        ]
        found = _difference(times[0], times[1], confidence, len(keys), in_pairs)
        changes.append(PhaseChange(*found, path, is_outside))
    return tuple(sorted(changes, key=lambda change: -abs(change.change_ns)))


def _cause_changes(
    before: Sequence[RunSample], after: Sequence[RunSample], confidence: float, in_pairs: bool
) -> tuple[CauseChange, ...]:
    samples = (*before, *after)
    # Where no step is slow, it does not matter what was looked for.
    slow = [s.cause_ns for s in samples if s.slow_ns]
    names = [name for name in (slow or [{}])[0] if all(name in cause_ns for cause_ns in slow)]
    names = [name for name in names if any(cause_ns[name] for cause_ns in slow)]
    changes = []
    for name in names:
        first, second = ([s.cause_ns.get(name, 0.0) for s in side] for side in (before, after))
        found = _difference(first, second, confidence, len(names), in_pairs)
        changes.append(CauseChange(*found, name))
    return tuple(sorted(changes, key=lambda change: -abs(change.change_ns)))


def _difference(
    before_ns: Sequence[float],
    after_ns: Sequence[float],
    confidence: float,
    among: int,
    in_pairs: bool,
) -> tuple[float, float, tuple[float, float] | None]:
    """The means of both sides, and the interval of their difference, which is one of so many."""
    times = np.array(before_ns), np.array(after_ns)
    interval_ns = None
    if len(before_ns) + len(after_ns) >= MIN_RUNS:
        # Shared among them (Bonferroni).
        interval_ns = difference_interval(*times, 1 - (1 - confidence) / among, in_pairs)
    before_mean_ns, after_mean_ns = (float(side.mean()) for side in times)
    if in_pairs:
        after_mean_ns = before_mean_ns + paired(*times).mean
    return before_mean_ns, after_mean_ns, interval_ns


def _warnings(
    before: Sequence[Run],
    after: Sequence[Run],
    sides: Sequence[Sequence[RunSample]],
    order: Order,
    at_once: bool,
) -> list[str]:
    warnings = []
    if any(not sample.is_end_known for side in sides for sample in side):
        warnings.append(
            "it is not known when the device was done with the steps of some runs, so there is no "
            "verdict: record with device timing, or read a result at the end"
        )
    if order.is_in_turn is False:
        warnings.append(
            "the sides did not take turns: what drifts from run to run (clock rates, temperature, "
            "other programs) looks like a change, so the interval is as wide as the drift allows. "
            f"{_RECORD_IN_TURN}"
        )
    if order.alternates and not at_once:
        warnings.append(
            "each run was followed by one of the other side: an effect on every second run "
            f"looks like a difference between the sides. {_RECORD_IN_TURN}"
        )
    if any(not run.complete for run in (*before, *after)):
        warnings.append("some runs were not recorded to their end")
    if any(len(run.spans) < run.phases_recorded for run in (*before, *after)):
        warnings.append("some history is missing: some time of phases counts as outside phases")
    both = before, after
    facts: dict[str, list[set[Any]]] = {
        "samples per step differ": [{round(s.samples_per_step or 0, 3) for s in o} for o in sides],
        "numbers of steps differ": [{run.steps_ended for run in runs} for runs in both],
    }
    warnings += [
        f"{what}: {' and '.join(', '.join(map(str, sorted(values))) for values in found)}"
        for what, found in facts.items()
        if found[0] != found[1]
    ]
    return warnings


def _differing(finals: Sequence[FinalValue]) -> Iterator[str]:
    for final in finals:
        if final.differs:
            yield (
                f"final {final.name} differs beyond the noise between runs: "
                f"{final.before_mean:.6g} and {final.after_mean:.6g}"
            )


class Slowdown(enum.Enum):
    SLOWER = "SLOWER"
    NOT_SLOWER = "NOT SLOWER"
    UNCLEAR = "UNCLEAR"
    """The runs show neither."""


def slowdown(comparison: Comparison, limit: float) -> Slowdown:
    """Judge the change by where the interval of the elapsed time lies.

    NOT_SLOWER: it does not reach beyond the limit, or beyond the margin of the comparison, if that
    is more: differences as small as the margin are not called any. SLOWER: it lies above the limit
    as a whole, and reaches beyond the margin.

    Args:
        limit: relative change up to which being slower is accepted; 0.05 is 5 %.
    """
    interval = comparison.elapsed.interval
    if interval is None:
        return Slowdown.UNCLEAR
    low, high = interval
    if high <= max(limit, comparison.margin):
        return Slowdown.NOT_SLOWER
    return Slowdown.SLOWER if low > limit else Slowdown.UNCLEAR
