# SPDX-License-Identifier: Apache-2.0
"""The times of a job's collective operations: transfer, waiting, and who asks for them last.

Of an operation that no rank can be done with before all have asked for it, the rank with the
shortest duration came last, and its duration is what the transfer took at most: the kernels of the
others were waiting. So that no clocks are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import ProcessGroup
from pyinstrument_gpu.core.arrays import groups as grouped
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.job.condition import machines_of
from pyinstrument_gpu.job.findings import MOST_ROWS, CollectiveUse
from pyinstrument_gpu.job.job import RankData
from pyinstrument_gpu.job.joined import Joined, MatchedGroup, is_symmetric
from pyinstrument_gpu.job.own_work import OwnWork
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, percent, ranks_text, size

_SAME_BOOT_NS = 10**9


def collectives(
    joined: Joined, groups: Sequence[MatchedGroup], work: OwnWork | str
) -> tuple[CollectiveUse, ...]:
    """Return the use by process group, operation and phase, those that take the longest first."""
    rows = []
    labels = Counter(group.group.label for group in groups)
    for group in groups:
        members = [joined.ranks[place] for place in group.places]
        clocks_ns = None if group.group.is_on_stream else _one_clock_ns(members)
        for operation, of_operation in grouped(group.events["operation"][0]):
            for path, places in grouped(group.path[of_operation]):
                numbers = of_operation[places]
                use = _use(group, members, clocks_ns, operation, path, numbers)
                if labels[use.group] > 1:
                    use = replace(use, group=_told_apart(group.group))
                rows.append((group, use))
    users = Counter(use.path for _, use in rows)
    found = [
        _with_exposed(joined, group, use, work) if users[use.path] == 1 else use
        for group, use in rows
    ]
    return tuple(sorted(found, key=_size, reverse=True))


def _told_apart(group: ProcessGroup) -> str:
    """Return a name for one of several groups with the same name, as those of a mesh."""
    which = group.name if group.ranks is None else ranks_text(group.ranks)
    return f"{group.label} ({which}{f', {group.backend}' if group.backend else ''})"


def _size(use: CollectiveUse) -> tuple[float, int]:
    return use.count * ((use.transfer_ns or 0.0) + (use.waiting_ns or 0.0)), use.bytes


def _use(
    group: MatchedGroup,
    members: Sequence[RankData],
    clocks_ns: NDArray[np.int64] | None,
    operation: int,
    path: int,
    numbers: NDArray[np.intp],
) -> CollectiveUse:
    events, first = group.events[:, numbers], group.first
    name = first.collectives.operations[operation]
    use = CollectiveUse(
        group=group.group.label,
        operation=name,
        path=first.paths[path] if path >= 0 else None,
        count=len(numbers),
        bytes=int(np.maximum(events["bytes"][0], 0).sum()),
    )
    timed = (events["duration_ns"] >= 0).all(axis=0)
    asked = (events["created_ns"] >= 0).all(axis=0)
    if timed.any():
        # Of an asymmetric operation, who sends is done early, and has not come last.
        if not is_symmetric(name):
            return use
        durations_ns, sizes = events["duration_ns"][:, timed], events["bytes"][0, timed]
        least_ns = durations_ns.min(axis=0)
        transfer_ns = float(least_ns.mean())
        has_bytes = bool((sizes > 0).all()) and transfer_ns > 0
        use = replace(
            use,
            transfer_ns=transfer_ns,
            waiting_ns=float((durations_ns - least_ns).mean()),
            bytes_per_s=float(sizes.mean()) / transfer_ns * 1e9 if has_bytes else None,
        )
        return _with_last(use, group, members, np.argmin(durations_ns, axis=0))
    if clocks_ns is None or not asked.any():
        return use
    asked_ns = events["created_ns"][:, asked] + clocks_ns[:, None]
    apart_ns = float((asked_ns.max(axis=0) - asked_ns.min(axis=0)).mean())
    use = replace(use, waiting_ns=apart_ns)
    return _with_last(use, group, members, np.argmax(asked_ns, axis=0))


def _with_last(
    use: CollectiveUse, group: MatchedGroup, members: Sequence[RankData], last: NDArray[np.intp]
) -> CollectiveUse:
    """The use with who came last most often; unless several did, or a rank is missing that may
    have."""
    counts = np.bincount(last, minlength=len(members))
    most = int(np.argmax(counts))
    if not group.is_whole or np.count_nonzero(counts == counts[most]) > 1:
        return use
    return replace(use, last_rank=members[most].rank, last_share=float(counts[most]) / len(last))


def _one_clock_ns(members: Sequence[RankData]) -> NDArray[np.int64] | None:
    """Return what to add to each rank's times to have them on one clock; None unless all ran on one
    machine since one boot of it."""
    machines = machines_of(members, _SAME_BOOT_NS)
    if len(machines) < len(members) or len({*machines.values()}) > 1:
        return None
    # Both clocks were read as the run began, on all ranks at about the same time, so that it hardly
    # matters how they have run apart since.
    offsets_ns = [began_ns(rank.environment.get("anchor", {}), "monotonic_ns") for rank in members]
    return None if None in offsets_ns else np.array(offsets_ns, np.int64)


def _with_exposed(
    joined: Joined, group: MatchedGroup, use: CollectiveUse, work: OwnWork | str
) -> CollectiveUse:
    """The use with what the host waited for it: the rest of its phase, after its last request."""
    if (
        isinstance(work, str)
        or work.rest_ns is None
        or group.group.is_on_stream
        or use.path is None
        or len(group.places) != len(joined.ranks)
    ):
        return use
    exposed_ns = float(work.rest_ns[joined.paths.index(use.path)].mean())
    return replace(use, exposed_ns=exposed_ns)


def collectives_parts(collectives: Sequence[CollectiveUse]) -> Iterator[Part]:
    """The table of a job's collective operations; nothing if none were recorded."""
    if not collectives:
        return
    times_ns = [
        ns
        for one in collectives
        for ns in (one.transfer_ns, one.waiting_ns, one.exposed_ns)
        if ns is not None
    ]
    unit = Unit.fitting(max(times_ns, default=0.0))
    rows = []
    for one in collectives[:MOST_ROWS]:
        times = [unit.text(ns) for ns in (one.transfer_ns, one.waiting_ns, one.exposed_ns)]
        rate = UNKNOWN if one.bytes_per_s is None else f"{size(one.bytes_per_s)}/s"
        last = UNKNOWN
        if one.last_rank is not None and one.last_share is not None:
            last = f"{one.last_rank} ({percent(one.last_share, 1)}%)"
        cells = [f"{one.count:,}", size(one.bytes), *times, rate, last]
        path = "" if one.path is None else f" in {one.path}"
        rows.append(Row(f"{one.operation} of {one.group}{path}", cells))
    yield Sentence()
    yield Sentence(f"Collectives: {unit.name} each, exposed per step", "title")
    headers = ["operation", "count", "bytes", "transfer", "waiting", "exposed", "rate", "last rank"]
    yield table(headers, [rows])
    if len(collectives) > MOST_ROWS:
        yield Sentence(f"{len(collectives) - MOST_ROWS:,} further kinds not shown", "note")
    if all(one.transfer_ns is None for one in collectives) and any(
        one.waiting_ns is not None for one in collectives
    ):
        yield Sentence("No durations are known: waiting is how far apart the ranks asked for it")
