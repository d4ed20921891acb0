# SPDX-License-Identifier: Apache-2.0
"""Blocks as the bytes of a run file, framed as a recording frames them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import (
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET,
    pack_block,
    pack_file_header,
)

_HISTORY = (BlockType.SPANS, BlockType.STEPS, BlockType.DEVICE_TIMES, BlockType.COLLECTIVES)


@dataclass
class _Log:
    """The newest block of a log."""

    slot: int
    sequence: int
    first: int
    items: int = 0
    payload: bytearray = field(default_factory=bytearray)


class RunWriter:
    """Writes blocks into the bytes of a run file, framed as a recording frames them: logs grow in
    place, documents alternate between two sets of slots, and the oldest history gives its slots
    away.

    Args:
        run_id: the file's own number.
        max_slots: beyond this many slots the oldest history gives its slots away.

    Attributes:
        data: the file as it is by now.
        history_dropped: by type of block the items that have made room.
    """

    def __init__(self, run_id: int, max_slots: int = 1 << 32) -> None:
        self.data = bytearray(pack_file_header(run_id))
        self.history_dropped = dict.fromkeys(_HISTORY, 0)
        self._run_id = run_id
        self._max_slots = max_slots
        self._slots = 0
        self._logs: dict[BlockType, _Log] = {}
        self._full_history: list[tuple[int, BlockType, int]] = []
        self._versions: dict[BlockType, int] = {}
        self._document_slots: dict[tuple[BlockType, int], list[int]] = {}

    def count(self, block_type: BlockType) -> int:
        """How many items were appended to a log."""
        log = self._logs.get(block_type)
        return 0 if log is None else log.first + log.items

    def append(self, block_type: BlockType, items: Iterable[bytes]) -> None:
        """Append items to a log; none of them is larger than `PAYLOAD_BYTES`."""
        log = self._logs.get(block_type)
        for item in items:
            if log is None or len(log.payload) + len(item) > PAYLOAD_BYTES:
                log = self._next(block_type, log)
            log.items += 1
            log.payload += item
        if log is not None:
            self._write_log(block_type, log)

    def append_records(self, block_type: BlockType, records: NDArray[Any]) -> None:
        """Append the items of an array."""
        data, step = records.tobytes(), records.itemsize
        self.append(block_type, (data[at : at + step] for at in range(0, len(data), step)))

    def write_document(self, block_type: BlockType, content: bytes) -> None:
        """Write the next version of a document."""
        version = self._versions.get(block_type, 0) + 1
        self._versions[block_type] = version
        slots = self._document_slots.setdefault((block_type, version % 2), [])
        parts = max(1, -(-len(content) // PAYLOAD_BYTES))
        while len(slots) < parts:
            slots.append(self._allocate())
        for part in range(parts):
            payload = content[part * PAYLOAD_BYTES : (part + 1) * PAYLOAD_BYTES]
            self._write(block_type, slots[part], version, part + (parts << 32), payload)

    def _next(self, block_type: BlockType, log: _Log | None) -> _Log:
        """The block after this one, which is full."""
        sequence, first = 0, 0
        if log is not None:
            self._write_log(block_type, log)
            if block_type in _HISTORY:
                self._full_history.append((log.slot, block_type, log.items))
            sequence, first = log.sequence + 1, log.first + log.items
        self._logs[block_type] = _Log(self._allocate(), sequence, first)
        return self._logs[block_type]

    def _allocate(self) -> int:
        if self._slots >= self._max_slots and self._full_history:
            slot, block_type, items = self._full_history.pop(0)
            self.history_dropped[block_type] += items
            return slot
        self._slots += 1
        return self._slots - 1

    def _write_log(self, block_type: BlockType, log: _Log) -> None:
        self._write(block_type, log.slot, log.sequence, log.first, bytes(log.payload))

    def _write(
        self, block_type: BlockType, slot: int, sequence: int, first: int, payload: bytes
    ) -> None:
        block = pack_block(block_type, self._run_id, slot, sequence, first, payload)
        begin = SLOTS_OFFSET + slot * SLOT_BYTES
        self.data.extend(bytes(max(0, begin + len(block) - len(self.data))))
        self.data[begin : begin + len(block)] = block
