# SPDX-License-Identifier: Apache-2.0
"""What the collective operations of a job take: transfer, waiting, and who asks for them last.

Of an operation that no rank can be done with before all have asked for it, the rank with the
shortest duration came last, and its duration is what the transfer took at most: the kernels of the
others were waiting. So that no clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.job.findings import CollectiveUse
from pyinstrument_gpu.analysis.job.joined import Joined
from pyinstrument_gpu.analysis.job.matched import MatchedGroup
from pyinstrument_gpu.analysis.job.own_work import OwnWork
from pyinstrument_gpu.model.job_data import RankData

_SAME_BOOT_NS = 10**9


def collectives(
    joined: Joined, groups: Sequence[MatchedGroup], work: OwnWork | str
) -> tuple[CollectiveUse, ...]:
    """By process group, operation and phase, those that take the longest first."""
    rows = []
    users: dict[str | None, int] = {}
    for group in groups:
        by_kind: dict[tuple[str, str | None], list[int]] = {}
        for number, kind in enumerate(zip(group.operations, group.paths, strict=True)):
            by_kind.setdefault(kind, []).append(number)
        members = [joined.ranks[place] for place in group.places]
        clocks_ns = None if group.is_on_stream else _one_clock_ns(members)
        for (operation, path), numbers in by_kind.items():
            users[path] = users.get(path, 0) + 1
            rows.append(
                (group, _use(group, members, clocks_ns, operation, path, np.array(numbers)))
            )
    found = [
        _with_exposed(joined, group, use, work) if users[use.path] == 1 else use
        for group, use in rows
    ]
    return tuple(sorted(found, key=_size, reverse=True))


def _size(use: CollectiveUse) -> tuple[float, int]:
    return use.count * ((use.transfer_ns or 0.0) + (use.waiting_ns or 0.0)), use.bytes


@dataclass(frozen=True)
class _Times:
    """Averages per operation, and who came last."""

    transfer_ns: float | None = None
    waiting_ns: float | None = None
    bytes_per_s: float | None = None
    last_rank: int | None = None
    last_share: float | None = None


def _use(
    group: MatchedGroup,
    members: Sequence[RankData],
    clocks_ns: NDArray[np.int64] | None,
    operation: str,
    path: str | None,
    numbers: NDArray[np.intp],
) -> CollectiveUse:
    events = group.events[:, numbers]
    durations_ns = events["duration_ns"]
    timed = np.logical_and.reduce(durations_ns >= 0, 0)
    times = _Times()
    if timed.any():
        # Of an asymmetric operation, who sends is done early, and has not come last.
        if group.are_symmetric[numbers[0]]:
            times = _by_durations(group, members, durations_ns[:, timed], events["bytes"][0, timed])
    elif clocks_ns is not None:
        created_ns = events["created_ns"]
        known = np.logical_and.reduce(created_ns >= 0, 0)
        times = _by_requests(group, members, created_ns[:, known] + clocks_ns[:, None])
    return CollectiveUse(
        group=group.group.description or group.group.name,
        operation=operation,
        path=path,
        count=len(numbers),
        bytes=int(np.maximum(events["bytes"][0], 0).sum()),
        transfer_ns=times.transfer_ns,
        waiting_ns=times.waiting_ns,
        bytes_per_s=times.bytes_per_s,
        exposed_ns=None,
        last_rank=times.last_rank,
        last_share=times.last_share,
    )


def _by_durations(
    group: MatchedGroup,
    members: Sequence[RankData],
    durations_ns: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> _Times:
    least_ns = durations_ns.min(axis=0)
    transfer_ns = float(least_ns.mean())
    last_rank, last_share = _most_often(group, members, np.argmin(durations_ns, axis=0))
    has_bytes = bool((sizes > 0).all()) and transfer_ns > 0
    return _Times(
        transfer_ns=transfer_ns,
        waiting_ns=float((durations_ns - least_ns).mean()),
        bytes_per_s=float(sizes.mean()) / transfer_ns * 1e9 if has_bytes else None,
        last_rank=last_rank,
        last_share=last_share,
    )


def _by_requests(
    group: MatchedGroup, members: Sequence[RankData], asked_ns: NDArray[np.int64]
) -> _Times:
    if not asked_ns.size:
        return _Times()
    last_rank, last_share = _most_often(group, members, np.argmax(asked_ns, axis=0))
    apart_ns = float((asked_ns.max(axis=0) - asked_ns.min(axis=0)).mean())
    return _Times(waiting_ns=apart_ns, last_rank=last_rank, last_share=last_share)


def _most_often(
    group: MatchedGroup, members: Sequence[RankData], last: NDArray[np.intp]
) -> tuple[int | None, float | None]:
    """Who came last most often; None if several did, or a rank is missing that may have."""
    if not group.is_whole:
        return None, None
    counts = np.bincount(last, minlength=len(members))
    most = int(np.argmax(counts))
    if np.count_nonzero(counts == counts[most]) > 1:
        return None, None
    return members[most].rank, float(counts[most]) / len(last)


def _one_clock_ns(members: Sequence[RankData]) -> NDArray[np.int64] | None:
    """What to add to each rank's times to have them on one clock; None unless all ran on one
    machine since one boot of it."""
    hosts = {rank.environment.get("host") for rank in members}
    anchors = [rank.environment.get("anchor", {}) for rank in members]
    if len(hosts) != 1 or None in hosts:
        return None
    if not all({"run_ns", "monotonic_ns", "realtime_ns"} <= anchor.keys() for anchor in anchors):
        return None
    booted_ns = [anchor["realtime_ns"] - anchor["monotonic_ns"] for anchor in anchors]
    if max(booted_ns) - min(booted_ns) > _SAME_BOOT_NS:
        return None
    return np.array([anchor["monotonic_ns"] - anchor["run_ns"] for anchor in anchors], np.int64)


def _with_exposed(
    joined: Joined, group: MatchedGroup, use: CollectiveUse, work: OwnWork | str
) -> CollectiveUse:
    """The use with what the host waited for it: the rest of its phase, after its last request."""
    if (
        isinstance(work, str)
        or work.rest_ns is None
        or group.is_on_stream
        or use.path is None
        or len(group.places) != len(joined.ranks)
    ):
        return use
    exposed_ns = float(work.rest_ns[joined.paths.index(use.path)].mean())
    return CollectiveUse(**{**vars(use), "exposed_ns": exposed_ns})
