# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a run. What in their document makes no sense is left out, and
counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.blocks import INDEX_LIMIT, Blocks, BlockType, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import COLLECTIVE_ITEM, COLLECTIVE_P2P, columns
from pyinstrument_gpu.core.file.json_document import Each, Schema, fitting, json_object
from pyinstrument_gpu.core.file.state import State

MOST_GROUPS = 1024
MOST_OPERATIONS = 1024
MOST_RANKS = 1 << 16
"""So many ranks the groups have together; those of groups beyond are not known."""

_COUNT_LIMIT = 1 << 62
_MOST_NOTES = 10
_UNKNOWN = "?"

_is_text = fits.text(200)
_is_group = fits.fields(
    name=_is_text,
    description=_is_text,
    backend=_is_text,
    ranks=fits.or_null(fits.list_of(fits.integer(0, 1 << 31), MOST_RANKS)),
)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_SCHEMA: Schema = {
    "was_read": fits.truth,
    "missed": fits.integer(0, INDEX_LIMIT),
    # What makes no sense keeps its place: operations refer to both by their numbers.
    "groups": _is_list,
    "operations": _is_list,
    "notes": Each(_is_text),
}


class KnownCollectives(NamedTuple):
    """What the blocks say; `notes` become notes of the run."""

    collectives: Collectives
    notes: tuple[str, ...] = ()


def known_collectives(data: bytes, blocks: Blocks, state: State) -> tuple[KnownCollectives, int]:
    """The operations up to the first that can't be true, and how many parts of the document of
    groups make no sense.

    Args:
        data: that document.
        blocks: where the operations are.

    Raises:
        RunFileDamagedError: the document is no JSON object, or an item is cut off.
    """
    left_out: list[str] = []
    found = fitting(json_object(data, "COLLECTIVE_GROUPS"), _SCHEMA, left_out)
    groups = found.get("groups", [])[:MOST_GROUPS]
    operations = found.get("operations", [])[:MOST_OPERATIONS]
    strange = sum(not _is_group(one) for one in groups)
    strange += sum(not _is_text(one) for one in operations)
    notes = found.get("notes", [])[:_MOST_NOTES]

    log = blocks.records(BlockType.COLLECTIVES, COLLECTIVE_ITEM)
    items = log.items[: _true_items(log.items, len(groups), len(operations))]
    written = min(state.collectives, INDEX_LIMIT)
    lost = max(written, log.first + len(log.items)) - log.first - len(items)
    if lost:
        notes.append(f"missing at the end of the history: {lost:,} collective operations")
    made_room = 0 if BlockType.COLLECTIVES in blocks.shortened else log.first
    events = columns(items, COLLECTIVE_DTYPE, is_p2p=(items["flags"] & COLLECTIVE_P2P) != 0)
    collectives = Collectives(
        groups=tuple(map(_group, groups)),
        operations=tuple(one if _is_text(one) else _UNKNOWN for one in operations),
        events=events[_by_creation(events["created_ns"])],
        missed=found.get("missed", 0) + made_room + lost,
        was_read=found.get("was_read", False),
    )
    return KnownCollectives(collectives, tuple(notes)), len(left_out) + strange


def _true_items(items: NDArray[np.void], groups: int, operations: int) -> int:
    """How many items there are before the first that can't be true."""
    good = (items["group"] < groups) & (items["operation"] < operations)
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


def _group(found: Any) -> ProcessGroup:
    if not _is_group(found):
        return ProcessGroup(_UNKNOWN, "", None, "")
    ranks = found.get("ranks")
    members = None if ranks is None else tuple(ranks)
    return ProcessGroup(found["name"], found["description"], members, found["backend"])
