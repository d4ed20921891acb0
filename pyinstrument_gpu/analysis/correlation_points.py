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
from pyinstrument_gpu.analysis.intervals import covered_before
from pyinstrument_gpu.core.arrays import least_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.core.sync_kind import COPY_KINDS, SyncKind

CALL_NS = 20_000
"""What a sync costs at most if there is nothing to wait for, with its copy of a few bytes."""
COPY_NS_PER_BYTE = 1
"""What copied bytes add to that: 1 GB/s, slower than any bus."""
LIKELY_SLACK = 0.8
"""How much of that a copy is likely to be faster: 5 GB/s, as is usual of pageable memory."""
LATENCY_NS = 10_000
"""How long after the call an event or a kernel takes place on an idle device, at most."""

_COLUMNS = (
    "host_ns",
    "resume_ns",
    "device_ns",
    "uncertainty_ns",
    "slack_ns",
    "path",
    "site",
    "kind",
    "is_behind_cut",
)
_OPENING, _CLOSING = np.iinfo(np.int64).min, np.iinfo(np.int64).max
MAX_CONTRADICTED = 0.02
"""The share of a site's waits that may seem to end before the stream is empty, at most, for it to
be one that drains the stream."""
MAX_LOST_TIMES = 0.01
"""The share of device times that may be lost, at most, with no more to say of it."""
MAX_RETRIES = 0.01
"""How often per step the allocator may flush its cache, at most, with no more to say of it."""
_DRAIN_NOTHING = (
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
        slack_ns: of a sync, by how much later than `device_ns` the device may have been done before
            it: that leaves room for a slow copy of what is read.
        path: the innermost phase behind the point; -1 none.
        site: of a sync its site, an index into `Run.syncs.sites`; -1 for a phase's boundary.
        kind: the same number for points of the same boundary of the same path, or of the same site.
        is_behind_cut: whether something was cut out between it and the point before.
    """

    thread: int
    stream: int
    is_only_stream: bool
    host_ns: NDArray[np.int64]
    resume_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]
    uncertainty_ns: NDArray[np.int64]
    slack_ns: NDArray[np.int64]
    path: NDArray[np.int64]
    site: NDArray[np.int64]
    kind: NDArray[np.int64]
    is_behind_cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.host_ns)

    @property
    def segment_kind(self) -> NDArray[np.int64]:
        """The kind of each segment, one fewer than points, as a number from 0 on: the same between
        points of the same two kinds."""
        _, kind = np.unique(self.kind, return_inverse=True)
        pair = kind[:-1] * (int(kind.max(initial=0)) + 1) + kind[1:]
        segment_kind: NDArray[np.int64] = np.unique(pair, return_inverse=True)[1]
        return segment_kind

    def chained(
        self, begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
    ) -> CorrelationPoints:
        """Return the points within windows of time, with what lies between the windows cut out: on
        an axis on which each window begins where the one before it ends, the first at 0.

        What the device did across a cut is not known, only how far behind the host it was on both
        sides. One more point stands at the end of each window, where the host is then. Nothing is
        enqueued before it if the device was timed; else the device may work until then. Nothing is
        known of the device before the first point.
        """
        first = np.searchsorted(self.host_ns, begins_ns, side="left")
        beyond = np.searchsorted(self.host_ns, ends_ns, side="right")
        counts = np.maximum(beyond - np.maximum(first, np.append(0, beyond[:-1])), 0)
        starts = beyond - counts
        window = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(window)) - np.repeat(np.cumsum(counts) - counts, counts)
        places += starts[window]
        host_ns = covered_before(begins_ns, ends_ns, self.host_ns[places])
        shift_ns = self.host_ns[places] - host_ns
        device_ns = self.device_ns[places] - shift_ns
        end_ns = int((ends_ns - begins_ns).sum())
        chained: dict[str, Any] = {
            "host_ns": host_ns,
            "resume_ns": covered_before(begins_ns, ends_ns, self.resume_ns[places]),
            "device_ns": device_ns,
            "is_behind_cut": np.diff(window, prepend=-1) > 0,
        }
        chained |= {name: getattr(self, name)[places] for name in _COLUMNS if name not in chained}
        ends = np.append(np.flatnonzero(np.diff(window)), len(places) - 1)
        closed_ns = np.append(np.cumsum(ends_ns - begins_ns)[window[ends[:-1]]], end_ns)
        last_ns = device_ns[ends] if len(places) else np.zeros(1, np.int64)
        none = np.zeros_like(closed_ns)
        closing: dict[str, Any] = dict.fromkeys(_COLUMNS, none)
        closing |= {
            "host_ns": closed_ns,
            "resume_ns": closed_ns,
            "path": none - 1,
            "site": none - 1,
        }
        closing["device_ns"] = last_ns if self.stream >= 0 else np.maximum(last_ns, closed_ns)
        closing["kind"] = np.full_like(closed_ns, _CLOSING)
        if len(places):
            closing |= {name: chained[name][ends] for name in ("uncertainty_ns", "slack_ns")}
        opening = (0, 0, 0, 0, 0, -1, -1, _OPENING, False)
        for name, opened in zip(_COLUMNS, opening, strict=True):
            column = np.insert(chained[name], ends + 1, closing[name])
            chained[name] = np.concatenate([[opened], column])
        return replace(self, **chained)

    def with_device_off(self, sign: int) -> CorrelationPoints:
        """Return the same with the device as late (1) or as early (-1) as clocks and copies allow,
        or as it likely was (0)."""
        slack_share = (0.0, LIKELY_SLACK, 1.0)[sign + 1]
        device_ns = self.device_ns + sign * self.uncertainty_ns
        device_ns += np.rint(slack_share * self.slack_ns).astype(np.int64)
        parts = np.split(device_ns, np.flatnonzero(self.is_behind_cut))
        # What is exact stays where it is, and the order stays what it was.
        if sign > 0:
            parts = [np.minimum.accumulate(part[::-1])[::-1] for part in parts]
        else:
            parts = [np.maximum.accumulate(part) for part in parts]
        return replace(self, device_ns=np.concatenate(parts))


def correlation_points(
    run: Run, timeline: HostTimeline, uncertainty_ns: NDArray[np.float64]
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

    syncs = timeline.waits[:0]
    if is_only_stream:
        syncs = _draining(run, timeline.waits, host_ns, device_ns - error_ns)
    before = np.searchsorted(host_ns, syncs["begin_ns"], side="right")
    ends_ns = syncs["begin_ns"] + syncs["duration_ns"]
    most_ns, least_ns = _call_costs_ns(run, syncs)
    host_ns = np.insert(host_ns, before, syncs["begin_ns"])
    resume_ns = np.insert(resume_ns, before, ends_ns)
    device_ns = np.insert(device_ns, before, ends_ns - most_ns)
    slack_ns = np.insert(np.zeros_like(error_ns), before, most_ns - least_ns)
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
        device_ns=_in_order(device_ns, site >= 0),
        uncertainty_ns=error_ns,
        slack_ns=slack_ns,
        path=path,
        site=site,
        kind=kind,
        is_behind_cut=np.zeros(len(host_ns), dtype=bool),
    )


def _in_order(device_ns: NDArray[np.int64], is_sync: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Put in order what the clocks' uncertainty put out of order. The times of syncs are the host's
    own: what was enqueued before one was done by then."""
    latest_ns = np.where(is_sync, device_ns, np.iinfo(np.int64).max)
    latest_ns = np.minimum.accumulate(latest_ns[::-1])[::-1]
    ordered: NDArray[np.int64] = np.maximum.accumulate(np.minimum(device_ns, latest_ns))
    return ordered


def _draining(
    run: Run, waits: NDArray[np.void], host_ns: NDArray[np.int64], device_ns: NDArray[np.int64]
) -> NDArray[np.void]:
    """The waits after which the stream is empty: reads of a result, `synchronize()`, and copies to
    the device, for which torch waits too.

    Not the wait for an event or a stream, which may be an older or another one. Nor the sites that
    the device contradicts, by passing events later that were enqueued before the wait: copies from
    pageable memory with `non_blocking`, in which the host is at work itself, or reads on another
    stream. The boundaries of phases are given by their times, the device's at the earliest.
    """
    if not len(waits):
        return waits
    drains = ~run.syncs.are_of(_DRAIN_NOTHING)
    before = np.searchsorted(host_ns, waits["begin_ns"], side="right")
    last_ns = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(device_ns))[before]
    contradicted = last_ns > waits["begin_ns"] + waits["duration_ns"]
    sites = len(run.syncs.sites)
    counts = np.bincount(waits["site"], minlength=sites)
    drains &= np.bincount(waits["site"], contradicted, sites) <= MAX_CONTRADICTED * counts
    draining: NDArray[np.void] = waits[drains[waits["site"]] & ~contradicted]
    return draining


def _call_costs_ns(
    run: Run, events: NDArray[np.void]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what each sync may have cost without a wait, at most, and if copies took no time: what
    is usual for such calls, at most what the shortest of its site took. A copy to the device is
    work that is waited for."""
    shortest_ns = least_of(events["site"], events["duration_ns"], len(run.syncs.sites))
    shortest_ns = shortest_ns[events["site"]]
    is_copy = run.syncs.of_kinds(events, COPY_KINDS)
    read_bytes = np.where(is_copy, 0, events["bytes"].astype(np.int64))
    least_ns: NDArray[np.int64] = np.minimum(shortest_ns, CALL_NS)
    usual_ns = CALL_NS + COPY_NS_PER_BYTE * read_bytes
    most_ns: NDArray[np.int64] = np.minimum(shortest_ns, usual_ns)
    return most_ns, least_ns


@dataclass(frozen=True)
class Premises:
    """The premises of what the device times of one stream prove, as far as they are known.

    Events prove that everything before them on their stream is done. They don't tell work from a
    wait: a stream that waits for another one, or in a collective for another rank, looks as if it
    worked.

    Attributes:
        one_stream: whether the device worked on a single stream; None unknown.
        one_rank: whether no other process took part in the training; None unknown.
        loader_workers: the worker processes of the loader; None unknown.
        cores: the processors that the process may use; None unknown.
        lost_times: of the spans of steps that were timed on the device, the share whose times did
            not become known.
        allocation_retries: how often per step PyTorch's allocator gave its unused memory back to
            the driver to get what it needed; None unknown.
    """

    one_stream: bool | None
    one_rank: bool | None
    loader_workers: int | None
    cores: int | None
    lost_times: float
    allocation_retries: float | None

    @property
    def lacks_times(self) -> bool:
        """True if so many device times are lost that segments are not what they seem."""
        return self.lost_times > MAX_LOST_TIMES

    @property
    def waits_in_allocator(self) -> bool:
        """True if the allocator often makes the host wait for the device, which nothing watches: a
        wait that is removed then comes back there."""
        return self.allocation_retries is not None and self.allocation_retries > MAX_RETRIES

    @property
    def lacks_cores(self) -> bool:
        """True if the loader's workers and the loop are known to be as many as there are cores, so
        that more workers may deliver no more."""
        workers, cores = self.loader_workers, self.cores
        return workers is not None and cores is not None and workers + 1 >= cores

    @property
    def stream_never_waits(self) -> bool:
        """True if the stream is known to work wherever it has something enqueued."""
        return self.one_stream is True and self.one_rank is True

    @property
    def doubt(self) -> str | None:
        """The thing that the stream may wait for when it looks busy, in words; None: nothing."""
        if self.stream_never_waits:
            return None
        if self.one_rank is False:
            return "for another rank"
        if self.one_stream is False:
            return "for another stream"
        return "for another stream or rank; this run can't tell"


def premises(run: Run, points: CorrelationPoints) -> Premises:
    facts = run.program_facts
    other_streams = True if not points.is_only_stream else facts.other_streams
    ranks = facts.ranks
    world_size = run.environment.get("world_size")
    if ranks is None and world_size is not None and world_size > 1:
        ranks = world_size
    return Premises(
        one_stream=None if other_streams is None else not other_streams,
        one_rank=None if ranks is None else ranks == 1,
        loader_workers=facts.loader_workers,
        cores=run.environment.get("cores"),
        lost_times=_lost_times(run, points.thread),
        allocation_retries=None
        if run.memory is None or run.memory.allocation_retries is None
        else run.memory.allocation_retries / max(1, run.steps_ended),
    )


def _lost_times(run: Run, thread: int) -> float:
    spans = run.spans
    timed = (spans["thread"] == thread) & (spans["step"] >= 0)
    timed &= (spans["flags"] & SpanFlag.DEVICE) != 0
    lost = timed & (run.span_device_ns < 0)
    return float(lost.sum()) / max(1, int(timed.sum()))
