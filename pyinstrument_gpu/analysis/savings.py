# SPDX-License-Identifier: Apache-2.0
"""What a change could save per step, before it is made: an interval [likely, at most].

docs/ledger.md explains both, and why *at most* can't be beaten.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.bottleneck import Bottleneck, PhaseBottleneck
from pyinstrument_gpu.analysis.correlation_points import (
    CALL_NS,
    COPY_NS_PER_BYTE,
    CorrelationPoints,
)
from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import covered_before
from pyinstrument_gpu.analysis.ledger import BUSY, are_data, device_pieces, empty_segments
from pyinstrument_gpu.analysis.replay import Segments, fit
from pyinstrument_gpu.analysis.replay import replay as play
from pyinstrument_gpu.model.groups import groups
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.sync_kind import SyncKind

COPY_KINDS = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)
MAX_SITES = 20
"""The sync sites that take most, so many at most, are looked at one by one."""
MAX_POINTS = 100_000
"""The newest points are played again, so many at most: each change takes some 50 ms for that."""
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


@dataclass(frozen=True)
class Saving:
    """What one change could save. Times are per step.

    Attributes:
        site: of a sync its site, an index into `Run.syncs.sites`; else -1.
        path: of launches their phase, an index into `Run.paths`; else -1.
        calls: how often, per step.
        time_ns: what the host spends on it.
        likely_ns, at_most_ns: the interval.
        spread_ns: quantiles of the likely saving over the steps, as `SPREAD` says.
        limit: what makes `at_most_ns` so small.
    """

    change: Change
    site: int
    path: int
    calls: float
    time_ns: float
    likely_ns: float
    at_most_ns: float
    spread_ns: tuple[float, float]
    limit: Limit


@dataclass(frozen=True)
class Savings:
    """The savings of a run, the largest likely one first.

    Attributes:
        step_ns: elapsed time per step.
        busy_ns: of that, what the device is proven to have been busy; None where that is not known
            of the whole device.
    """

    steps: int
    step_ns: float
    busy_ns: float | None
    rows: tuple[Saving, ...]


def savings(
    run: RunData,
    timeline: HostTimeline,
    points: CorrelationPoints,
    bottlenecks: Mapping[int, PhaseBottleneck],
) -> Savings:
    """Costs a replay for each sync site; see `MAX_POINTS`. `bottlenecks` are those in the steps."""
    steps = timeline.steps
    if len(points) > MAX_POINTS:
        steps = steps[steps["begin_ns"] >= points.host_ns[-MAX_POINTS]]
    if not len(steps):
        return Savings(0, 0.0, None, ())
    case = _Case(run, timeline, points, steps)
    rows = [case.saving(part) for part in (*case.syncs(), *case.own_times(bottlenecks))]
    rows.sort(key=lambda row: (row.likely_ns, row.at_most_ns), reverse=True)
    busy_ns = None if case.busy_ns is None else case.busy_ns / len(steps)
    return Savings(len(steps), case.elapsed_ns / len(steps), busy_ns, tuple(rows))


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
    copies_ns: int = 0

    @property
    def time_ns(self) -> int:
        return int((self.ends_ns - self.begins_ns).sum())


class _Case:
    def __init__(
        self,
        run: RunData,
        timeline: HostTimeline,
        points: CorrelationPoints,
        steps: NDArray[np.void],
    ) -> None:
        self._run, self._timeline, self._steps = run, timeline, steps
        self._begin_ns, self._end_ns = int(steps["begin_ns"][0]), int(steps["end_ns"][-1])
        self._points = points.within(self._begin_ns, self._end_ns)
        timing = run.device_timing
        self._event_ns = timing.record_ns / max(1, timing.records) if timing is not None else 0.0
        done_ns = max(self._end_ns, int(self._points.device_ns[-1]))
        self.elapsed_ns = done_ns - self._begin_ns
        self.busy_ns = self._busy_ns(done_ns)
        self._segments = fit(self._points, empty_segments(run, self._points)[1])
        self._steps_begin = np.searchsorted(self._points.host_ns, steps["begin_ns"])
        self._was_done_ns = self._done_ns(self._segments, None)

    def syncs(self) -> Iterator[_Part]:
        run, events = self._run, self._timeline.waits
        begins_ns, ends_ns = self._timeline.waits_ns
        events = events[(begins_ns >= self._begin_ns) & (ends_ns <= self._end_ns)]
        events = events[~run.syncs.is_meant(events)]
        is_copy = np.array([site.kind in COPY_KINDS for site in run.syncs.sites], dtype=bool)
        of_copies = is_copy[events["site"]] if len(events) else np.zeros(0, dtype=bool)
        reads = events[~of_copies]
        by_site = [
            _syncs(Change.SYNC, reads[places], site) for site, places in groups(reads["site"])
        ]
        by_site.sort(key=lambda part: part.time_ns, reverse=True)
        yield from by_site[:MAX_SITES]
        if of_copies.any():
            yield _syncs(Change.COPIES, events[of_copies])
        if len(np.unique(events["site"])) > 1:
            yield _syncs(Change.ALL_SYNCS, events)

    def saving(self, part: _Part) -> Saving:
        steps = len(self._steps)
        at_most_ns, limit = part.time_ns + round(2 * part.calls * self._event_ns), Limit.TIME
        if self.busy_ns is not None:
            left_ns = self.elapsed_ns - max(0, self.busy_ns - part.copies_ns)
            if left_ns < at_most_ns:
                at_most_ns, limit = left_ns, Limit.DEVICE
        gains_ns = self._gains_ns(part)
        likely_ns = min(max(int(gains_ns.sum()), 0), at_most_ns)
        low, high = np.quantile(gains_ns, SPREAD, method="inverted_cdf")
        return Saving(
            change=part.change,
            site=part.site,
            path=part.path,
            calls=part.calls / steps,
            time_ns=part.time_ns / steps,
            likely_ns=likely_ns / steps,
            at_most_ns=at_most_ns / steps,
            spread_ns=(float(low), float(high)),
            limit=limit,
        )

    def _gains_ns(self, part: _Part) -> NDArray[np.int64]:
        points, segments = self._points, self._segments

        def taken_before(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            return covered_before(part.begins_ns, part.ends_ns, times_ns)

        if points.stream < 0 and part.change == Change.DATA_WAIT:
            # The device was not timed: nothing says that it would have had more to do.
            return np.diff(taken_before(self._steps["end_ns"]), prepend=0)

        taken_ns = taken_before(points.host_ns[1:]) - taken_before(points.resume_ns[:-1])
        if part.change == Change.LAUNCHES:
            # What was launched over a time is now launched at once, and then takes its time.
            share = taken_ns / np.maximum(segments.host_ns, 1)
            risen_ns = np.rint(share * (segments.work_ns - segments.tail_ns)).astype(np.int64)
            tail_ns = segments.tail_ns + np.maximum(risen_ns, 0)
            segments = replace(segments, tail_ns=tail_ns)
        segments = replace(segments, host_ns=segments.host_ns - taken_ns)
        has_taken = taken_before(points.resume_ns) > taken_before(points.host_ns)
        taken_out = (points.site >= 0) & has_taken
        return np.diff(self._was_done_ns - self._done_ns(segments, taken_out), prepend=0)

    def _done_ns(
        self, segments: Segments, taken_out: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """When host and device were done with each step: at the first point of the next, and
        after all points."""
        done_ns = play(self._points, segments, taken_out).done_ns
        last = np.minimum(self._steps_begin[1:], len(done_ns) - 1)
        return np.append(done_ns[last], done_ns[-1])

    def _busy_ns(self, done_ns: int) -> int | None:
        points = self._points
        if points.stream < 0 or not points.is_only_stream:
            return None
        pieces = device_pieces(self._run, points)
        edges_ns = np.clip(pieces.edges_ns, self._begin_ns, done_ns)
        return int(np.diff(edges_ns)[pieces.state == BUSY].sum())

    def own_times(self, bottlenecks: Mapping[int, PhaseBottleneck]) -> Iterator[_Part]:
        """Where the host was in the own time of phases `data` and of launch-bound ones, and not
        blocked."""
        timeline = self._timeline
        waits_ns = timeline.waits_ns
        edges_ns = np.concatenate([timeline.host_ns, *waits_ns])
        cuts_ns = np.unique(np.clip(edges_ns, self._begin_ns, self._end_ns))
        begins_ns, ends_ns = cuts_ns[:-1], cuts_ns[1:]
        path = timeline.path_at(begins_ns)
        free = covered_before(*waits_ns, ends_ns) == covered_before(*waits_ns, begins_ns)
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
                yield _Part(
                    change,
                    begins_ns[chosen],
                    ends_ns[chosen],
                    calls=int(np.count_nonzero(begun)),
                    path=one,
                )


def _syncs(change: Change, events: NDArray[np.void], site: int = -1) -> _Part:
    copies_ns = np.minimum(
        events["duration_ns"], CALL_NS + COPY_NS_PER_BYTE * events["bytes"].astype(np.int64)
    )
    return _Part(
        change,
        events["begin_ns"],
        events["begin_ns"] + events["duration_ns"],
        calls=len(events),
        site=site,
        copies_ns=int(copies_ns.sum()),
    )
