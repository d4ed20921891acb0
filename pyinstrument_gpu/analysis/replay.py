# SPDX-License-Identifier: Apache-2.0
"""The backlog model: a run's timeline played again, with less on the host.

The host goes from one correlation point to the next (see `correlation_points`), and what it does in
between takes as long as it took. The device does in each segment what it did. It is behind the
host, or waits for it:

    device at the end = the later of  device at the begin + work
                                and   host at the end + tail

*Work* is the stream time that the segment takes if all of it is enqueued in time. *Tail* is how
long the device still works when the host leaves the segment, if it was not behind at its begin.
For kernels in the order of their launches, each begun when it has been launched and the one before
it has ended, that is exact: whatever their number and lengths, two numbers describe the segment.
A sync that stays makes the host wait until the device is there, as it did, but for the time that it
now has to. One that is taken out takes no time.

What the two are, one passage through a segment does not tell, as only the later one shows. Where
the device was late at the begin it was the work; where it was idle, the tail. In between it was the
work, if other passages show that the tail is less. What stays unknown is how much work there is in
a segment that the device always entered idle, as behind a sync: at least the tail, at most all the
time the device had. The model takes the least time that it ever had there for the upper limit, and
the point at `WORK_SHARE` between the limits.

Played again with nothing taken out, the model gives the run as it was.

What the model does not know: a full launch queue (the host could run ahead by any number of
launches), other streams, loaders that would deliver later because the program asks sooner, and
clock rates that change with load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import LATENCY_NS, CorrelationPoints

WORK_SHARE = 0.5
"""Where between its limits the work is taken to be that no passage shows."""
_TOLERANCE_NS = 2 * LATENCY_NS


@dataclass(frozen=True)
class Segments:
    """What lies between the correlation points of a run, one fewer than points.

    Attributes:
        host_ns: how long the host takes, without what it waits in a sync at the begin.
        work_ns, tail_ns: what the device does in it.
    """

    host_ns: NDArray[np.int64]
    work_ns: NDArray[np.int64]
    tail_ns: NDArray[np.int64]


def fit(points: CorrelationPoints, is_empty: NDArray[np.bool_]) -> Segments:
    """The numbers of each segment, so that the replay of all gives the points as they were.

    Args:
        is_empty: for each segment whether it is known to enqueue nothing.
    """
    host0_ns, host1_ns = points.resume_ns[:-1], points.host_ns[1:]
    device0_ns, device1_ns = points.device_ns[:-1], points.device_ns[1:]
    backlog_ns = device1_ns - host1_ns
    # What the segment enqueues cannot begin before the host enters it.
    most_ns = device1_ns - np.maximum(device0_ns, host0_ns)
    kinds = points.segment_kind
    late = device0_ns >= host1_ns
    idle = device0_ns <= host0_ns + _TOLERANCE_NS
    tails = _medians(kinds, backlog_ns, idle)
    known_tail = ~np.isnan(tails)
    behind_tail = known_tail & (backlog_ns > tails + _TOLERANCE_NS)
    shows_work = late | (~idle & behind_tail)
    works = _medians(kinds, most_ns, shows_work)
    least_ns = np.clip(backlog_ns, 0, most_ns)
    limit_ns = np.where(is_empty, least_ns, np.minimum(most_ns, _minima(kinds, most_ns)))
    guess_ns = least_ns + WORK_SHARE * np.maximum(limit_ns - least_ns, 0)
    assumed_ns = np.where(np.isnan(works), guess_ns, np.clip(works, least_ns, most_ns))
    work_ns = np.where(shows_work, most_ns, np.rint(assumed_ns).astype(np.int64))
    # Where the work alone explains the end, the tail is no more than elsewhere.
    explained = device0_ns + work_ns >= device1_ns
    usual_ns = np.rint(np.where(known_tail, tails, work_ns)).astype(np.int64)
    tail_ns = np.where(explained, np.minimum(backlog_ns, usual_ns), backlog_ns)
    return Segments(host1_ns - host0_ns, work_ns, tail_ns)


@dataclass(frozen=True)
class Replayed:
    """When host and device are at each point."""

    host_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]

    @property
    def done_ns(self) -> NDArray[np.int64]:
        """When both are."""
        return np.maximum(self.host_ns, self.device_ns)


def replay(
    points: CorrelationPoints, segments: Segments, taken_out: NDArray[np.bool_] | None = None
) -> Replayed:
    """The points played again.

    Args:
        taken_out: the points whose sync is not called any more; none when None.

    Cost: about 0.5 us per point.
    """
    waits = points.site >= 0
    if taken_out is not None:
        waits &= ~taken_out
    costs_ns = np.where(waits, points.resume_ns - np.maximum(points.host_ns, points.device_ns), -1)
    host, device = int(points.host_ns[0]), int(points.device_ns[0])
    hosts, devices = [host], [device]
    columns = (costs_ns[:-1], segments.host_ns, segments.work_ns, segments.tail_ns)
    for cost, stay, work, tail in zip(*(column.tolist() for column in columns), strict=True):
        if cost >= 0:
            host = max(host, device) + cost
        host += stay
        device = max(device + work, host + tail)
        hosts.append(host)
        devices.append(device)
    return Replayed(np.array(hosts, np.int64), np.array(devices, np.int64))


def _medians(
    kinds: NDArray[np.int64], values: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """For each segment the median of the chosen values of its kind; NaN where there is none."""
    medians = np.full(int(kinds.max(initial=-1)) + 1, np.nan)
    kinds_of, values_of = kinds[chosen], values[chosen]
    order = np.lexsort((values_of, kinds_of))
    present, first, counts = np.unique(kinds_of[order], return_index=True, return_counts=True)
    medians[present] = values_of[order][first + (counts - 1) // 2]
    return medians[kinds]


def _minima(kinds: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each segment the least value of its kind."""
    minima = np.full(int(kinds.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(minima, kinds, values)
    return minima[kinds]
