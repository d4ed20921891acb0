# SPDX-License-Identifier: Apache-2.0
"""Correlation points: the moments of a run at which host and device are both known.

Such a point is a boundary of a phase that was timed on the device, or the begin of a sync. What
lies between two successive points is a *segment*: what the host enqueued in it, the device did
between their device times. The points are of the thread that opened most steps, and of the stream
on which most of its phases were timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.sync_kind import SyncKind

CALL_NS = 20_000
"""What a sync costs at most if there is nothing to wait for, with its copy of a few bytes."""
COPY_NS_PER_BYTE = 1
"""What copied bytes add to that: 1 GB/s, slower than any bus."""
LATENCY_NS = 10_000
"""How long after the call an event or a kernel takes place on an idle device, at most."""

_COLUMNS = ("host_ns", "resume_ns", "device_ns", "uncertainty_ns", "path", "site", "kind")
_CLOSING = np.iinfo(np.int64).max
_DRAIN_NOTHING = (
    SyncKind.H2D_PAGEABLE,
    SyncKind.EVENT_SYNCHRONIZE,
    SyncKind.STREAM_SYNCHRONIZE,
    SyncKind.OTHER,
)


@dataclass(frozen=True)
class CorrelationPoints:
    """The correlation points of a run in order, as columns of equal length.

    Attributes:
        thread: an index into `Run.threads`; -1 where there is no step.
        stream: an index into `Run.streams`; -1 where nothing was timed.
        is_only_stream: whether no span of the run was timed on another one.
        host_ns, device_ns: when each was there, on the run's axis; `device_ns` is ascending.
        resume_ns: when the host went on: later than `host_ns` at a sync alone.
        uncertainty_ns: by how much `device_ns` may be off.
        path: the innermost phase behind the point; -1 none.
        site: of a sync its site, an index into `Run.syncs.sites`; -1 for a phase's boundary.
        kind: the same number for points of the same boundary of the same path, or of the same site.
    """

    thread: int
    stream: int
    is_only_stream: bool
    host_ns: NDArray[np.int64]
    resume_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]
    uncertainty_ns: NDArray[np.int64]
    path: NDArray[np.int64]
    site: NDArray[np.int64]
    kind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.host_ns)

    @property
    def segment_kind(self) -> NDArray[np.int64]:
        """Of each segment, one fewer than points, a number from 0 on: the same between points of
        the same two kinds."""
        _, kind = np.unique(self.kind, return_inverse=True)
        pair = kind[:-1] * (int(kind.max(initial=0)) + 1) + kind[1:]
        segment_kind: NDArray[np.int64] = np.unique(pair, return_inverse=True)[1]
        return segment_kind

    def within(self, begin_ns: int, end_ns: int) -> CorrelationPoints:
        """Those of a time, from the last one before it on, so that the first segment is whole. One
        more stands at the end, where the host is then; nothing is enqueued before it."""
        first = max(0, int(np.searchsorted(self.host_ns, begin_ns, side="right")) - 1)
        beyond = int(np.searchsorted(self.host_ns, end_ns, side="right"))
        device_ns = self.device_ns[beyond - 1] if beyond else end_ns
        added = (end_ns, end_ns, device_ns, 0, -1, -1, _CLOSING)
        columns: dict[str, Any] = {
            name: np.append(getattr(self, name)[first:beyond], value)
            for name, value in zip(_COLUMNS, added, strict=True)
        }
        return replace(self, **columns)


def correlation_points(
    run: RunData, timeline: HostTimeline, uncertainty_ns: NDArray[np.float64]
) -> CorrelationPoints:
    spans, thread = run.spans, timeline.thread
    # A span of no length encloses nothing; its two boundaries could only be told apart by order.
    timed = ~np.isnan(uncertainty_ns) & (spans["host_end_ns"] > spans["host_begin_ns"])
    streams, counts = np.unique(
        spans["stream"][timed & (spans["thread"] == thread)], return_counts=True
    )
    stream = int(streams[np.argmax(counts)]) if len(streams) else -1
    is_only_stream = bool((spans["stream"][timed] == stream).all())
    chosen = (timed & (spans["stream"] == stream))[timeline.span]
    span, is_begin = timeline.span[chosen], timeline.is_begin[chosen]
    device_ns = np.where(is_begin, spans["device_begin_ns"][span], spans["device_end_ns"][span])
    host_ns, site = timeline.host_ns[chosen], np.full(len(span), -1, np.int64)
    resume_ns, path = host_ns, timeline.path[chosen]
    kind = 2 * spans["path"][span].astype(np.int64) + is_begin
    error_ns = np.ceil(uncertainty_ns[span]).astype(np.int64)

    syncs = _draining(run, timeline.waits) if is_only_stream else timeline.waits[:0]
    before = np.searchsorted(host_ns, syncs["begin_ns"], side="right")
    ends_ns = syncs["begin_ns"] + syncs["duration_ns"]
    host_ns = np.insert(host_ns, before, syncs["begin_ns"])
    resume_ns = np.insert(resume_ns, before, ends_ns)
    device_ns = np.insert(device_ns, before, ends_ns - _call_cost_ns(syncs))
    error_ns = np.insert(error_ns, before, 0)
    path = np.insert(path, before, np.append(-1, path)[before])
    site = np.insert(site, before, syncs["site"])
    kind = np.insert(kind, before, -1 - syncs["site"].astype(np.int64))
    return CorrelationPoints(
        thread=thread,
        stream=stream,
        is_only_stream=is_only_stream,
        host_ns=host_ns,
        resume_ns=resume_ns,
        # What the clocks' uncertainty put out of order.
        device_ns=np.maximum.accumulate(device_ns),
        uncertainty_ns=error_ns,
        path=path,
        site=site,
        kind=kind,
    )


def _draining(run: RunData, waits: NDArray[np.void]) -> NDArray[np.void]:
    """The waits after which the stream is empty: reads of a result and `synchronize()`.

    Not the wait for an event or a stream, which may be an older or another one, nor a copy from
    pageable memory, in which the host is at work itself.
    """
    drains = np.array([site.kind not in _DRAIN_NOTHING for site in run.syncs.sites], dtype=bool)
    return waits[drains[waits["site"]]] if len(waits) else waits


def _call_cost_ns(events: NDArray[np.void]) -> NDArray[np.int64]:
    """What each sync may have cost without a wait: at most what is usual for such calls, at most
    what the shortest of its site took."""
    if not len(events):
        return np.zeros(0, np.int64)
    shortest_ns = np.full(int(events["site"].max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest_ns, events["site"], events["duration_ns"])
    usual_ns = CALL_NS + COPY_NS_PER_BYTE * events["bytes"].astype(np.int64)
    cost_ns: NDArray[np.int64] = np.minimum(shortest_ns[events["site"]], usual_ns)
    return cost_ns
