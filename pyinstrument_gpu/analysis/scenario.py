# SPDX-License-Identifier: Apache-2.0
"""Ways in which what a run does not tell may be, and what a change then saves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import LoaderBatches
from pyinstrument_gpu.analysis.correlation_points import CALL_NS, CorrelationPoints, Premises
from pyinstrument_gpu.analysis.intervals import covered_before, interval_at
from pyinstrument_gpu.analysis.replay import WORK_SHARE, ReplayedSteps, Segments, fit
from pyinstrument_gpu.analysis.taken_out import Change, TakenOut
from pyinstrument_gpu.analysis.time_budget import are_data, empty_segments
from pyinstrument_gpu.core.arrays import least_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import COPY_KINDS

LOW_WORK_SHARE, HIGH_WORK_SHARE = 1.0, 0.0
"""Where between its limits the work lies that no passage shows: at the one end, and the other."""
LOW_PINNED_BYTES_PER_NS, PINNED_BYTES_PER_NS, HIGH_PINNED_BYTES_PER_NS = 8, 16, 64
"""How fast a copy from pinned memory is: slower than most, usual, and faster than any bus."""


@dataclass(frozen=True)
class Scenario:
    """A way in which what the run does not tell may be.

    Attributes:
        replayed: the steps that are played again.
        points, segments: the run as it then was.
        paced: the segments, if each batch arrives when the loader has made it, and not so long
            after the loop has asked for it; None: it is the loop that makes batches.
        sooner_ns: of each sync site, by how much sooner the device would be done with a copy from
            pinned memory; 0 for what is no copy to the device.
    """

    replayed: ReplayedSteps
    points: CorrelationPoints
    segments: Segments
    paced: Segments | None
    sooner_ns: NDArray[np.int64]

    def gains_ns(self, taken: TakenOut) -> NDArray[np.int64]:
        """Return by how much sooner each replayed step is done, after the one before it."""
        points, segments, replayed = self.points, self.segments, self.replayed
        begins_ns, ends_ns = replayed.on_axis(taken.begins_ns), replayed.on_axis(taken.ends_ns)

        def taken_before(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            return covered_before(begins_ns, ends_ns, times_ns)

        if points.stream < 0 and taken.change == Change.DATA_WAIT:
            # The device was not timed: nothing says that it would have had more to do.
            before_ns = taken_before(points.host_ns[replayed.first_points])
            sooner_ns: NDArray[np.int64] = np.append(before_ns[1:], taken.time_ns) - before_ns
            return sooner_ns
        if self.paced is not None and taken.change != Change.DATA_WAIT:
            segments = self.paced
            was_done_ns = self._paced_done_ns
        else:
            was_done_ns = self._done_ns
        taken_ns = taken_before(points.host_ns[1:]) - taken_before(points.resume_ns[:-1])
        if taken.change == Change.LAUNCHES:
            # What was launched over a time is now launched at once, and then takes its time.
            share = taken_ns / np.maximum(segments.host_ns, 1)
            risen_ns = np.rint(share * (segments.work_ns - segments.tail_ns)).astype(np.int64)
            tail_ns = segments.tail_ns + np.maximum(risen_ns, 0)
            segments = replace(segments, tail_ns=tail_ns)
        segments = replace(segments, host_ns=np.maximum(segments.host_ns - taken_ns, 0))
        has_taken = taken_before(points.resume_ns) > taken_before(points.host_ns)
        taken_out = (points.site >= 0) & has_taken
        if taken.change in (Change.COPIES, Change.ALL_SYNCS):
            segments = self._with_pinned_copies(segments, taken_out)
        return np.diff(was_done_ns - replayed.done_ns(points, segments, taken_out), prepend=0)

    @cached_property
    def _done_ns(self) -> NDArray[np.int64]:
        return self.replayed.done_ns(self.points, self.segments)

    @cached_property
    def _paced_done_ns(self) -> NDArray[np.int64]:
        assert self.paced is not None
        return self.replayed.done_ns(self.points, self.paced)

    def _with_pinned_copies(self, segments: Segments, taken_out: NDArray[np.bool_]) -> Segments:
        """Return the segments with the copies taken out as fast as from pinned memory."""
        points = self.points
        sooner_ns = np.where(taken_out, np.append(self.sooner_ns, 0)[points.site], 0)[1:]
        sooner_ns[points.is_behind_cut[1:]] = 0
        work_ns, tail_ns = (
            np.maximum(ns - sooner_ns, np.minimum(ns, 0))
            for ns in (segments.work_ns, segments.tail_ns)
        )
        return replace(segments, work_ns=work_ns, tail_ns=tail_ns)


@dataclass(frozen=True)
class Scenarios:
    """The most plausible scenarios, which are one or two of equal weight, and both ends."""

    likely: tuple[Scenario, ...]
    low: Scenario
    high: Scenario


def scenarios(
    run: Run, replayed: ReplayedSteps, loader: LoaderBatches, premises: Premises
) -> Scenarios:
    workers = premises.loader_workers

    def scenario(
        work_share: float, bytes_per_ns: int, *, device_sign: int = 0, is_paced: bool
    ) -> Scenario:
        points = replayed.points.with_device_off(device_sign)
        segments = fit(points, empty_segments(run, points)[1], work_share)
        if work_share == LOW_WORK_SHARE:
            segments = segments.with_lead_as_it_was(points)
        if work_share == LOW_WORK_SHARE and premises.one_stream is False:
            segments = segments.with_waits_as_they_were(points)
        starts = loader.is_start if work_share == LOW_WORK_SHARE else loader.may_start
        paced = _paced(run, replayed, loader, segments, starts) if is_paced else None
        return Scenario(replayed, points, segments, paced, _sooner_ns(run, bytes_per_ns))

    likely = [scenario(WORK_SHARE, PINNED_BYTES_PER_NS, is_paced=workers != 0)]
    if workers is None:
        likely.append(scenario(WORK_SHARE, PINNED_BYTES_PER_NS, is_paced=False))
    low = scenario(LOW_WORK_SHARE, LOW_PINNED_BYTES_PER_NS, device_sign=1, is_paced=workers != 0)
    # A loader whose queue was full at times delivers sooner if it is asked sooner.
    high = scenario(HIGH_WORK_SHARE, HIGH_PINNED_BYTES_PER_NS, device_sign=-1, is_paced=False)
    return Scenarios(tuple(likely), low, high)


def _paced(
    run: Run,
    replayed: ReplayedSteps,
    loader: LoaderBatches,
    segments: Segments,
    starts: NDArray[np.bool_],
) -> Segments | None:
    """Return the segments with each batch given when it has arrived. None if it never matters."""
    points = replayed.points
    inside = interval_at(*replayed.windows_ns, loader.given_ns) >= 0
    inside &= interval_at(*replayed.windows_ns, loader.asked_ns) >= 0
    inside &= (loader.arrived_ns >= 0) | starts
    if not inside.any():
        return None
    given_ns = replayed.on_axis(loader.given_ns[inside])
    data_kinds = 2 * np.flatnonzero(are_data(run))
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


def _sooner_ns(run: Run, pinned_bytes_per_ns: int) -> NDArray[np.int64]:
    """Return for each site by how much sooner the device is done with a copy from pinned memory, by
    its shortest wait and its bytes in the mean."""
    sites = run.syncs.sites
    waits = run.syncs.events[run.syncs.events["duration_ns"] >= 0]
    shortest_ns = least_of(waits["site"], waits["duration_ns"], len(sites))
    counts = np.bincount(waits["site"], minlength=len(sites))
    mean_bytes = np.bincount(waits["site"], waits["bytes"], len(sites)) / np.maximum(counts, 1)
    pinned_ns = CALL_NS + np.rint(mean_bytes / pinned_bytes_per_ns).astype(np.int64)
    is_copy = run.syncs.are_of(COPY_KINDS) & (counts > 0)
    return np.where(is_copy, np.maximum(shortest_ns - pinned_ns, 0), 0)
