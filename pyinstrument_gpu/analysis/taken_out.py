# SPDX-License-Identifier: Apache-2.0
"""The part of a run that a change takes out."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import CALL_NS, COPY_NS_PER_BYTE
from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import covered_before, interval_at
from pyinstrument_gpu.analysis.time_budget import are_data
from pyinstrument_gpu.core.arrays import distinct, groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import COPY_KINDS

MAX_SITES = 20
"""The sync sites that take most, so many at most, are looked at one by one."""


class Change(enum.Enum):
    SYNC = "sync"
    """The calls of one site."""
    ALL_SYNCS = "all syncs"
    COPIES = "copies to the device"
    """Copies that make the host wait: from pageable memory, or not `non_blocking`."""
    DATA_WAIT = "waiting for data"
    LAUNCHES = "launches"
    """The host's own time in a phase that was timed on the device."""


@dataclass(frozen=True)
class TakenOut:
    """The time taken out: of the host's time these intervals, which do not overlap, and at most so
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


def syncs(run: Run, timeline: HostTimeline, since_ns: int) -> Iterator[TakenOut]:
    """Yield each site's waits since a time, all copies to the device, and all of them together.
    Those after the last step are part of the time until all is done."""
    events = timeline.waits[timeline.waits["begin_ns"] >= since_ns]
    events = events[~run.syncs.is_allowed(events)]
    of_copies = run.syncs.of_kinds(events, COPY_KINDS)
    reads = events[~of_copies]
    by_site = [
        _of_events(timeline, Change.SYNC, reads[places], site)
        for site, places in groups(reads["site"])
    ]
    by_site.sort(key=lambda part: part.time_ns, reverse=True)
    yield from by_site[:MAX_SITES]
    if of_copies.any():
        yield _of_events(timeline, Change.COPIES, events[of_copies])
    if len(distinct(events["site"])) > 1:
        yield _of_events(timeline, Change.ALL_SYNCS, events)


def _of_events(
    timeline: HostTimeline, change: Change, events: NDArray[np.void], site: int = -1
) -> TakenOut:
    steps = timeline.steps
    copies_ns = COPY_NS_PER_BYTE * events["bytes"].astype(np.int64)
    inside = interval_at(steps["begin_ns"], steps["end_ns"], events["begin_ns"]) >= 0
    return TakenOut(
        change,
        events["begin_ns"],
        events["begin_ns"] + events["duration_ns"],
        calls=len(events),
        site=site,
        is_inside=bool(inside.all()),
        copies_ns=int((CALL_NS + copies_ns).sum()),
    )


def own_times(
    run: Run, timeline: HostTimeline, steps: NDArray[np.void], paths: Iterable[int]
) -> Iterator[TakenOut]:
    """Yield where the host was in the own time of phases `data`, inside steps and between them, and
    of these paths inside steps, and not blocked."""
    waits_ns = timeline.waits_ns
    edges_ns = np.concatenate([timeline.host_ns, *waits_ns, steps["begin_ns"], steps["end_ns"]])
    cuts_ns = distinct(np.maximum(edges_ns, int(steps["begin_ns"][0])))
    begins_ns, ends_ns = cuts_ns[:-1], cuts_ns[1:]
    path = timeline.path_at(begins_ns)
    free = covered_before(*waits_ns, ends_ns) == covered_before(*waits_ns, begins_ns)
    inside = interval_at(steps["begin_ns"], steps["end_ns"], begins_ns) >= 0
    all_steps = timeline.steps
    between = interval_at(all_steps["begin_ns"], all_steps["end_ns"], begins_ns) < 0
    is_data = are_data(run)
    in_data = np.append(is_data, False)[path]
    parts = [
        (Change.DATA_WAIT, -1, in_data & inside),
        (Change.DATA_WAIT, -1, in_data & between),
    ]
    parts += [(Change.LAUNCHES, one, (path == one) & inside) for one in paths if not is_data[one]]
    for change, one, in_phase in parts:
        chosen = in_phase & free
        if chosen.any():
            is_inside = bool(inside[chosen].all())
            begun = timeline.is_begin & np.isin(timeline.path, path[chosen])
            step = interval_at(all_steps["begin_ns"], all_steps["end_ns"], timeline.host_ns)
            begun &= (step >= 0) == is_inside
            yield TakenOut(
                change,
                begins_ns[chosen],
                ends_ns[chosen],
                calls=int(np.count_nonzero(begun)),
                path=one,
                is_inside=is_inside,
            )
