# SPDX-License-Identifier: Apache-2.0
"""The backlog model: the steps of a run that were timed, played again with less on the host.

The host takes as long as it took from one correlation point to the next, and for the device

    device at the end = the later of  device at the begin + work
                            and   host at the end + tail

docs/savings.md says what work and tail are, how they are found, and what the model does not know.
With nothing taken out it gives the run as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import LATENCY_NS, CorrelationPoints
from pyinstrument_gpu.analysis.intervals import covered_before, joined
from pyinstrument_gpu.analysis.time_budget import are_timed
from pyinstrument_gpu.core.arrays import least_of
from pyinstrument_gpu.core.run import Run

WORK_SHARE = 0.5
"""Where between its limits the work is likely to be that no passage shows, if the device was done
with it as soon as the host had launched it."""
BACKLOG_WEIGHT = 4.0
"""The more of it the device still had to do then, against the time of the host, the closer it is to
its upper limit: its distance falls by e for each such part of the time. So the savings of 184
simulated programs were right in the mean; from 3 to 10 it made little difference."""
QUANTILE_SHARE = 0.8
"""Of the work that other passes of a segment showed, a quantile is taken for those that show none:
from 0.1 to 0.9, as the share says."""
LEAD_NS = 100_000
"""A lead of the host that a full launch queue may be the reason of is at least so long."""
KEPT_LEAD = 0.8
"""The share of its lead that the host still has behind a segment in which the device never was
without work."""
KEPT_FULL_LEAD = 0.9
"""The same, if it is certain that the queue is full."""
_TOLERANCE_NS = 2 * LATENCY_NS
NEVER_NS = -(1 << 60)
UNBOUNDED_NS = 1 << 60


@dataclass(frozen=True)
class Segments:
    """The segments between the correlation points of a run, one fewer than points.

    `host_ns` is how long the host takes, without what it waits in a sync at the begin. The next
    are times before which host and device can't be at the end, however soon they come; the host's
    are counted from the end of the last segment for which `is_start` holds: there the loader, whose
    times they are, was started again. At no end is the host ahead of the device by more than
    `most_lead_ns`, because the launch queue holds no more.
    """

    host_ns: NDArray[np.int64]
    work_ns: NDArray[np.int64]
    tail_ns: NDArray[np.int64]
    host_until_ns: NDArray[np.int64]
    device_until_ns: NDArray[np.int64]
    is_start: NDArray[np.bool_]
    most_lead_ns: int = UNBOUNDED_NS

    def with_lead_as_it_was(self, points: CorrelationPoints) -> Segments:
        """Return the same if the launch queue is full at the longest lead that the host had."""
        most_ns = int((points.device_ns - points.host_ns).max(initial=0))
        return replace(self, most_lead_ns=most_ns)

    def with_waits_as_they_were(self, points: CorrelationPoints) -> Segments:
        """Return the same if the stream, wherever it did not just follow the host, waited for
        something that comes when it came: another stream's work, or another rank."""
        follows = points.device_ns[1:] <= points.host_ns[1:] + self.tail_ns + _TOLERANCE_NS
        follows |= points.is_behind_cut[1:]
        return replace(self, device_until_ns=np.where(follows, NEVER_NS, points.device_ns[1:]))


def fit(
    points: CorrelationPoints, is_empty: NDArray[np.bool_], work_share: float = WORK_SHARE
) -> Segments:
    """The numbers of each segment, so that the replay of all gives the points as they were.

    `is_empty` says of each segment whether it is known to enqueue nothing.
    """
    host0_ns, host1_ns = points.resume_ns[:-1], points.host_ns[1:]
    device0_ns, device1_ns = points.device_ns[:-1], points.device_ns[1:]
    backlog_ns = device1_ns - host1_ns
    # What the segment enqueues cannot begin before the host enters it.
    most_ns = device1_ns - np.maximum(device0_ns, host0_ns)
    # Across a cut the device is as far behind as it was, unless it had done all before.
    kinds, is_whole = points.segment_kind, ~points.is_behind_cut[1:] | (device0_ns <= host0_ns)
    late = device0_ns >= host1_ns
    idle = device0_ns <= host0_ns + _TOLERANCE_NS
    tails = _quantiles(kinds, backlog_ns, idle & is_whole, 0.5)
    known_tail = ~np.isnan(tails)
    behind_tail = known_tail & (backlog_ns > tails + _TOLERANCE_NS)
    # Late behind the usual tail it may also have waited for a slow host: that is no proof.
    shows_work = late | (~idle & behind_tail & (work_share > 0))
    works = _quantiles(kinds, most_ns, shows_work & is_whole, QUANTILE_SHARE * work_share + 0.1)
    least_ns = np.clip(backlog_ns, 0, np.maximum(most_ns, 0))
    # If the work is always the same, even the shortest pass had room for it.
    minima_ns = most_ns
    if work_share < 1:
        count = int(kinds.max(initial=-1)) + 1
        minima_ns = least_of(kinds[is_whole], most_ns[is_whole], count)[kinds]
    limit_ns = np.where(is_empty, least_ns, np.minimum(most_ns, minima_ns))
    # A host that keeps its lead was held back by the device, as by a full launch queue.
    lead_ns = device0_ns - host0_ns
    keeps_lead = (lead_ns >= LEAD_NS) & (backlog_ns >= KEPT_LEAD * lead_ns)
    if work_share == 0:
        # Or it launched little, and that late, unless its lead stayed the longest of all.
        keeps_lead &= np.abs(backlog_ns - lead_ns) <= (1 - KEPT_FULL_LEAD) * lead_ns
        keeps_lead &= lead_ns >= KEPT_LEAD * int((points.device_ns - points.host_ns).max())
    # The more it still has to do behind the segment, the less it waited in it.
    shares = np.full(len(backlog_ns), work_share)
    if 0 < work_share < 1:
        behind = np.maximum(backlog_ns, 0) / np.maximum(host1_ns - host0_ns, 1)
        shares = 1 - (1 - work_share) * np.exp(-BACKLOG_WEIGHT * behind)
    share = np.where(keeps_lead, 1.0, shares)
    guess_ns = least_ns + share * np.maximum(limit_ns - least_ns, 0)
    assumed_ns = np.where(
        np.isnan(works), guess_ns, np.clip(works, least_ns, np.maximum(most_ns, least_ns))
    )
    work_ns = np.where(shows_work, most_ns, np.rint(assumed_ns).astype(np.int64))
    # Where the work alone explains the end, the tail is no more than elsewhere.
    explained = device0_ns + work_ns >= device1_ns
    usual_ns = np.rint(np.where(known_tail, tails, work_ns)).astype(np.int64)
    tail_ns = np.where(explained, np.minimum(backlog_ns, usual_ns), backlog_ns)
    return Segments(
        host_ns=host1_ns - host0_ns,
        work_ns=np.where(is_whole, work_ns, device1_ns - device0_ns),
        tail_ns=np.where(is_whole, tail_ns, NEVER_NS),
        host_until_ns=np.full(len(work_ns), NEVER_NS),
        device_until_ns=np.full(len(work_ns), NEVER_NS),
        is_start=np.zeros(len(work_ns), dtype=bool),
    )


@dataclass(frozen=True)
class Replayed:
    """The times at which host and device are at each point."""

    host_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]

    @property
    def done_ns(self) -> NDArray[np.int64]:
        return np.maximum(self.host_ns, self.device_ns)


def replay(
    points: CorrelationPoints, segments: Segments, taken_out: NDArray[np.bool_] | None = None
) -> Replayed:
    """The points played again, without the syncs `taken_out`. Costs about 0.5 us per point."""
    waits = points.site >= 0
    if taken_out is not None:
        waits &= ~taken_out
    costs_ns = np.where(waits, points.resume_ns - np.maximum(points.host_ns, points.device_ns), -1)
    host, device = int(points.host_ns[0]), int(points.device_ns[0])
    hosts, devices = [host], [device]
    columns = (
        costs_ns[:-1],
        segments.host_ns,
        segments.work_ns,
        segments.tail_ns,
        segments.host_until_ns,
        segments.device_until_ns,
        segments.is_start,
        points.host_ns[1:],
    )
    sooner, most_lead = 0, segments.most_lead_ns
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for cost, stay, work, tail, host_until, device_until, is_start, was in rows:
        if cost >= 0:
            host = max(host, device) + cost
        host = max(host + stay, host_until - sooner)
        if is_start:
            sooner = was - host
        device = max(device + work, host + tail, device_until)
        host = max(host, device - most_lead)
        hosts.append(host)
        devices.append(device)
    return Replayed(np.array(hosts, np.int64), np.array(devices, np.int64))


def _quantiles(
    kinds: NDArray[np.int64],
    values: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    quantile: float,
) -> NDArray[np.float64]:
    """Return for each segment a quantile of the chosen values of its kind; NaN if none."""
    found = np.full(int(kinds.max(initial=-1)) + 1, np.nan)
    kinds_of, values_of = kinds[chosen], values[chosen]
    order = np.lexsort((values_of, kinds_of))
    present, first, counts = np.unique(kinds_of[order], return_index=True, return_counts=True)
    found[present] = values_of[order][first + ((counts - 1) * quantile).astype(np.int64)]
    return found[kinds]


@dataclass(frozen=True)
class ReplayedSteps:
    """A selection of a run's steps, on an axis of their own on which nothing lies between them.

    Attributes:
        steps: all steps, as rows of `Run.steps.array`.
        are_replayed: which of them are played again: all, if none was timed.
        windows_ns: the times that are played again, as begins and ends on the run's axis. Each
            reaches to the begin of the next step: what lies between steps is part of how far the
            host gets ahead. Of windows in succession nothing is cut out.
        points: the correlation points in them.
        first_points: of each step that is played again, the first point in it.
    """

    steps: NDArray[np.void]
    are_replayed: NDArray[np.bool_]
    windows_ns: tuple[NDArray[np.int64], NDArray[np.int64]]
    points: CorrelationPoints
    first_points: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.first_points)

    def on_axis(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the run on the axis of the windows, those between two at the cut."""
        return covered_before(*self.windows_ns, times_ns)

    def done_ns(
        self,
        points: CorrelationPoints,
        segments: Segments,
        taken_out: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Return when host and device are done with each step, played without the syncs
        `taken_out`: at the first point of the next, and after all points."""
        done_ns = replay(points, segments, taken_out).done_ns
        last = np.minimum(self.first_points[1:], len(done_ns) - 1)
        return np.append(done_ns[last], done_ns[-1])


def replayed_steps(run: Run, points: CorrelationPoints, steps: NDArray[np.void]) -> ReplayedSteps:
    are_replayed = are_timed(run, points, steps)
    if not are_replayed.any():
        are_replayed[:] = True
    begins_ns = steps["begin_ns"][are_replayed]
    ends_ns = np.append(steps["begin_ns"][1:], steps["end_ns"][-1])[are_replayed]
    windows_ns = joined(begins_ns, ends_ns)
    chained = points.chained(*windows_ns)
    first_points = np.searchsorted(chained.host_ns, covered_before(*windows_ns, begins_ns))
    return ReplayedSteps(steps, are_replayed, windows_ns, chained, first_points)
