# SPDX-License-Identifier: Apache-2.0
"""A plain twin of the native run log: it frames blocks as a recording process does.

Logs grow in place, documents alternate between two sets of slots, and the oldest history gives its
slots away.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.format.blocks import BlockType
from pyinstrument_gpu.format.framing import (
    MAGIC,
    MAJOR_VERSION,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET,
)

_FILE_HEADER = struct.Struct("<8s4IQ28x")
_BLOCK_MAGIC = 0x4B424750
BLOCK_HEADER = struct.Struct("<IHHQIIQQ")
_HISTORY = (BlockType.SPANS, BlockType.STEPS, BlockType.DEVICE_TIMES, BlockType.COLLECTIVES)


def pack_file_header(run_id: int) -> bytes:
    """The bytes before the first slot."""
    header = _FILE_HEADER.pack(MAGIC, MAJOR_VERSION, 0, SLOT_BYTES, SLOTS_OFFSET, run_id)
    return (header + struct.pack("<I", zlib.crc32(header))).ljust(SLOTS_OFFSET, b"\0")


def pack_block(
    block_type: int, run_id: int, slot: int, sequence: int, first: int, payload: bytes
) -> bytes:
    """One block, as it stands at the start of its slot."""
    header = BLOCK_HEADER.pack(
        _BLOCK_MAGIC, block_type, 0, run_id, slot, len(payload), sequence, first
    )
    header += struct.pack("<I", zlib.crc32(header, zlib.crc32(payload)))
    return header + struct.pack("<I", zlib.crc32(header)) + payload


@dataclass
class _Log:
    """The newest block of a log."""

    slot: int
    sequence: int
    first: int
    items: int = 0
    payload: bytearray = field(default_factory=bytearray)


class RunWriter:
    """Writes blocks into the bytes of a run file.

    Args:
        run_id: the file's own number.
        max_slots: beyond this many slots the oldest history gives its slots away.
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

    def append(self, block_type: BlockType, items: list[bytes]) -> None:
        for item in items:
            log = self._logs.get(block_type)
            if log is None or len(log.payload) + len(item) > PAYLOAD_BYTES:
                if log is not None:
                    self._write_log(block_type, log)
                    if block_type in _HISTORY:
                        self._full_history.append((log.slot, block_type, log.items))
                log = _Log(
                    slot=self._allocate(),
                    sequence=0 if log is None else log.sequence + 1,
                    first=0 if log is None else log.first + log.items,
                )
                self._logs[block_type] = log
            log.items += 1
            log.payload += item
        if items:
            self._write_log(block_type, self._logs[block_type])

    def append_records(self, block_type: BlockType, records: NDArray[np.void]) -> None:
        """Append the items of an array."""
        data, step = records.tobytes(), records.itemsize
        self.append(block_type, [data[at : at + step] for at in range(0, len(data), step)])

    def write_document(self, block_type: BlockType, content: bytes) -> None:
        version = self._versions.get(block_type, 0) + 1
        self._versions[block_type] = version
        slots = self._document_slots.setdefault((block_type, version % 2), [])
        parts = max(1, -(-len(content) // PAYLOAD_BYTES))
        while len(slots) < parts:
            slots.append(self._allocate())
        for part in range(parts):
            payload = content[part * PAYLOAD_BYTES : (part + 1) * PAYLOAD_BYTES]
            self._write(block_type, slots[part], version, part + (parts << 32), payload)

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
