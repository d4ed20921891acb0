# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a run. What in their document makes no sense is left out, and
counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.format.blocks import INDEX_LIMIT, Blocks, BlockType, true_prefix
from pyinstrument_gpu.format.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.format.items import COLLECTIVE_ITEM, COLLECTIVE_P2P, columns
from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.format.state import State
from pyinstrument_gpu.model.collectives import COLLECTIVE_DTYPE, Collectives, ProcessGroup

MOST_GROUPS = 1024
MOST_OPERATIONS = 1024
MOST_RANKS = 1 << 16
"""So many ranks the groups have together; those of groups beyond are not known."""

_MOST_CHARACTERS = 200
_MOST_NOTES = 10
_RANK_LIMIT = 1 << 31
_COUNT_LIMIT = 1 << 62
_UNKNOWN = "?"


class CollectiveLog(NamedTuple):
    """What the blocks say.

    Attributes:
        collectives: as far as they make sense.
        notes: which become notes of the run.
    """

    collectives: Collectives
    notes: tuple[str, ...] = ()


def known_collectives(blocks: Blocks, state: State) -> CollectiveLog:
    """The operations up to the first that can't be true.

    Raises:
        RunFileDamagedError: the document is no JSON object, or an item is cut off.
    """
    data = blocks.documents.get(BlockType.COLLECTIVE_GROUPS)
    if data is None:
        return CollectiveLog(Collectives())
    document = JsonObject.decode(data, "COLLECTIVE_GROUPS")
    strange = 0
    groups = []
    # One that makes no sense keeps its place: operations refer to groups by their number.
    for value in _list(document, "groups")[:MOST_GROUPS]:
        group = _group(value)
        strange += group is None
        groups.append(ProcessGroup(_UNKNOWN, "", None, "") if group is None else group)
    operations = []
    for value in _list(document, "operations")[:MOST_OPERATIONS]:
        strange += not _is_text(value)
        operations.append(value if _is_text(value) else _UNKNOWN)
    was_read = document.document.get("was_read") is True
    missed = document.document.get("missed", 0)
    if not is_count(missed) or missed >= INDEX_LIMIT:
        missed, strange = 0, strange + 1
    notes = [value for value in _list(document, "notes")[:_MOST_NOTES] if _is_text(value)]

    log = blocks.records(BlockType.COLLECTIVES, COLLECTIVE_ITEM)
    items = log.items[: _true_items(log.items, len(groups), len(operations))]
    if BlockType.COLLECTIVES not in blocks.shortened:
        missed += log.first
    written = min(state.collectives, INDEX_LIMIT)
    lost = max(written, log.first + len(log.items)) - log.first - len(items)
    if lost:
        notes.append(f"missing at the end of the history: {lost:,} collective operations")
    if strange:
        notes.append(
            f"{strange:,} parts of what was noted of process groups were left out, because they "
            "make no sense"
        )
    events = columns(items, COLLECTIVE_DTYPE, is_p2p=(items["flags"] & COLLECTIVE_P2P) != 0)
    collectives = Collectives(
        groups=tuple(groups),
        operations=tuple(operations),
        events=events[_by_creation(events["created_ns"])],
        missed=missed + lost,
        was_read=was_read,
    )
    return CollectiveLog(collectives, tuple(notes))


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


def _list(document: JsonObject, key: str) -> Sequence[Any]:
    value = document.document.get(key, [])
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    """What can be shown as it stands."""
    return isinstance(value, str) and len(value) <= _MOST_CHARACTERS and value.isprintable()


def _group(value: Any) -> ProcessGroup | None:
    if not isinstance(value, dict):
        return None
    name: Any = value.get("name")
    description: Any = value.get("description")
    backend: Any = value.get("backend")
    ranks = value.get("ranks")
    are_texts = _is_text(name) and _is_text(description) and _is_text(backend)
    if not are_texts or not (ranks is None or _are_ranks(ranks)):
        return None
    return ProcessGroup(name, description, None if ranks is None else tuple(ranks), backend)


def _are_ranks(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MOST_RANKS:
        return False
    return all(is_count(rank) and rank < _RANK_LIMIT for rank in value)
