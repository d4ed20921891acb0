# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a run, as PyTorch's flight recorder has noted them.

What a run file says of process groups is the COLLECTIVE_GROUPS document (docs/run-file.md), and the
operations are a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields
from pyinstrument_gpu.core.file.blocks import INDEX_LIMIT, Blocks, BlockType, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import (
    COLLECTIVE_ITEM,
    COLLECTIVE_P2P,
    COLLECTIVE_WAIT,
    columns,
)
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.core.file.state import State

_COUNT_LIMIT = 1 << 62
_ON_STREAMS = ("nccl", "rccl", "xccl", "hccl")

COLLECTIVE_DTYPE = np.dtype(
    [
        ("created_ns", "<i8"),
        ("started_ns", "<i8"),
        ("ended_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("sequence", "<i8"),
        ("bytes", "<i8"),
        ("group", "<i4"),
        ("operation", "<i4"),
        ("is_p2p", "?"),
    ]
)
"""One operation. Times are ns since the run began by the run's own clock, -1 where unknown:
`created_ns` is when the program asked for it, `started_ns` and `ended_ns` when PyTorch noticed that
it had begun and ended, and `duration_ns` its time by the device's clock. `group` indexes
`Collectives.groups`, `operation` indexes `Collectives.operations`. `sequence` counts the operations
of the group, alike on all ranks; point-to-point operations count apart."""

WAIT_DTYPE = np.dtype([("begin_ns", "<i8"), ("end_ns", "<i8"), ("is_p2p", "?")])
"""A time in which the program's thread waited for an operation, by the run's own clock."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of torch.distributed.

    Attributes:
        name: which all ranks of the group give it.
        description: what the program calls it, such as "default_pg"; no part of what it is.
        ranks: of the whole job that are in it; None if that is not known.
        backend: such as "gloo" or "nccl", as the names of its operations have it.
    """

    name: str
    description: str = field(compare=False)
    ranks: tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...] | None = None
    backend: str = ""

    @property
    def label(self) -> str:
        """The program's name for it, or else its own."""
        return self.description or self.name

    @property
    def is_on_stream(self) -> bool:
        """True if its operations are put on a stream, so that the host goes on."""
        return self.backend.lower() in _ON_STREAMS


@dataclass(frozen=True, eq=False)
class Collectives(ArrayFields):
    """The collective operations of a run.

    Attributes:
        groups: the process groups.
        operations: their names, without the backend: "all_reduce".
        events: the operations one by one (`COLLECTIVE_DTYPE`), in the order in which they were
            created. History: the oldest may be gone.
        missed: how many are not in `events`: they had left the flight recorder before it was read,
            or made room for newer ones.
        was_read: whether the flight recorder was read at all.
        waits: the times in which the program waited for operations in calls that were hooked
            (`WAIT_DTYPE`), in the order in which they ended. History as well.
        waits_since_ns: from when on these are all there; -1 if they were not looked for.
        notes: what else a run says of them.
    """

    groups: tuple[ProcessGroup, ...] = ()
    operations: tuple[str, ...] = ()
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, COLLECTIVE_DTYPE))
    missed: Annotated[int, Meta(ge=0, lt=INDEX_LIMIT)] = 0
    was_read: bool = False
    waits: NDArray[np.void] = field(default_factory=lambda: np.empty(0, WAIT_DTYPE))
    waits_since_ns: Annotated[int, Meta(ge=-1, lt=TIME_LIMIT_NS)] = -1
    notes: tuple[str, ...] = ()


def known_collectives(data: bytes, blocks: Blocks, state: State) -> Collectives:
    """The operations up to the first that can't be true.

    Args:
        data: the document of groups.
        blocks: where the operations are.

    Raises:
        RunFileDamagedError: the document does not fit, or an item is cut off.
    """
    found = decode_object(data, "COLLECTIVE_GROUPS", Collectives)
    log = blocks.records(BlockType.COLLECTIVES, COLLECTIVE_ITEM)
    items = log.items[: _true_items(log.items, len(found.groups), len(found.operations))]
    written = min(state.collectives, INDEX_LIMIT)
    lost = max(written, log.first + len(log.items)) - log.first - len(items)
    notes = found.notes
    if lost:
        notes += (f"missing at the end of the history: {lost:,} collective operations",)
    made_room = 0 if BlockType.COLLECTIVES in blocks.shortened else log.first
    is_p2p, is_wait = ((items["flags"] & flag) != 0 for flag in (COLLECTIVE_P2P, COLLECTIVE_WAIT))
    events = columns(items[~is_wait], COLLECTIVE_DTYPE, is_p2p=is_p2p[~is_wait])
    waits = np.empty(np.count_nonzero(is_wait), WAIT_DTYPE)
    for name, column in (("begin_ns", "created_ns"), ("end_ns", "ended_ns")):
        waits[name] = items[column][is_wait]
    waits["is_p2p"] = is_p2p[is_wait]
    since_ns = found.waits_since_ns
    if made_room and since_ns >= 0:
        since_ns = max(since_ns, int(items["created_ns"][0])) if len(items) else -1
    return replace(
        found,
        events=events[_by_creation(events["created_ns"])],
        missed=found.missed + made_room + lost,
        waits=waits,
        waits_since_ns=since_ns,
        notes=notes,
    )


def _true_items(items: NDArray[np.void], groups: int, operations: int) -> int:
    """Return how many items there are before the first that can't be true."""
    good = (items["group"] < groups) & (items["operation"] < operations)
    good |= (items["flags"] & COLLECTIVE_WAIT) != 0
    for name in ("created_ns", "started_ns", "ended_ns", "duration_ns"):
        good &= (items[name] >= -1) & (items[name] < TIME_LIMIT_NS)
    good &= (items["bytes"] >= -1) & (items["bytes"] < _COUNT_LIMIT)
    good &= (items["sequence"] >= 0) & (items["sequence"] < _COUNT_LIMIT)
    return true_prefix(good)


def _by_creation(created_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """The order in which operations were created; one whose time is unknown stays behind those
    that it was written after."""
    known = np.maximum.accumulate(created_ns) if len(created_ns) else created_ns
    return np.argsort(np.where(created_ns < 0, known, created_ns), kind="stable")
