# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of phases, launches or the device, as shown by who waited for whom; and queue times,
which are how long after a phase began on the host its work began on the device.

The backlog of a span is the part of its device time after the host had left it. docs/device-time.md
says what that proves and what it can't.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import quantiles
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.analysis.time_budget import are_data
from pyinstrument_gpu.core.arrays import durations_ns_of, groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times, span_scopes
from pyinstrument_gpu.core.statistics import Scope

DEVICE_SHARE = 0.5
"""The share of its device time that is backlog, from which on a span is device-bound."""
HOST_PACE_SHARE = 0.25
"""The same share below which a span ran at the host's pace."""
BLOCKED_SHARE = 0.1
"""The share of its host time beyond which a span that waited for the device is blocked."""
LEAD_NS = 20_000
"""The device is behind the host by more than this where it has something left to do."""
FULL_QUEUE_LEAD_NS = 100_000
KEPT_LEAD = 0.8
"""A host that has so long a lead at the begin of a span, and this share of it at the end, is held
back by the device, as it is where launches wait for room in the queue."""
MIN_STREAM_NS = 10_000
"""Spans with less device time are not judged."""
MIN_SPANS = 5
"""Phases with fewer judged spans have no bottleneck."""
MIN_JUDGED_SHARE = 0.5
"""The share of a phase's device time that has to be judged."""
MAJORITY = 2 / 3
"""The share of the judged device time that makes a phase's bottleneck."""
_UNKNOWN_FROM_NS = 2.0**61
"""A clock that is off by so much, 73 years, says nothing."""


class Bottleneck(enum.IntEnum):
    UNKNOWN = 0
    LAUNCH = 1
    """The device waited for the host to enqueue work."""
    DEVICE = 2
    """The host had enqueued all work, and the device was still at it."""
    BLOCKED = 3
    """The host waited for the device inside the phase."""
    MIXED = 4
    """Some of both, or of a phase: none of them for most of its device time."""


@dataclass(frozen=True)
class PhaseBottleneck:
    """The bottleneck of a phase.

    Attributes:
        kind: what holds for most of its device time.
        is_certain: false where launch-bound rests on spans with unknown blocked time, and where,
            of a phase that seems device-bound, a replay likely saves most of the host's own time.
    """

    kind: Bottleneck
    is_certain: bool = True

    def __str__(self) -> str:
        if self.kind == Bottleneck.UNKNOWN:
            return "-"
        return self.kind.name.lower() + ("" if self.is_certain else "?")


def bottlenecks(
    run: Run, of_spans: NDArray[np.int64], scope: Scope | None = None
) -> Mapping[int, PhaseBottleneck]:
    """Return what limits each path with a device time; `of_spans` are the `span_bottlenecks`. Not a
    wait for data: that the device then waits for the host says nothing of launches."""
    timed = run.span_device_ns >= 0
    timed &= ~were_profiled(run, run.spans["step"])
    if scope is not None:
        timed &= span_scopes(run.spans) == scope
    kinds, paths = of_spans[timed], run.spans["path"][timed]
    is_data = are_data(run)
    stream_ns, blocked_known = run.span_device_ns[timed], run.spans["blocked_ns"][timed] >= 0
    return {
        path: _phase_bottleneck(kinds[places], stream_ns[places], blocked_known[places])
        for path, places in groups(paths)
        if not is_data[path]
    }


def span_bottlenecks(run: Run, uncertainty_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    """The `Bottleneck` of each span; `uncertainty_ns` is that of its clocks, for each span."""
    spans, stream_ns = run.spans, run.span_device_ns
    backlog_ns = spans["device_end_ns"] - spans["host_end_ns"]
    least_ns, most_ns = backlog_ns - uncertainty_ns, backlog_ns + uncertainty_ns
    device_ns, host_pace_ns = DEVICE_SHARE * stream_ns, HOST_PACE_SHARE * stream_ns
    host_ns = durations_ns_of(spans, "host_")
    # Comparisons with NaN are false: a span without a place on the axis is not judged.
    judged = stream_ns >= np.maximum(MIN_STREAM_NS, 2 * uncertainty_ns)
    device_bound = judged & (least_ns >= device_ns)
    at_host_pace = judged & (most_ns < host_pace_ns)
    mixed = judged & (least_ns >= host_pace_ns) & (most_ns < device_ns)
    blocked = spans["blocked_ns"] > BLOCKED_SHARE * host_ns
    lead_ns = spans["device_begin_ns"] - spans["host_begin_ns"] - uncertainty_ns
    keeps_lead = at_host_pace & (lead_ns >= FULL_QUEUE_LEAD_NS) & (least_ns >= KEPT_LEAD * lead_ns)
    # The device had something to do at both ends: it need not have waited in between.
    behind = at_host_pace & (lead_ns > LEAD_NS) & (least_ns > LEAD_NS)
    return np.select(
        [device_bound | keeps_lead, at_host_pace & blocked, behind | mixed, at_host_pace],
        [Bottleneck.DEVICE, Bottleneck.BLOCKED, Bottleneck.MIXED, Bottleneck.LAUNCH],
        Bottleneck.UNKNOWN,
    ).astype(np.int64)


def _phase_bottleneck(
    of_spans: NDArray[np.int64], stream_ns: NDArray[np.int64], blocked_known: NDArray[np.bool_]
) -> PhaseBottleneck:
    kinds = (Bottleneck.LAUNCH, Bottleneck.DEVICE, Bottleneck.BLOCKED, Bottleneck.MIXED)
    by_kind = {one: int(stream_ns[of_spans == one].sum()) for one in kinds}
    spans, judged_ns = np.count_nonzero(of_spans != Bottleneck.UNKNOWN), sum(by_kind.values())
    if spans < MIN_SPANS or judged_ns < MIN_JUDGED_SHARE * int(stream_ns.sum()):
        return PhaseBottleneck(Bottleneck.UNKNOWN)
    # At most one can hold more than half.
    majority = [one for one in kinds if by_kind[one] >= MAJORITY * judged_ns]
    kind = majority[0] if majority else Bottleneck.MIXED
    if kind != Bottleneck.LAUNCH:
        return PhaseBottleneck(kind)
    certain = (of_spans == Bottleneck.LAUNCH) & blocked_known
    return PhaseBottleneck(kind, int(stream_ns[certain].sum()) >= MAJORITY * judged_ns)


@dataclass(frozen=True)
class QueueTime:
    """The queue time of a phase: over how many spans, quantiles by nearest rank (negative where the
    clocks disagree by more), the median backlog, and by how much those of one span may be off, at
    worst."""

    spans: int
    p50_ns: int
    p95_ns: int
    backlog_p50_ns: int
    uncertainty_ns: float

    def follows_host(self, device_ns: float) -> bool:
        """Whether the device began and ended with the host: it need not have had anything to do in
        its median time."""
        late_ns = max(self.p50_ns, self.backlog_p50_ns) + self.uncertainty_ns
        return late_ns < HOST_PACE_SHARE * device_ns


def queue_times(
    run: Run, uncertainty_ns: NDArray[np.float64], scope: Scope | None = None
) -> Mapping[int, QueueTime]:
    """The queue time of each path with a span on the run's axis whose clock has an uncertainty."""
    chosen = ~np.isnan(uncertainty_ns)
    chosen &= ~were_profiled(run, run.spans["step"])
    if scope is not None:
        chosen &= span_scopes(run.spans) == scope
    spans = run.spans[chosen]
    uncertainty_ns = uncertainty_ns[chosen]
    ahead_ns = spans["device_begin_ns"] - spans["host_begin_ns"]
    backlog_ns = spans["device_end_ns"] - spans["host_end_ns"]
    by_path = {}
    for path, places in groups(spans["path"]):
        p50_ns, p95_ns = quantiles(ahead_ns[places], (0.5, 0.95))
        (backlog_p50_ns,) = quantiles(backlog_ns[places], (0.5,))
        worst_ns = float(uncertainty_ns[places].max())
        by_path[path] = QueueTime(len(places), p50_ns, p95_ns, backlog_p50_ns, worst_ns)
    return by_path


def clock_uncertainty_ns(run: Run) -> NDArray[np.float64]:
    """Return by how much the device times of each span may be off on the run's axis; NaN where its
    place or its clock is unknown."""
    uncertainty_ns = np.full(len(run.spans), np.nan)
    placed = has_device_times(run.spans) & (run.span_device_ns >= 0)
    for clock in run.device_clocks:
        of_device = np.flatnonzero(placed & (run.spans["device"] == clock.device))
        begin_ns = run.span_device_clock_ns[of_device]
        uncertainty_ns[of_device] = np.maximum(
            clock.uncertainty_at_ns(begin_ns),
            clock.uncertainty_at_ns(begin_ns + run.span_device_ns[of_device]),
        )
    uncertainty_ns[uncertainty_ns >= _UNKNOWN_FROM_NS] = np.nan
    return uncertainty_ns
