# SPDX-License-Identifier: Apache-2.0
"""Advice on what would have given a job more of its time, each with the range of what it would have
saved, which rests on what this job has measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.startup.aspect import PART_WORDS
from pyinstrument_gpu.goodput.division import Bucket, divided
from pyinstrument_gpu.goodput.life import AttemptTimes, JobLife
from pyinstrument_gpu.parts.words import counted, duration

LEAST_SHARE = 0.01
"""Of the wall time, what advice must be able to save."""
_TAIL = 0.025  # on each side of 95 %


@dataclass(frozen=True)
class LifeAdvice:
    """A piece of advice.

    Attributes:
        about: what to do.
        evidence: what this job has measured.
        low_ns, high_ns: what it would have saved of the wall time.
    """

    about: str
    evidence: str
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class CheckpointInterval:
    """The interval at which the job writes checkpoints, and the best one.

    Attributes:
        written: how many there were.
        cost_ns: for how long one holds up the steps, on average.
        interval_ns: from the end of one to the begin of the next, the median.
        failures: how many attempts failed.
        between_failures_ns: the mean time between failures: that of all attempts, for each failure.
        between_failures_low_ns, between_failures_high_ns: its 95 % interval.
        best_ns: the interval with which the least time is lost.
        best_low_ns, best_high_ns: those for the ends of the interval above.
    """

    written: int
    cost_ns: float
    interval_ns: float
    failures: int
    between_failures_ns: float
    between_failures_low_ns: float
    between_failures_high_ns: float
    best_ns: float
    best_low_ns: float
    best_high_ns: float

    @property
    def fits(self) -> bool:
        """True if the best interval may be the one that there is."""
        return self.best_low_ns <= self.interval_ns <= self.best_high_ns


def best_interval_ns(cost_ns: float, between_failures_ns: float) -> float:
    """The time between checkpoints with which a job loses the least, if it fails at random.

    With intervals t, checkpoints that cost d and a mean time M between failures, a unit of work
    takes M (exp((t + d) / M) - 1) / t, but for a factor that does not depend on t (J. T. Daly, A
    higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
    Computer Systems 22 (2006) 303-312). That is least where 1 - t / M = exp(-(t + d) / M), which is
    solved here. J. W. Young's sqrt(2 d M) (Communications of the ACM 17 (1974) 530) is its first
    order.
    """
    cost, least = cost_ns / between_failures_ns, 1.0
    # Newton's method, from the right of a concave function: it never overshoots.
    for _ in range(60):
        rest = math.exp(-least - cost)
        least -= (1 - least - rest) / (rest - 1)
    return least * between_failures_ns


def lost_factor(interval_ns: float, cost_ns: float, between_failures_ns: float) -> float:
    """Return how many times as long work takes with checkpoints and failures."""
    exponent = min(700.0, (interval_ns + cost_ns) / between_failures_ns)
    return math.expm1(exponent) * between_failures_ns / interval_ns


def _interval_of_count(count: int) -> tuple[float, float]:
    """The exact 95 % interval of the mean of a Poisson distribution of which so many, at least one,
    were counted (F. Garwood, Biometrika 28 (1936) 437)."""

    def mean_with(chance: float, most: int) -> float:
        """The mean with which there are at most so many by that chance."""
        low, high = 0.0, 20.0 + 2 * most
        for _ in range(60):
            mean = (low + high) / 2
            logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(most + 1))
            low, high = (mean, high) if math.fsum(map(math.exp, logs)) > chance else (low, mean)
        return low

    return mean_with(1 - _TAIL, count - 1), mean_with(_TAIL, count)


def checkpoint_interval(life: JobLife) -> CheckpointInterval | None:
    """Return the interval; None where nothing failed, or no attempt had two checkpoints."""
    failures = sum(one.has_failed for one in life.attempts)
    cost_ns, written, between = 0, 0, [np.empty(0, np.int64)]
    for one in life.attempts:
        begins_ns, ends_ns, took_ns = _written(one)
        cost_ns += took_ns
        written += len(begins_ns)
        between.append(begins_ns[1:] - ends_ns[:-1])
    intervals_ns = np.concatenate(between)
    if not failures or not len(intervals_ns) or not cost_ns:
        return None
    recorded_ns = sum(life.division.totals_ns.values()) - life.division.totals_ns[Bucket.DEAD]
    few, many = _interval_of_count(failures)
    mean_ns, low_ns, high_ns = (recorded_ns / count for count in (failures, many, few))
    each_ns = cost_ns / written
    return CheckpointInterval(
        written=written,
        cost_ns=each_ns,
        interval_ns=max(1.0, float(np.median(intervals_ns))),
        failures=failures,
        between_failures_ns=mean_ns,
        between_failures_low_ns=low_ns,
        between_failures_high_ns=high_ns,
        best_ns=best_interval_ns(each_ns, mean_ns),
        best_low_ns=best_interval_ns(each_ns, low_ns),
        best_high_ns=best_interval_ns(each_ns, high_ns),
    )


def _written(one: AttemptTimes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return when the checkpoints of an attempt began and ended, and how long they took together.
    All that is written between two steps, or in one, is one checkpoint."""
    rows = one.claims[Bucket.CHECKPOINT]
    rows = rows[rows[:, 1] < one.end_ns]  # the others were cut off
    rows = rows[np.argsort(rows[:, 0])]
    begun = one.begun(rows[:, 0])
    first = np.flatnonzero(np.append(True, begun[1:] != begun[:-1])[: len(begun)])
    if not len(first):
        return rows[:, 0], rows[:, 1], 0
    ends_ns = np.maximum.reduceat(rows[:, 1], first)
    division = divided(one.begin_ns, one.end_ns, {Bucket.CHECKPOINT: rows})
    return rows[first, 0], ends_ns, division.totals_ns[Bucket.CHECKPOINT]


def advice(life: JobLife, interval: CheckpointInterval | None) -> list[LifeAdvice]:
    """Return what may have saved a hundredth of the wall time, the largest first."""
    wall_ns = sum(life.division.totals_ns.values())
    found = [*_on_checkpoints(life, interval), *_on_repeats(life), *_on_hangs(life)]
    found += _on_stragglers(life)
    found = [one for one in found if one.high_ns >= LEAST_SHARE * wall_ns]
    return sorted(found, key=lambda one: -one.high_ns)


def _on_checkpoints(life: JobLife, found: CheckpointInterval | None) -> Iterator[LifeAdvice]:
    totals_ns = life.division.totals_ns
    if found is None or found.fits:
        return
    worked_ns = totals_ns[Bucket.PRODUCTIVE]
    saved_ns = []
    for mean_ns, best_ns in (
        (found.between_failures_low_ns, found.best_low_ns),
        (found.between_failures_ns, found.best_ns),
        (found.between_failures_high_ns, found.best_high_ns),
    ):
        now, best = (lost_factor(ns, found.cost_ns, mean_ns) for ns in (found.interval_ns, best_ns))
        saved_ns.append(worked_ns * (now - best))
    # Not more than was lost in fact.
    lost_ns = totals_ns[Bucket.CHECKPOINT] + totals_ns[Bucket.RECOMPUTED]
    yield LifeAdvice(
        f"Write a checkpoint every {duration(found.best_ns)} "
        f"({duration(found.best_low_ns)} to {duration(found.best_high_ns)})",
        f"now it is every {duration(found.interval_ns)}; one takes {duration(found.cost_ns)}, and "
        f"{counted(found.failures, 'failure')} in {duration(sum(totals_ns.values()))} make one "
        f"every {duration(found.between_failures_low_ns)} to "
        f"{duration(found.between_failures_high_ns)}",
        min(lost_ns, *saved_ns),
        min(lost_ns, max(saved_ns)),
    )


def _on_repeats(life: JobLife) -> Iterator[LifeAdvice]:
    """Starts and pauses: from all as quick as the quickest to none at all."""
    starts_ns = [
        divided(one.begin_ns, one.end_ns, one.claims).totals_ns[Bucket.STARTUP]
        for one in life.attempts
    ]
    pauses_ns = [max(0, b.begin_ns - a.end_ns) for a, b in pairwise(life.attempts)]
    parts = startup_parts(life)
    largest = f", of which {duration(parts[0][1])} {parts[0][0]}" if parts else ""
    for about, noun, took_ns, of in (
        ("Start faster", "start", starts_ns, largest),
        ("Start the next attempt sooner", "pause", pauses_ns, ""),
    ):
        if took_ns:
            yield LifeAdvice(
                about,
                f"{counted(len(took_ns), noun)} took {duration(sum(took_ns))}{of}; the quickest "
                f"took {duration(min(took_ns))}",
                sum(took_ns) - len(took_ns) * min(took_ns),
                sum(took_ns),
            )


def startup_parts(life: JobLife) -> list[tuple[str, int]]:
    """Return what start-ups took together by part, in words, as far as the lowest ranks tell; the
    longest first."""
    sums_ns: dict[str, int] = {}
    for part in (part for one in life.attempts for part in one.startup_parts):
        words = PART_WORDS[part.part]
        sums_ns[words] = sums_ns.get(words, 0) + part.time_ns
    return sorted(sums_ns.items(), key=lambda item: -item[1])


def _on_hangs(life: JobLife) -> Iterator[LifeAdvice]:
    hung = [one for one in life.attempts if one.has_hung]
    hung_ns = life.division.totals_ns[Bucket.HUNG]
    limits_ns = [one.environment.get("watchdog_ns", 0) for one in hung]
    noticed = f" after {duration(max(limits_ns))}" if all(limits_ns) and limits_ns else ""
    yield LifeAdvice(
        "End a hang when it is noticed, with `run --on-hang`",
        f"{counted(len(hung), 'attempt')} hung for {duration(hung_ns)} until ended; the watchdog "
        f"notices{noticed}, and `pyinstrument-gpu why` says who held up the others",
        max(0, hung_ns - sum(limits_ns)),
        hung_ns,
    )


def _on_stragglers(life: JobLife) -> Iterator[LifeAdvice]:
    waits_ns = life.division.totals_ns[Bucket.STRAGGLERS]
    yield LifeAdvice(
        "Find the rank that the others wait for, with `pyinstrument-gpu report`",
        f"the last rank of each step works {duration(waits_ns)} longer than the median one, in all",
        0,
        waits_ns,
    )
