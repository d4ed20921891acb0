# SPDX-License-Identifier: Apache-2.0
"""What a change could save per step, before it is made: a range [low, high] with the likeliest in
it, and *at most*, which can't be beaten.

docs/ledger.md explains them all, their premises, and how often the range held what was saved.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import READY_NS, Batches, are_batches
from pyinstrument_gpu.analysis.bottleneck import PhaseBottleneck
from pyinstrument_gpu.analysis.correlation_points import (
    CALL_NS,
    COPY_KINDS,
    COPY_NS_PER_BYTE,
    CorrelationPoints,
)
from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import covered_before, interval_at
from pyinstrument_gpu.analysis.ledger import (
    BUSY,
    are_data,
    are_timed,
    device_pieces,
    empty_segments,
)
from pyinstrument_gpu.analysis.premises import Premises
from pyinstrument_gpu.analysis.replay import WORK_SHARE, Segments, fit
from pyinstrument_gpu.analysis.replay import replay as play
from pyinstrument_gpu.model.groups import groups
from pyinstrument_gpu.model.run_data import RunData

MAX_SITES = 20
"""The sync sites that take most, so many at most, are looked at one by one."""
MAX_POINTS = 50_000
"""The newest points are played again, so many at most: each change takes some 80 ms for that."""
WORK_SHARES = (0.0, 1.0)
"""Where between its limits the work lies that no passage shows, in all but some programs."""
PINNED_BYTES_PER_NS = (8, 16, 64)
"""How fast a copy from pinned memory is: slower than most, usual, and faster than any bus."""
MIN_LAUNCH_SHARE = 0.02
"""The least share of the step that the host spends in a phase whose launches are looked at."""
TOLD_SPREAD = 0.25
"""How wide a range is at most, as a share of its high end, for the likeliest in it to be told."""
SAMPLING_ERRORS = 2
"""How many standard errors of a mean over some of the steps the range reaches beyond it."""
_FOREVER_NS = 1 << 62
SPREAD = (0.1, 0.9)
"""The quantiles over steps."""


class Change(enum.Enum):
    SYNC = "sync"
    """The calls of one site."""
    ALL_SYNCS = "all syncs"
    COPIES = "copies to the device"
    """Copies that make the host wait: from pageable memory, or not `non_blocking`."""
    DATA_WAIT = "wait for data"
    LAUNCHES = "launches"
    """The host's own time in a phase that was timed on the device."""


class Limit(enum.Enum):
    TIME = "time"
    """The host spends no more on it."""
    DEVICE = "device"
    """The device's proven work has to be done anyhow."""
    NONE = "none"
    """Nothing proves a limit: other ranks may gain more, or waits are missing from the history."""


@dataclass(frozen=True)
class Saving:
    """What one change could save. Times are per step.

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
        """Whether the run tells what is likely, and not only the range."""
        return self.high_ns - self.low_ns <= TOLD_SPREAD * self.high_ns


@dataclass(frozen=True)
class Savings:
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
    rows: tuple[Saving, ...]


NO_SAVINGS = Savings(0, 0, 0.0, 0.0, None, ())


def savings(
    run: RunData,
    timeline: HostTimeline,
    points: CorrelationPoints,
    bottlenecks: Mapping[int, PhaseBottleneck],
    loader: Batches,
    premises: Premises,
) -> Savings:
    """Costs four replays for each change; see `MAX_POINTS`. `bottlenecks` are those in steps."""
    steps = timeline.steps
    if len(points) > MAX_POINTS:
        steps = steps[steps["begin_ns"] >= points.host_ns[-MAX_POINTS]]
    watched = run.syncs.are_known(steps["begin_ns"], steps["end_ns"])
    if watched.any():
        steps = steps[watched]
    if not len(steps):
        return NO_SAVINGS
    case = _Case(run, timeline, points, steps, loader, premises)
    parts = (*case.syncs(), *case.own_times(bottlenecks))
    least_ns = MIN_LAUNCH_SHARE * int((steps["end_ns"] - steps["begin_ns"]).sum())
    rows = [
        case.saving(part)
        for part in parts
        if part.change != Change.LAUNCHES or part.time_ns >= least_ns
    ]
    rows = [
        row for row in rows if row.change != Change.LAUNCHES or row.high_ns * len(steps) >= least_ns
    ]
    rows.sort(key=lambda row: (row.low_ns, row.likely_ns, row.high_ns), reverse=True)
    return Savings(
        steps=len(steps),
        replayed=case.replayed,
        step_ns=float((steps["end_ns"] - steps["begin_ns"]).mean()),
        elapsed_ns=case.elapsed_ns / len(steps),
        busy_ns=case.busy_in_steps_ns,
        rows=tuple(rows),
    )


@dataclass(frozen=True)
class _Part:
    """What is taken out: of the host's time these intervals, which do not overlap, and at most so
    much of the device's work (`copies_ns`), of which the host need not have waited for all."""

    change: Change
    begins_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    calls: int
    site: int = -1
    path: int = -1
    is_inside: bool = True
    copies_ns: int = 0

    @property
    def time_ns(self) -> int:
        return int((self.ends_ns - self.begins_ns).sum())


@dataclass(frozen=True)
class _Scenario:
    """One way in which what the run does not tell may be.

    Attributes:
        points, segments: the run as it then was.
        paced: the segments, if each batch arrives when the loader has made it, and not so long
            after the loop has asked for it; None: it is the loop that makes batches.
        pinned_bytes_per_ns: how fast copies from pinned memory would be.
    """

    points: CorrelationPoints
    segments: Segments
    paced: Segments | None
    pinned_bytes_per_ns: int


@dataclass(frozen=True)
class _Rest:
    """The steps that are not played again: those that were not timed on the device.

    Attributes:
        taken_ns: what is taken out of the steps that are played again.
        usual_ns: what is taken out of the others, of each no more than of any of the former.
        sure_ns: what is taken out of the others beyond that, and saved in any case.
        excess_ns: what is taken out of the others beyond both.
        error: the standard error of the share that is saved of what is taken out.
    """

    taken_ns: int
    usual_ns: int
    sure_ns: int
    excess_ns: int
    error: float

    def added(self, sum_ns: float, errors: float, excess_share: float) -> float:
        """What is saved in all steps, if so much is saved in those that are played again: of the
        usual the same share, give or take so many errors, and of the excess this one."""
        ratio = sum_ns / max(1, self.taken_ns)
        if errors and self.usual_ns:
            ratio += errors * self.error
        usual_ns = self.usual_ns * min(max(ratio, 0.0), 1.0)
        return sum_ns + usual_ns + self.sure_ns + self.excess_ns * excess_share


class _Case:
    def __init__(
        self,
        run: RunData,
        timeline: HostTimeline,
        points: CorrelationPoints,
        steps: NDArray[np.void],
        loader: Batches,
        premises: Premises,
    ) -> None:
        self._run, self._timeline, self._steps = run, timeline, steps
        self._loader, self._premises = loader, premises
        self._begin_ns, self._end_ns = int(steps["begin_ns"][0]), int(steps["end_ns"][-1])
        self.elapsed_ns = self._end_ns - self._begin_ns
        timing = run.device_timing
        self._event_ns = timing.record_ns / max(1, timing.records) if timing is not None else 0.0
        self._copy_bytes, self._copy_shortest_ns = _by_site(run, timeline.waits)
        self._is_timed = are_timed(run, points, steps)
        if not self._is_timed.any():
            self._is_timed[:] = True
        self._pieces = device_pieces(run, points) if premises.stream_never_waits else None
        if points.stream < 0 or len(points) < 2:
            self._pieces = None
        self._last_ns = (
            (int(points.host_ns[-1]), int(points.device_ns[-1])) if len(points) else None
        )
        # A window reaches to the begin of the next step: what lies between steps is part of how
        # far the host gets ahead. Of windows in succession nothing is cut out.
        ends_ns = np.append(steps["begin_ns"][1:], self._end_ns)
        self._windows_ns = _merged(steps["begin_ns"][self._is_timed], ends_ns[self._is_timed])
        self._points = points.chained(*self._windows_ns)
        begins_ns = self._on_chain(steps["begin_ns"][self._is_timed])
        self._steps_begin = np.searchsorted(self._points.host_ns, begins_ns)
        workers = premises.loader_workers
        # The likely one is the first, or both of these.
        self._scenarios = [self._scenario(0, WORK_SHARE, 1, is_paced=workers != 0)]
        if workers is None:
            self._scenarios.append(self._scenario(0, WORK_SHARE, 1, is_paced=False))
        self._likely = len(self._scenarios)
        low = self._scenario(1, WORK_SHARES[1], 0, is_paced=workers != 0)
        if premises.one_stream is False:
            low = replace(low, segments=low.segments.with_waits_as_they_were(low.points))
        # A loader whose queue was full at times delivers sooner if it is asked sooner.
        high = self._scenario(-1, WORK_SHARES[0], 2, is_paced=False)
        self._scenarios += [low, high]

    @property
    def replayed(self) -> int:
        return len(self._steps_begin)

    @property
    def busy_in_steps_ns(self) -> float | None:
        if self._pieces is None:
            return None
        begins_ns, ends_ns = self._pieces.edges_ns[:-1], self._pieces.edges_ns[1:]
        busy = self._pieces.state == BUSY
        steps = self._steps[self._is_timed]
        busy_ns = covered_before(begins_ns[busy], ends_ns[busy], steps["end_ns"])
        busy_ns -= covered_before(begins_ns[busy], ends_ns[busy], steps["begin_ns"])
        # Steps that were timed may be shorter or longer than others.
        share = float(busy_ns.sum()) / max(1, int((steps["end_ns"] - steps["begin_ns"]).sum()))
        return share * float((self._steps["end_ns"] - self._steps["begin_ns"]).mean())

    def _on_chain(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return covered_before(*self._windows_ns, times_ns)

    def _scenario(
        self, clock_sign: int, work_share: float, pinned: int, *, is_paced: bool
    ) -> _Scenario:
        points = self._points.with_clock_off(clock_sign) if clock_sign else self._points
        segments = fit(points, empty_segments(self._run, points)[1], work_share)
        starts = self._loader.is_start if work_share == 1 else self._loader.may_start
        paced = self._paced(segments, starts) if is_paced else None
        return _Scenario(points, segments, paced, PINNED_BYTES_PER_NS[pinned])

    def _paced(self, segments: Segments, starts: NDArray[np.bool_]) -> Segments | None:
        """With each batch given when it has arrived. None if it never matters."""
        points, loader = self._points, self._loader
        inside = interval_at(*self._windows_ns, loader.given_ns) >= 0
        inside &= interval_at(*self._windows_ns, loader.asked_ns) >= 0
        inside &= (loader.arrived_ns >= 0) | starts
        if not inside.any():
            return None
        given_ns = self._on_chain(loader.given_ns[inside])
        data_kinds = 2 * np.flatnonzero(are_data(self._run))
        ends = np.flatnonzero((points.site < 0) & np.isin(points.kind, data_kinds))
        batch = np.searchsorted(given_ns, points.host_ns[ends])
        found = np.append(given_ns, -1)[batch] == points.host_ns[ends]
        segment, batch = ends[found] - 1, np.flatnonzero(inside)[batch[found]]
        is_start = segments.is_start.copy()
        is_start[segment] = starts[batch]
        paced = ~starts[batch]
        segment, batch = segment[paced], batch[paced]
        since_ns = loader.given_ns[batch] - loader.arrived_ns[batch]
        # To hand over a batch that is there takes its time all the same.
        handing_ns = np.where(loader.waited[batch], 0, segments.host_ns[segment])
        host_ns, until_ns = segments.host_ns.copy(), segments.host_until_ns.copy()
        host_ns[segment] = np.minimum(host_ns[segment], loader.ready_ns)
        until_ns[segment] = points.host_ns[segment + 1] - since_ns + handing_ns
        return replace(segments, host_ns=host_ns, host_until_ns=until_ns, is_start=is_start)

    def syncs(self) -> Iterator[_Part]:
        run, events = self._run, self._timeline.waits
        begins_ns, _ = self._timeline.waits_ns
        # Those after the last step are part of the time until all is done.
        events = events[begins_ns >= self._begin_ns]
        events = events[~run.syncs.is_meant(events)]
        is_copy = np.array([site.kind in COPY_KINDS for site in run.syncs.sites], dtype=bool)
        of_copies = is_copy[events["site"]] if len(events) else np.zeros(0, dtype=bool)
        reads = events[~of_copies]
        by_site = [
            self._syncs(Change.SYNC, reads[places], site) for site, places in groups(reads["site"])
        ]
        by_site.sort(key=lambda part: part.time_ns, reverse=True)
        yield from by_site[:MAX_SITES]
        if of_copies.any():
            yield self._syncs(Change.COPIES, events[of_copies])
        if len(np.unique(events["site"])) > 1:
            yield self._syncs(Change.ALL_SYNCS, events)

    def _syncs(self, change: Change, events: NDArray[np.void], site: int = -1) -> _Part:
        steps = self._timeline.steps
        copies_ns = COPY_NS_PER_BYTE * events["bytes"].astype(np.int64)
        inside = interval_at(steps["begin_ns"], steps["end_ns"], events["begin_ns"]) >= 0
        return _Part(
            change,
            events["begin_ns"],
            events["begin_ns"] + events["duration_ns"],
            calls=len(events),
            site=site,
            is_inside=bool(inside.all()),
            copies_ns=int((CALL_NS + copies_ns).sum()),
        )

    def own_times(self, bottlenecks: Mapping[int, PhaseBottleneck]) -> Iterator[_Part]:
        """Where the host was in the own time of phases `data`, inside steps and between them, and
        of those timed on the device inside steps, and not blocked."""
        timeline, steps = self._timeline, self._steps
        waits_ns = timeline.waits_ns
        edges_ns = np.concatenate([timeline.host_ns, *waits_ns, steps["begin_ns"], steps["end_ns"]])
        cuts_ns = np.unique(np.maximum(edges_ns, self._begin_ns))
        begins_ns, ends_ns = cuts_ns[:-1], cuts_ns[1:]
        path = timeline.path_at(begins_ns)
        free = covered_before(*waits_ns, ends_ns) == covered_before(*waits_ns, begins_ns)
        inside = interval_at(steps["begin_ns"], steps["end_ns"], begins_ns) >= 0
        all_steps = timeline.steps
        between = interval_at(all_steps["begin_ns"], all_steps["end_ns"], begins_ns) < 0
        is_data = are_data(self._run)
        in_data = np.append(are_batches(self._run), False)[path]
        parts = [
            (Change.DATA_WAIT, -1, in_data & inside),
            (Change.DATA_WAIT, -1, in_data & between),
        ]
        parts += [
            (Change.LAUNCHES, one, (path == one) & inside)
            for one in bottlenecks
            if not is_data[one]
        ]
        for change, one, in_phase in parts:
            chosen = in_phase & free
            if chosen.any():
                is_inside = bool(inside[chosen].all())
                begun = timeline.is_begin & np.isin(timeline.path, path[chosen])
                step = interval_at(all_steps["begin_ns"], all_steps["end_ns"], timeline.host_ns)
                begun &= (step >= 0) == is_inside
                yield _Part(
                    change,
                    begins_ns[chosen],
                    ends_ns[chosen],
                    calls=int(np.count_nonzero(begun)),
                    path=one,
                    is_inside=is_inside,
                )

    def saving(self, part: _Part) -> Saving:
        steps = len(self._steps)
        at_most_ns, limit = self._at_most(part)
        gains_ns = [self._gains_ns(part, scenario) for scenario in self._scenarios]
        sums_ns = [float(gains.sum()) for gains in gains_ns]
        rest = self._rest(part, gains_ns[0])
        likely_ns = rest.added(sum(sums_ns[: self._likely]) / self._likely, 0.0, WORK_SHARE)
        low_ns = rest.added(min(sums_ns), -SAMPLING_ERRORS, 0.0)
        if part.change == Change.DATA_WAIT and self._premises.loader_workers != 0:
            # Faster workers may take as long to start.
            started = self._loader.is_start
            waits_ns = self._loader.given_ns - self._loader.asked_ns
            low_ns -= int(waits_ns[started].sum())
        high_ns = rest.added(max(sums_ns), SAMPLING_ERRORS, 1.0)
        if part.change == Change.LAUNCHES or self._premises.one_rank is False:
            # How much of the time is launches, or what other ranks wait for, is not known.
            low_ns = 0.0
        if not self._premises.stream_never_waits:
            high_ns = math.inf
        if part.change == Change.DATA_WAIT and self._points.stream < 0:
            low_ns, likely_ns, high_ns = self._without_device(part)
        most_ns = max(min(part.time_ns, at_most_ns), 0.0)
        likely_ns = min(max(likely_ns, 0.0), most_ns)
        spread_ns = np.quantile(gains_ns[0], SPREAD, method="inverted_cdf")
        return Saving(
            change=part.change,
            site=part.site,
            path=part.path,
            is_inside=part.is_inside,
            calls=part.calls / steps,
            time_ns=part.time_ns / steps,
            low_ns=min(max(low_ns, 0.0), likely_ns) / steps,
            likely_ns=likely_ns / steps,
            high_ns=min(max(high_ns, likely_ns), most_ns) / steps,
            at_most_ns=at_most_ns / steps,
            spread_ns=(float(spread_ns[0]), float(spread_ns[1])),
            limit=limit,
        )

    def _at_most(self, part: _Part) -> tuple[float, Limit]:
        if self._premises.one_rank is False or (
            self._run.syncs.dropped and part.change not in (Change.DATA_WAIT, Change.LAUNCHES)
        ):
            return math.inf, Limit.NONE
        at_most_ns = part.time_ns + round(2 * part.calls * self._event_ns)
        if part.change in (Change.COPIES, Change.ALL_SYNCS):
            # From pinned memory they take the device less time, too.
            at_most_ns += part.copies_ns
        if self._pieces is None or self._last_ns is None:
            return at_most_ns, Limit.TIME
        # What was enqueued until the last point was done at `done_ns`, after the device had been
        # busy for so long. Whatever is saved later is no more than what is taken out later.
        host_ns, device_ns = self._last_ns
        done_ns = max(host_ns, device_ns)
        edges_ns = np.clip(self._pieces.edges_ns, self._begin_ns, done_ns)
        busy_ns = int(np.diff(edges_ns)[self._pieces.state == BUSY].sum())
        later_ns = part.time_ns - int(
            covered_before(part.begins_ns, part.ends_ns, np.array([host_ns]))[0]
        )
        left_ns = done_ns - self._begin_ns - max(0, busy_ns - part.copies_ns) + later_ns
        return (left_ns, Limit.DEVICE) if left_ns < at_most_ns else (at_most_ns, Limit.TIME)

    def _rest(self, part: _Part, gains_ns: NDArray[np.int64]) -> _Rest:
        """The steps that are not played again, from those that are."""
        edges_ns = np.append(self._steps["begin_ns"], [self._end_ns, _FOREVER_NS])
        taken_ns = np.diff(covered_before(part.begins_ns, part.ends_ns, edges_ns))
        # What comes after the last step is played in none.
        is_known = np.append(self._is_timed, False)
        known_ns, other_ns = taken_ns[is_known], taken_ns[~is_known]
        if not other_ns.any():
            return _Rest(1, 0, 0, 0, 0.0)
        usual_ns = np.minimum(other_ns, known_ns.max())
        # A wait for data beyond any that was played again leaves the device idle as soon as it has
        # done what it was behind by; a wait for the device may be anything.
        behind_ns = int((self._points.device_ns - self._points.host_ns).max())
        sure_ns = np.maximum(other_ns - usual_ns - behind_ns, 0)
        sure = int(sure_ns.sum()) if part.change == Change.DATA_WAIT else 0
        taken = int(known_ns.sum())
        error = math.inf
        if taken and len(known_ns) > 1:
            off_ns = gains_ns - gains_ns.sum() / taken * known_ns
            variance = float((off_ns.astype(np.float64) ** 2).sum()) * len(off_ns)
            error = math.sqrt(variance / (len(off_ns) - 1)) / taken
        excess = int((other_ns - usual_ns).sum())
        return _Rest(taken, int(usual_ns.sum()), sure, excess - sure, error)

    def _without_device(self, part: _Part) -> tuple[float, float, float]:
        """Of a wait for data, when the device was not timed. Where there is a device, it may have
        to do what takes as long. To hand over a batch that is there takes its time all the same."""
        has_none = self._run.environment.get("gpus") == []
        sure_ns = max(0, part.time_ns - READY_NS * part.calls) if has_none else 0
        return sure_ns, part.time_ns, part.time_ns

    def _gains_ns(self, part: _Part, scenario: _Scenario) -> NDArray[np.int64]:
        """By how much sooner each step that is played again is done, after the one before it."""
        points, segments = scenario.points, scenario.segments
        begins_ns, ends_ns = self._on_chain(part.begins_ns), self._on_chain(part.ends_ns)

        def taken_before(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            return covered_before(begins_ns, ends_ns, times_ns)

        if points.stream < 0 and part.change == Change.DATA_WAIT:
            # The device was not timed: nothing says that it would have had more to do.
            before_ns = taken_before(points.host_ns[self._steps_begin])
            sooner_ns: NDArray[np.int64] = np.append(before_ns[1:], part.time_ns) - before_ns
            return sooner_ns
        if scenario.paced is not None and part.change != Change.DATA_WAIT:
            until_ns = segments.device_until_ns
            segments = replace(scenario.paced, device_until_ns=until_ns)
        was_done_ns = self._done_ns(points, segments, None)
        taken_ns = taken_before(points.host_ns[1:]) - taken_before(points.resume_ns[:-1])
        if part.change == Change.LAUNCHES:
            # What was launched over a time is now launched at once, and then takes its time.
            share = taken_ns / np.maximum(segments.host_ns, 1)
            risen_ns = np.rint(share * (segments.work_ns - segments.tail_ns)).astype(np.int64)
            tail_ns = segments.tail_ns + np.maximum(risen_ns, 0)
            segments = replace(segments, tail_ns=tail_ns)
        segments = replace(segments, host_ns=np.maximum(segments.host_ns - taken_ns, 0))
        has_taken = taken_before(points.resume_ns) > taken_before(points.host_ns)
        taken_out = (points.site >= 0) & has_taken
        if part.change in (Change.COPIES, Change.ALL_SYNCS):
            segments = self._with_pinned_copies(scenario, segments, taken_out)
        return np.diff(was_done_ns - self._done_ns(points, segments, taken_out), prepend=0)

    def _with_pinned_copies(
        self, scenario: _Scenario, segments: Segments, taken_out: NDArray[np.bool_]
    ) -> Segments:
        """With the copies that are taken out as fast as they are from pinned memory."""
        points, sites = scenario.points, self._run.syncs.sites
        is_copy = np.array([site.kind in COPY_KINDS for site in sites], dtype=bool)
        places = np.flatnonzero(taken_out & np.append(is_copy, False)[points.site])
        if not len(places):
            return segments
        counts, calls = self._copy_bytes, self._copy_shortest_ns
        site = points.site[places]
        sooner_ns = np.maximum(
            calls[site] - CALL_NS - counts[site] / scenario.pinned_bytes_per_ns, 0
        )
        work_ns, tail_ns = segments.work_ns.copy(), segments.tail_ns.copy()
        work_ns[places - 1] -= np.rint(sooner_ns).astype(np.int64)
        tail_ns[places - 1] -= np.rint(sooner_ns).astype(np.int64)
        whole = ~points.is_behind_cut[places]
        work_ns[places - 1] = np.where(
            whole, np.maximum(work_ns[places - 1], 0), segments.work_ns[places - 1]
        )
        tail_ns[places - 1] = np.where(
            whole, np.maximum(tail_ns[places - 1], 0), segments.tail_ns[places - 1]
        )
        return replace(segments, work_ns=work_ns, tail_ns=tail_ns)

    def _done_ns(
        self, points: CorrelationPoints, segments: Segments, taken_out: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """When host and device were done with each step: at the first point of the next, and
        after all points."""
        done_ns = play(points, segments, taken_out).done_ns
        last = np.minimum(self._steps_begin[1:], len(done_ns) - 1)
        return np.append(done_ns[last], done_ns[-1])


def _merged(
    begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Intervals of which none begins where another ends."""
    apart = np.append(True, begins_ns[1:] > ends_ns[:-1])
    return begins_ns[apart], ends_ns[np.append(apart[1:], True)]


def _by_site(
    run: RunData, waits: NDArray[np.void]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Of each site the bytes that a call copies, in the mean, and the time of the shortest."""
    sites = len(run.syncs.sites)
    shortest_ns = np.full(sites, np.iinfo(np.int64).max)
    np.minimum.at(shortest_ns, waits["site"], waits["duration_ns"])
    counts = np.maximum(np.bincount(waits["site"], minlength=sites), 1)
    return np.bincount(waits["site"], waits["bytes"], sites) / counts, shortest_ns
