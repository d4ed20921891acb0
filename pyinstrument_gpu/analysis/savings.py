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

from pyinstrument_gpu.analysis.batches import READY_NS, Batches
from pyinstrument_gpu.analysis.bottleneck import Bottleneck, PhaseBottleneck
from pyinstrument_gpu.analysis.correlation_points import (
    CALL_NS,
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
from pyinstrument_gpu.model.sync_kind import SyncKind

COPY_KINDS = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)
MAX_SITES = 20
"""The sync sites that take most, so many at most, are looked at one by one."""
MAX_POINTS = 50_000
"""The newest points are played again, so many at most: each change takes some 80 ms for that."""
WORK_SHARES = (0.1, 0.9)
"""Where between its limits the work lies that no passage shows, in all but some programs."""
SAMPLING_ERRORS = 2
"""How many standard errors of a mean over some of the steps the range reaches beyond it."""
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
    """The host's own time in a launch-bound phase."""


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
        is_inside: whether it is about time inside steps; else about what lies between them.
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
    rows = [case.saving(part) for part in (*case.syncs(), *case.own_times(bottlenecks))]
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
    much of the device's work (`copies_ns`)."""

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
    """

    points: CorrelationPoints
    segments: Segments
    paced: Segments | None


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
        self._scenarios = [self._scenario(0, WORK_SHARE, is_paced=workers != 0)]
        if workers is None:
            self._scenarios.append(self._scenario(0, WORK_SHARE, is_paced=False))
        self._likely = len(self._scenarios)
        self._scenarios += [
            self._scenario(1, WORK_SHARES[1], is_paced=workers != 0),
            self._scenario(-1, WORK_SHARES[0], is_paced=bool(workers)),
        ]

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
        return float(busy_ns.mean())

    def _on_chain(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return covered_before(*self._windows_ns, times_ns)

    def _scenario(self, clock_sign: int, work_share: float, *, is_paced: bool) -> _Scenario:
        points = self._points.with_clock_off(clock_sign) if clock_sign else self._points
        segments = fit(points, empty_segments(self._run, points)[1], work_share)
        return _Scenario(points, segments, self._paced(segments) if is_paced else None)

    def _paced(self, segments: Segments) -> Segments | None:
        """With each batch given when it has arrived. None if it never matters."""
        points, loader = self._points, self._loader
        inside = interval_at(*self._windows_ns, loader.given_ns) >= 0
        inside &= interval_at(*self._windows_ns, loader.asked_ns) >= 0
        inside &= loader.arrived_ns >= 0
        if not inside.any():
            return None
        given_ns = self._on_chain(loader.given_ns[inside])
        data_kinds = 2 * np.flatnonzero(are_data(self._run))
        ends = np.flatnonzero((points.site < 0) & np.isin(points.kind, data_kinds))
        batch = np.searchsorted(given_ns, points.host_ns[ends])
        found = np.append(given_ns, -1)[batch] == points.host_ns[ends]
        segment, batch = ends[found] - 1, np.flatnonzero(inside)[batch[found]]
        since_ns = loader.given_ns[batch] - loader.arrived_ns[batch]
        # To hand over a batch that is there takes its time all the same.
        handing_ns = np.where(loader.waited[batch], 0, segments.host_ns[segment])
        host_ns, until_ns = segments.host_ns.copy(), segments.until_ns.copy()
        host_ns[segment] = np.minimum(host_ns[segment], READY_NS)
        until_ns[segment] = points.host_ns[segment + 1] - since_ns + handing_ns
        return replace(segments, host_ns=host_ns, until_ns=until_ns)

    def syncs(self) -> Iterator[_Part]:
        run, events = self._run, self._timeline.waits
        begins_ns, ends_ns = self._timeline.waits_ns
        events = events[(begins_ns >= self._begin_ns) & (ends_ns <= self._end_ns)]
        events = events[~run.syncs.is_meant(events)]
        step = interval_at(self._steps["begin_ns"], self._steps["end_ns"], events["begin_ns"])
        # Those of steps that do not count lie neither inside steps nor between them.
        counts = interval_at(
            self._timeline.steps["begin_ns"], self._timeline.steps["end_ns"], events["begin_ns"]
        )
        is_copy = np.array([site.kind in COPY_KINDS for site in run.syncs.sites], dtype=bool)
        for is_inside, chosen in ((True, events[step >= 0]), (False, events[counts < 0])):
            of_copies = is_copy[chosen["site"]] if len(chosen) else np.zeros(0, dtype=bool)
            reads = chosen[~of_copies]
            by_site = [
                _syncs(Change.SYNC, reads[places], is_inside, site)
                for site, places in groups(reads["site"])
            ]
            by_site.sort(key=lambda part: part.time_ns, reverse=True)
            yield from by_site[:MAX_SITES]
            if of_copies.any():
                yield _syncs(Change.COPIES, chosen[of_copies], is_inside)
            if is_inside and len(np.unique(chosen["site"])) > 1:
                yield _syncs(Change.ALL_SYNCS, chosen, is_inside)

    def own_times(self, bottlenecks: Mapping[int, PhaseBottleneck]) -> Iterator[_Part]:
        """Where the host was in the own time of phases `data` and of launch-bound ones, and not
        blocked, inside steps."""
        timeline, steps = self._timeline, self._steps
        waits_ns = timeline.waits_ns
        edges_ns = np.concatenate([timeline.host_ns, *waits_ns, steps["begin_ns"], steps["end_ns"]])
        cuts_ns = np.unique(np.clip(edges_ns, self._begin_ns, self._end_ns))
        begins_ns, ends_ns = cuts_ns[:-1], cuts_ns[1:]
        path = timeline.path_at(begins_ns)
        free = covered_before(*waits_ns, ends_ns) == covered_before(*waits_ns, begins_ns)
        free &= interval_at(steps["begin_ns"], steps["end_ns"], begins_ns) >= 0
        is_data = are_data(self._run)
        parts = [(Change.DATA_WAIT, -1, np.append(is_data, False)[path])]
        parts += [
            (Change.LAUNCHES, one, path == one)
            for one, bottleneck in bottlenecks.items()
            if bottleneck.kind == Bottleneck.LAUNCH and not is_data[one]
        ]
        for change, one, in_phase in parts:
            chosen = in_phase & free
            if chosen.any():
                begun = timeline.is_begin & np.isin(timeline.path, path[chosen])
                begun &= interval_at(steps["begin_ns"], steps["end_ns"], timeline.host_ns) >= 0
                yield _Part(
                    change,
                    begins_ns[chosen],
                    ends_ns[chosen],
                    calls=int(np.count_nonzero(begun)),
                    path=one,
                )

    def saving(self, part: _Part) -> Saving:
        steps = len(self._steps)
        at_most_ns, limit = self._at_most(part)
        scale = self._scale(part)
        gains_ns = [self._gains_ns(part, scenario) for scenario in self._scenarios]
        sums_ns = [float(gains.sum()) for gains in gains_ns]
        likely_ns = sum(sums_ns[: self._likely]) / self._likely
        off_ns = SAMPLING_ERRORS * self._sampling_error_ns(part, gains_ns[0])
        low_ns, high_ns = min(sums_ns) - off_ns, max(sums_ns) + off_ns
        low_ns, likely_ns, high_ns = (scale * ns for ns in (low_ns, likely_ns, high_ns))
        if part.change == Change.LAUNCHES or self._premises.one_rank is False:
            # How much of the time is launches, or what other ranks wait for, is not known.
            low_ns = 0.0
        if not self._premises.stream_never_waits:
            high_ns = math.inf
        if part.change == Change.DATA_WAIT and self._points.stream < 0:
            low_ns, likely_ns, high_ns = self._without_device(part)
        most_ns = min(part.time_ns, at_most_ns)
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

    def _scale(self, part: _Part) -> float:
        """From what is taken out of the steps that are played again to all."""
        chained_ns = int((self._on_chain(part.ends_ns) - self._on_chain(part.begins_ns)).sum())
        return part.time_ns / chained_ns if chained_ns else 0.0

    def _sampling_error_ns(self, part: _Part, gains_ns: NDArray[np.int64]) -> float:
        """The standard error of the sum of gains, as an estimate from some of the steps."""
        steps, all_steps = len(gains_ns), len(self._steps)
        if steps == all_steps:
            return 0.0
        if steps < 2:
            return math.inf
        begins_ns, ends_ns = self._on_chain(part.begins_ns), self._on_chain(part.ends_ns)
        taken_ns = np.diff(
            np.append(
                covered_before(begins_ns, ends_ns, self._points.host_ns[self._steps_begin]),
                (ends_ns - begins_ns).sum(),
            )
        )
        ratio = gains_ns.sum() / max(1, int(taken_ns.sum()))
        errors_ns = gains_ns - ratio * taken_ns
        variance = steps / (steps - 1) * float((errors_ns**2).sum())
        return math.sqrt(variance * (1 - steps / all_steps))

    def _without_device(self, part: _Part) -> tuple[float, float, float]:
        """Of a wait for data, when the device was not timed. Where there is a device, it may have
        to do what takes as long."""
        has_none = self._run.environment.get("gpus") == []
        return (part.time_ns if has_none else 0.0), part.time_ns, part.time_ns

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
            segments = scenario.paced
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
        return np.diff(was_done_ns - self._done_ns(points, segments, taken_out), prepend=0)

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


def _syncs(change: Change, events: NDArray[np.void], is_inside: bool, site: int = -1) -> _Part:
    copies_ns = np.minimum(
        events["duration_ns"], CALL_NS + COPY_NS_PER_BYTE * events["bytes"].astype(np.int64)
    )
    return _Part(
        change,
        events["begin_ns"],
        events["begin_ns"] + events["duration_ns"],
        calls=len(events),
        site=site,
        is_inside=is_inside,
        copies_ns=int(copies_ns.sum()),
    )
