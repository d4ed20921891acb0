# SPDX-License-Identifier: Apache-2.0
"""The blocks of a run, put together to documents and logs."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import RunFileDamagedError

_Item = TypeVar("_Item")

INDEX_LIMIT = 1 << 52
"""More items than any log has; sums of a few such numbers stay within 64 bits."""


class BlockType(enum.IntEnum):
    """Below `FIRST_LOG_TYPE` documents, which are replaced; from there on logs, which grow."""

    ENVIRONMENT = 1
    STATE = 2
    STATISTICS = 3
    SYNC_STATISTICS = 4
    TICK = 5
    OPERATIONS = 6
    MEMORY = 7
    ENERGY = 8
    COLLECTIVE_GROUPS = 9
    STALLS = 10
    ASPECTS = 11
    NAMES = 16
    PATHS = 17
    THREADS = 18
    DROPPED_STEPS = 19
    STEPS = 20
    SPANS = 21
    DEVICE_TIMES = 22
    STREAMS = 23
    DEVICE_CLOCKS = 24
    SYNC_SITES = 26
    SYNCS = 27
    METRIC_NAMES = 28
    METRICS = 29
    COLLECTIVES = 30
    GRAPH_PHASES = 31
    CAUSES = 32


FIRST_LOG_TYPE = 16
"""Types of blocks below are those of documents."""


class LogBlock(NamedTuple):
    """`first` is the index of the block's first item."""

    first: int
    payload: memoryview


class Records(NamedTuple):
    """Items of a log, and the index of the first of them."""

    first: int
    items: NDArray[Any]


@dataclass
class Blocks:
    """The valid blocks of a run file, or those that were written since somebody last looked.

    Attributes:
        documents: the newest whole version of each document.
        logs: of each log its blocks in order; a gap between them shows in their `first`.
        damaged: number of damaged blocks.
        partly_written: whether the newest block of a log has its header and only a part of its
            payload, as where the process was killed or the disk full while it was written.
        only_in_journal: logs of which no block stands in a slot, though their first must have.
        shortened: logs of which only the newest blocks were taken.
        intact: whether nothing is damaged and no slot lies empty before the last one used.
    """

    documents: dict[int, bytes] = field(default_factory=dict)
    logs: dict[int, list[LogBlock]] = field(default_factory=dict)
    damaged: int = 0
    partly_written: bool = False
    intact: bool = True
    only_in_journal: set[int] = field(default_factory=set)
    shortened: set[int] = field(default_factory=set)

    def document(self, block_type: BlockType, decode: Callable[[bytes], _Item]) -> _Item | None:
        data = self.documents.get(block_type)
        return None if data is None else decode(data)

    def texts(
        self,
        block_type: BlockType,
        decode: Callable[[memoryview], list[_Item]],
        known: int = 0,
    ) -> list[_Item]:
        """The items of a log of items with texts, up to the first gap; `known` is how many came
        before."""
        items: list[_Item] = []
        for block in self.logs.get(block_type, []):
            if block.first != known + len(items):
                break
            items += decode(block.payload)
        return items

    def records(self, block_type: BlockType, dtype: np.dtype[Any]) -> Records:
        """The items of a log of equal items: from the first one there is up to the first gap."""
        log = self.logs.get(block_type, [])
        first = log[0].first if log else 0
        if first > INDEX_LIMIT:
            raise RunFileDamagedError(
                f"a {block_type.name} block of the run file begins at {first}"
            )
        payloads = []
        count = 0
        for block in log:
            if block.first != first + count:
                break
            items, rest = divmod(len(block.payload), dtype.itemsize)
            if rest:
                raise RunFileDamagedError(
                    f"a {block_type.name} block of the run file ends in the middle of an item: "
                    f"it has {len(block.payload)} bytes for items of {dtype.itemsize}"
                )
            payloads.append(block.payload)
            count += items
        return Records(first, np.frombuffer(b"".join(payloads), dtype))

    def table(self, block_type: BlockType, dtype: np.dtype[Any]) -> Records:
        """The items of a log that keeps all it ever had; none where its beginning is lost. The
        index of the first is not 0 where the log is shortened."""
        records = self.records(block_type, dtype)
        if records.first and block_type not in self.shortened:
            return Records(0, records.items[:0])
        return records

    def history(self, block_type: BlockType, dtype: np.dtype[Any], dropped: int) -> Records:
        """The items of a log whose oldest make room for newer ones.

        Args:
            dropped: how many did, as far as STATE knows. Later ones may have, but where blocks are
                damaged, or lie empty between others, those may be the oldest of this log: then
                nothing of it is certain.
        """
        records = self.records(block_type, dtype)
        if block_type in self.shortened:
            return records
        if records.first > dropped and (not self.intact or block_type in self.only_in_journal):
            return Records(0, records.items[:0])
        return records


def true_prefix(condition: NDArray[np.bool_]) -> int:
    """Return the number of items before the first that is false."""
    return len(condition) if condition.all() else int(condition.argmin())


def nonsense(where: str, reason: str) -> RunFileDamagedError:
    """The error of a block whose checksum was right, and which no known version has written."""
    return RunFileDamagedError(f"the {where} block of the run file makes no sense: {reason}")
