# SPDX-License-Identifier: Apache-2.0
"""Savings of changes per step, before they are made: a range [low, high] with the likeliest in it,
and *at most*, which can't be beaten.

docs/savings.md explains them all, their premises, and how often the range held what was saved.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis import taken_out
from pyinstrument_gpu.analysis.batches import BUSY_HANDING_NS, READY_NS, LoaderBatches
from pyinstrument_gpu.analysis.correlation_points import CorrelationPoints, Premises
from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import covered_before, interval_at, quantiles
from pyinstrument_gpu.analysis.replay import KEPT_LEAD, WORK_SHARE, ReplayedSteps, replayed_steps
from pyinstrument_gpu.analysis.scenario import scenarios
from pyinstrument_gpu.analysis.taken_out import Change as Change
from pyinstrument_gpu.analysis.taken_out import TakenOut
from pyinstrument_gpu.analysis.time_budget import BUSY, are_data, device_pieces
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run

MAX_POINTS = 50_000
"""The newest points are played again, so many at most: each change takes some 80 ms for that."""
MIN_LAUNCH_SHARE = 0.02
"""The least share of the step that the host spends in a phase whose launches are looked at."""
TOLD_SPREAD = 0.25
"""How wide a range is at most, as a share of its high end, for the likeliest in it to be told."""
SAMPLING_ERRORS = 2
"""How many standard errors of a mean over some of the steps the range reaches beyond it."""
SPREAD = (0.1, 0.9)
"""The quantiles over steps."""
LATE_SHARE = 0.05
"""The share of its time for which a loop waits for workers that are often late, at least."""
FULL_QUEUE_NS = 1_000_000
"""What a full launch queue holds takes the device at least so long: 1,024 commands of 1 us."""
_FOREVER_NS = 1 << 62


class Limit(enum.Enum):
    TIME = "time"
    """The host spends no more on it."""
    DEVICE = "device"
    """The device's proven work has to be done anyhow."""
    NONE = "none"
    """Nothing proves a limit: other ranks may gain more, or waits are missing from the history."""


@dataclass(frozen=True)
class ReplayedSaving:
    """The saving of one change. Times are per step.

    Attributes:
        site: of a sync its site, an index into `Run.syncs.sites`; else -1.
        path: of launches their phase, an index into `Run.paths`; else -1.
        is_inside: whether all of it happens inside steps, and none between them.
        calls: how often, per step.
        time_ns: what the host spends on it.
        low_ns, likely_ns, high_ns: the range of what it saves, as far as the run can tell.
        at_most_ns: no change of this kind saves more; infinite where `limit` is NONE.
        spread_ns: quantiles of the likely saving over the steps, as `SPREAD` says.
        limit: what makes `at_most_ns` so small.
    """

    change: Change
    site: int
    path: int
    is_inside: bool
    calls: float
    time_ns: float
    low_ns: float
    likely_ns: float
    high_ns: float
    at_most_ns: float
    spread_ns: tuple[float, float]
    limit: Limit

    @property
    def is_told(self) -> bool:
        """True if the run tells what is likely, and not only the range."""
        return self.high_ns - self.low_ns <= TOLD_SPREAD * self.high_ns

    @property
    def is_rare(self) -> bool | None:
        """Whether more than half of it lies in at most one step of ten; None where the run does not
        tell what is likely.

        Nine of ten steps that save less than half the mean save less than half of all.
        """
        is_rare = self.likely_ns > 0 and self.spread_ns[1] < self.likely_ns / 2
        return is_rare if self.is_told else None

    @property
    def of(self) -> str:
        """The whole that it is a share of, in words."""
        return "step" if self.is_inside else "elapsed time"


@dataclass(frozen=True)
class ReplayedSavings:
    """The savings of a run, the largest low end first.

    Attributes:
        steps: over how many steps the times are taken.
        replayed: how many of them were played again: those that were timed on the device, if any.
        step_ns: the mean duration of a step, without what lies between steps.
        elapsed_ns: the time per step from the first begin to the last end, with it.
        busy_ns: what the device is proven to work per step, inside steps; None where that is not
            known of the whole device.
    """

    steps: int
    replayed: int
    step_ns: float
    elapsed_ns: float
    busy_ns: float | None
    rows: tuple[ReplayedSaving, ...]

    def whole_ns(self, saving: ReplayedSaving) -> float:
        """The time per step of which a saving is a part: the step's, or all that elapses."""
        return self.step_ns if saving.is_inside else self.elapsed_ns

    @property
    def paths_that_wait_for_the_host(self) -> frozenset[int]:
        """The phases of which more than half of the host's own time would likely be saved."""
        return frozenset(row.path for row in self.rows if row.likely_ns > row.time_ns / 2) - {-1}


NO_SAVINGS = ReplayedSavings(0, 0, 0.0, 0.0, None, ())


def savings(
    run: Run,
    timeline: HostTimeline,
    points: CorrelationPoints,
    timed_paths: Iterable[int],
    loader: LoaderBatches,
    premises: Premises,
) -> ReplayedSavings:
    """Return the savings. Costs two replays for each change and scenario; see `MAX_POINTS`.
    `timed_paths` are those that were timed on the device in steps."""
    steps = timeline.steps
    if len(points) > MAX_POINTS:
        steps = steps[steps["begin_ns"] >= points.host_ns[-MAX_POINTS]]
    watched = run.syncs.are_known(steps["begin_ns"], steps["end_ns"])
    if watched.any():
        steps = steps[watched]
    if not len(steps):
        return NO_SAVINGS
    case = _Case(run, points, steps, loader, premises)
    is_data = are_data(run)
    phases = [path for path in timed_paths if not is_data[path]]
    least_ns = MIN_LAUNCH_SHARE * case.steps_ns

    def matters(change: Change, ns: float) -> bool:
        return change != Change.LAUNCHES or ns >= least_ns

    rows = [
        case.saving(taken)
        for taken in (
            *taken_out.syncs(run, timeline, case.begin_ns),
            *taken_out.own_times(run, timeline, steps, phases),
        )
        if matters(taken.change, taken.time_ns)
    ]
    rows = [row for row in rows if matters(row.change, row.high_ns * len(steps))]
    # What is likely is not always told, and then nothing may be in its order.
    rows.sort(key=lambda row: (row.low_ns, row.high_ns), reverse=True)
    return ReplayedSavings(
        steps=len(steps),
        replayed=len(case.replayed),
        step_ns=case.steps_ns / len(steps),
        elapsed_ns=(int(steps["end_ns"][-1]) - case.begin_ns) / len(steps),
        busy_ns=case.busy_in_steps_ns,
        rows=tuple(rows),
    )


class _Case:
    """The part that is the same for all changes."""

    def __init__(
        self,
        run: Run,
        points: CorrelationPoints,
        steps: NDArray[np.void],
        loader: LoaderBatches,
        premises: Premises,
    ) -> None:
        self._run, self._steps, self._loader, self._premises = run, steps, loader, premises
        self.begin_ns = int(steps["begin_ns"][0])
        self.steps_ns = int(durations_ns_of(steps).sum())
        timing = run.device_timing
        self._event_ns = timing.record_ns / max(1, timing.records) if timing is not None else 0.0
        self._last_ns = (0, 0)
        self._pieces = None
        if premises.stream_never_waits and points.stream >= 0 and len(points) >= 2:
            self._pieces = device_pieces(run, points)
            self._last_ns = int(points.host_ns[-1]), int(points.device_ns[-1])
        self.replayed = replayed_steps(run, points, steps)
        self._are_usual = self._usual_steps()
        self._scenarios = scenarios(run, self.replayed, loader, premises)

    def _usual_steps(self) -> NDArray[np.bool_]:
        """Return which replayed steps may speak for others: not the first of the run, in which much
        is done once, nor those in which the loader starts."""
        steps, starts = self._steps, self._loader.asked_ns[self._loader.is_start]
        are_unusual = steps["index"] == self._run.steps.array["index"][0]
        step = interval_at(steps["begin_ns"], steps["end_ns"], starts)
        are_unusual[step[step >= 0]] = True
        are_usual: NDArray[np.bool_] = ~are_unusual[self.replayed.are_replayed]
        return are_usual if np.count_nonzero(are_usual) > 1 else np.ones_like(are_usual)

    @property
    def busy_in_steps_ns(self) -> float | None:
        if self._pieces is None:
            return None
        begins_ns, ends_ns = self._pieces.edges_ns[:-1], self._pieces.edges_ns[1:]
        busy = self._pieces.state == BUSY
        steps = self._steps[self.replayed.are_replayed]
        busy_ns = covered_before(begins_ns[busy], ends_ns[busy], steps["end_ns"])
        busy_ns -= covered_before(begins_ns[busy], ends_ns[busy], steps["begin_ns"])
        # Steps that were timed may be shorter or longer than others.
        share = float(busy_ns.sum()) / max(1, int(durations_ns_of(steps).sum()))
        return share * self.steps_ns / len(self._steps)

    def saving(self, taken: TakenOut) -> ReplayedSaving:
        steps, found = len(self._steps), self._scenarios
        at_most_ns, limit = self._at_most(taken)
        likely = [scenario.gains_ns(taken) for scenario in found.likely]
        gains = [*likely, found.low.gains_ns(taken), found.high.gains_ns(taken)]
        rest = untimed_steps(self.replayed, taken, likely[0], self._are_usual)
        likely_ns = sum(rest.added(one, 0.0, WORK_SHARE) for one in likely) / len(likely)
        low_ns = min(rest.added(one, -SAMPLING_ERRORS, 0.0) for one in gains)
        high_ns = max(rest.added(one, SAMPLING_ERRORS, 1.0) for one in gains) + rest.longer_ns
        if not self._premises.stream_never_waits or self._premises.lacks_times:
            high_ns = math.inf
        if taken.change == Change.DATA_WAIT and self.replayed.points.stream < 0:
            low_ns, likely_ns, high_ns = self._without_device(taken)
        if taken.change == Change.DATA_WAIT:
            low_ns -= self._handing_ns(taken)
        if taken.change == Change.DATA_WAIT and self._premises.loader_workers != 0:
            # Faster workers may take as long to start, and have to do so at least once.
            starts_ns = self._loader.start_waits_ns
            low_ns -= int(starts_ns.sum())
            likely_ns -= int(starts_ns[:1].sum())
            usual_ns = min(self._loader.fast_ns, READY_NS)
            likely_ns -= int(np.minimum(taken.ends_ns - taken.begins_ns, usual_ns).sum())
        if (
            taken.change == Change.LAUNCHES
            or self._premises.one_rank is False
            or self._premises.waits_in_allocator
            or (taken.change != Change.DATA_WAIT and self._may_wait_for_loader)
        ):
            # How much of the time is launches, or comes later anyhow, is not known.
            low_ns = 0.0
        most_ns = max(min(taken.time_ns, at_most_ns), 0.0)
        likely_ns = min(max(likely_ns, 0.0), most_ns)
        low_spread_ns, high_spread_ns = quantiles(likely[0], SPREAD)
        return ReplayedSaving(
            change=taken.change,
            site=taken.site,
            path=taken.path,
            is_inside=taken.is_inside,
            calls=taken.calls / steps,
            time_ns=taken.time_ns / steps,
            low_ns=min(max(low_ns, 0.0), likely_ns) / steps,
            likely_ns=likely_ns / steps,
            high_ns=min(max(high_ns, likely_ns), most_ns) / steps,
            at_most_ns=max(at_most_ns, 0.0) / steps,
            spread_ns=(float(low_spread_ns), float(high_spread_ns)),
            limit=limit,
        )

    @cached_property
    def _queued_ns(self) -> int:
        """The time for which the launch queue may have been full, in all: that of the segments in
        which the host kept its lead. A graph takes one place in it, which leaves room."""
        points = self.replayed.points
        leads_ns = points.device_ns - points.host_ns
        times_ns = points.host_ns[1:] - points.resume_ns[:-1]
        kept = (leads_ns[:-1] >= FULL_QUEUE_NS) & (leads_ns[1:] >= KEPT_LEAD * leads_ns[:-1])
        queued_ns = int(times_ns[kept].sum())
        return queued_ns * len(self._steps) // max(1, len(self.replayed))

    @property
    def _may_wait_for_loader(self) -> bool:
        """True if the loop waits for workers, and there are no times at which to play that again: a
        loop that asks sooner may wait longer."""
        loader = self._loader
        is_late = loader.waited & ~loader.is_start
        late_ns = int((loader.given_ns - loader.asked_ns)[is_late].sum())
        is_paced = self.replayed.points.stream < 0 and self._premises.loader_workers != 0
        return is_paced and late_ns > LATE_SHARE * self.steps_ns

    def _at_most(self, taken: TakenOut) -> tuple[float, Limit]:
        is_wait = taken.change not in (Change.DATA_WAIT, Change.LAUNCHES)
        if self._premises.one_rank is False or (self._run.syncs.dropped and is_wait):
            return math.inf, Limit.NONE
        at_most_ns = taken.time_ns + round(2 * taken.calls * self._event_ns)
        if taken.change == Change.LAUNCHES:
            at_most_ns += self._queued_ns
        if taken.change in (Change.COPIES, Change.ALL_SYNCS):
            # From pinned memory they take the device less time, too.
            at_most_ns += taken.copies_ns
        if self._pieces is None:
            return at_most_ns, Limit.TIME
        # What was enqueued until the last point was done at `done_ns`, after the device had been
        # busy for so long. Whatever is saved later is no more than what is taken out later.
        host_ns, device_ns = self._last_ns
        done_ns = max(host_ns, device_ns)
        edges_ns = np.clip(self._pieces.edges_ns, self.begin_ns, done_ns)
        busy_ns = int(np.diff(edges_ns)[self._pieces.state == BUSY].sum())
        before_ns = covered_before(taken.begins_ns, taken.ends_ns, np.array([host_ns]))
        later_ns = taken.time_ns - int(before_ns[0])
        left_ns = done_ns - self.begin_ns - max(0, busy_ns - taken.copies_ns) + later_ns
        return (left_ns, Limit.DEVICE) if left_ns < at_most_ns else (at_most_ns, Limit.TIME)

    def _without_device(self, taken: TakenOut) -> tuple[float, float, float]:
        """Return the saving of a wait for data when the device was not timed. Where there is a
        device, it may have to do what takes as long. Where there is none, and no worker, the cores
        that workers would need may be those that train."""
        if self._run.environment.get("gpus") != [] or self._premises.loader_workers == 0:
            return 0.0, taken.time_ns, taken.time_ns
        return taken.time_ns, taken.time_ns, taken.time_ns

    def _handing_ns(self, taken: TakenOut) -> int:
        """Return how much of a wait for data stays at most with workers that are always in time,
        because they have to hand over each batch. If there are none yet, nothing shows how long
        that takes."""
        most_ns = BUSY_HANDING_NS
        if self._premises.loader_workers != 0:
            is_timed = self.replayed.points.stream >= 0
            has_device = is_timed or bool(self._run.environment.get("gpus"))
            most_ns = self._loader.handing_ns(has_device=has_device)
        return int(np.minimum(taken.ends_ns - taken.begins_ns, most_ns).sum())


@dataclass(frozen=True)
class UntimedSteps:
    """The steps that are not played again: those that were not timed on the device.

    Attributes:
        are_usual: which of the steps that are played again show what is saved in the others.
        taken_ns: what is taken out of those.
        usual_ns: what is taken out of the others, of each no more than of any of those.
        sure_ns: what is taken out of the others beyond that, and saved in any case.
        excess_ns: what is taken out of the others beyond both.
        longer_ns: by how much the others are longer than any that was played again, in all. Without
            the waits for the device the host may be ahead by so much when it comes to that.
        error: the standard error of the share that is saved of what is taken out.
    """

    are_usual: NDArray[np.bool_]
    taken_ns: int
    usual_ns: int
    sure_ns: int
    excess_ns: int
    longer_ns: int
    error: float

    def added(self, gains_ns: NDArray[np.int64], errors: float, excess_share: float) -> float:
        """Return what is saved in all steps, if so much is saved in those that are played again: of
        the usual the same share, give or take so many errors, and of the excess this one."""
        ratio = float(gains_ns[self.are_usual].sum()) / max(1, self.taken_ns)
        if errors and self.usual_ns:
            ratio += errors * self.error
        usual_ns = self.usual_ns * min(max(ratio, 0.0), 1.0)
        return float(gains_ns.sum()) + usual_ns + self.sure_ns + self.excess_ns * excess_share


def untimed_steps(
    replayed: ReplayedSteps,
    taken: TakenOut,
    gains_ns: NDArray[np.int64],
    are_usual: NDArray[np.bool_],
) -> UntimedSteps:
    """Return what is taken out of them, and how well the steps that are played again, which gain so
    much, show it."""
    steps = replayed.steps
    edges_ns = np.append(steps["begin_ns"], [int(steps["end_ns"][-1]), _FOREVER_NS])
    taken_ns = np.diff(covered_before(taken.begins_ns, taken.ends_ns, edges_ns))
    # What comes after the last step is played in none.
    is_known = np.append(replayed.are_replayed, False)
    known_ns, other_ns = taken_ns[is_known][are_usual], taken_ns[~is_known]
    gains_ns = gains_ns[are_usual]
    usual_ns = np.minimum(other_ns, known_ns.max())
    # A wait for data beyond any that was played again leaves the device idle as soon as it has
    # done what it was behind by; a wait for the device may be anything.
    behind_ns = int((replayed.points.device_ns - replayed.points.host_ns).max())
    sure_ns = np.maximum(other_ns - usual_ns - behind_ns, 0)
    sure = int(sure_ns.sum()) if taken.change == Change.DATA_WAIT else 0
    sum_ns = int(known_ns.sum())
    error = math.inf
    if sum_ns and len(known_ns) > 1:
        off_ns = gains_ns - gains_ns.sum() / sum_ns * known_ns
        variance = float((off_ns.astype(np.float64) ** 2).sum()) * len(off_ns)
        error = math.sqrt(variance / (len(off_ns) - 1)) / sum_ns
    excess = int((other_ns - usual_ns).sum())
    longer_ns = 0
    if taken.change in (Change.SYNC, Change.COPIES, Change.ALL_SYNCS):
        lasts_ns = np.diff(edges_ns[:-1])
        lasts_ns = lasts_ns[~replayed.are_replayed] - lasts_ns[replayed.are_replayed].max()
        longer_ns = int(np.maximum(lasts_ns, 0).sum())
    usual = int(usual_ns.sum())
    return UntimedSteps(are_usual, sum_ns, usual, sure, excess - sure, longer_ns, error)
