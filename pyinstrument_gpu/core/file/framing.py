# SPDX-License-Identifier: Apache-2.0
"""The framing of blocks in a run file: behind a header in slots, each with a checksum.

See docs/run-file.md.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.core.file.blocks import FIRST_LOG_TYPE, Blocks, LogBlock
from pyinstrument_gpu.core.file.items import item_dtype
from pyinstrument_gpu.core.file.journal import put_together
from pyinstrument_gpu.errors import RunFileDamagedError, RunFileVersionError

MAJOR_VERSION = 2
MINOR_VERSION = 1
SLOT_BYTES = 16384
SLOTS_OFFSET = 4096
BLOCK_HEADER_BYTES = 48
PAYLOAD_BYTES = SLOT_BYTES - BLOCK_HEADER_BYTES
"""The most that one block holds."""

_FILE_HEADER = struct.Struct("<8s4IQ28xI")
FILE_HEADER_BYTES = _FILE_HEADER.size
_FILE_HEADER_CHECKED_BYTES = 60
_BLOCK_MAGIC = 0x4B424750
_BLOCK_HEADER_CHECKED_BYTES = 40
_BLOCK_HEADER = struct.Struct("<IHHQIIQQII")
_BLOCK_HEADER_DTYPE = item_dtype(
    magic="u4",
    type="u2",
    reserved="u2",
    run_id="u8",
    slot="u4",
    length="u4",
    sequence="u8",
    first="u8",
    crc="u4",
    header_crc="u4",
)
_BLOCK_HEADER_SUMMED_BYTES = 44
_PIECE_SLOTS = 64


class BlockHeader(NamedTuple):
    """The header before a block's payload, see docs/run-file.md."""

    magic: int
    type: int
    reserved: int
    run_id: int
    slot: int
    length: int
    sequence: int
    first: int
    crc: int
    header_crc: int

    @classmethod
    def read(cls, slot: bytes | memoryview) -> BlockHeader:
        """The header of a block, from the bytes of its slot."""
        return cls._make(_BLOCK_HEADER.unpack_from(slot))

    @property
    def is_empty(self) -> bool:
        """True if there is no block in this slot."""
        return self.magic == 0

    def is_at_home(self, run_id: int, slot: int) -> bool:
        """Return whether this is a block of that run, in the slot that it was written to."""
        return self.magic == _BLOCK_MAGIC and (self.run_id, self.slot) == (run_id, slot)

    def is_right(self, slot: bytes | memoryview) -> bool:
        """Return whether the header of a slot has the checksum that it says it has."""
        right: bool = zlib.crc32(slot[:_BLOCK_HEADER_SUMMED_BYTES]) == self.header_crc
        return right

    def payload(self, slot: memoryview) -> memoryview | None:
        """The payload from the bytes of the slot, None if it is damaged or cut off."""
        payload = slot[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + self.length]
        if self.length > PAYLOAD_BYTES or len(payload) < self.length:
            return None
        crc = zlib.crc32(slot[:_BLOCK_HEADER_CHECKED_BYTES], zlib.crc32(payload))
        return payload if crc == self.crc else None

    @property
    def part(self) -> tuple[int, int]:
        """The part of a document that this is: its place, and how many there are."""
        return self.first & 0xFFFFFFFF, self.first >> 32


def read_blocks(data: bytes | bytearray | memoryview) -> Blocks:
    """Find the valid blocks.

    Raises:
        RunFileDamagedError: the file header is damaged, or this is not a run file.
        RunFileVersionError: the format is unknown.
    """
    view = memoryview(data).cast("B")
    return _blocks_in(read_file_header(view), _used_slots(view[SLOTS_OFFSET:], 0))


def read_blocks_of(file: io.FileIO) -> Blocks:
    """Find the valid blocks of an open file, which is read in pieces, without its holes; errors as
    of `read_blocks`, and OSError."""
    if not file.seekable():
        return read_blocks(file.readall())
    file.seek(0)
    return _blocks_in(read_file_header(memoryview(file.read(FILE_HEADER_BYTES))), _pieces(file))


def _pieces(file: io.FileIO) -> Iterator[tuple[int, BlockHeader, memoryview]]:
    slot = 0
    while True:
        begin = SLOTS_OFFSET + slot * SLOT_BYTES
        try:
            begin = file.seek(begin, getattr(os, "SEEK_DATA", os.SEEK_SET))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # what follows is a hole
            # Otherwise there is no such question here.
        slot = (begin - SLOTS_OFFSET) // SLOT_BYTES
        file.seek(SLOTS_OFFSET + slot * SLOT_BYTES)
        piece = file.read(_PIECE_SLOTS * SLOT_BYTES)
        if not piece:
            return
        yield from _used_slots(memoryview(piece), slot)
        slot += _PIECE_SLOTS


def _used_slots(view: memoryview, first: int) -> Iterator[tuple[int, BlockHeader, memoryview]]:
    """The slots that are not empty, each with its number, the header and the bytes in it.

    Args:
        first: the number of the slot with which the view begins.
    """
    # Headers are found without a copy; the last slot may be cut off anywhere behind its header.
    headers: NDArray[np.void] = np.ndarray(
        shape=max(0, (len(view) - BLOCK_HEADER_BYTES) // SLOT_BYTES + 1),
        dtype=_BLOCK_HEADER_DTYPE,
        buffer=view,
        strides=(SLOT_BYTES,),
    )
    used = np.flatnonzero(headers["magic"] != 0)
    for slot, fields in zip(used.tolist(), headers[used].tolist(), strict=True):
        content = view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
        yield first + slot, BlockHeader._make(fields), content


def _blocks_in(run_id: int, slots: Iterable[tuple[int, BlockHeader, memoryview]]) -> Blocks:
    blocks = Blocks()
    partly_written: list[tuple[int, int]] = []  # types and sequences
    logs: dict[int, dict[int, LogBlock]] = {}
    documents: dict[int, list[tuple[BlockHeader, memoryview]]] = {}
    used, slot = 0, -1
    for slot, header, content in slots:
        used += 1
        at_home = header.is_at_home(run_id, slot)
        is_log = header.type >= FIRST_LOG_TYPE
        payload = header.payload(content) if at_home else None
        if payload is None:
            # A document that was being replaced when the process died is no damage: its other
            # version stands.
            if not (at_home and header.is_right(content)):
                blocks.damaged += 1
            elif is_log:
                partly_written.append((header.type, header.sequence))
        elif is_log:
            block = LogBlock(header.first, payload)
            logs.setdefault(header.type, {}).setdefault(header.sequence, block)
        else:
            documents.setdefault(header.type, []).append((header, payload))
    # A process writes one block at a time, and dies once.
    blocks.partly_written = len(partly_written) == 1 and all(
        sequence > max(logs.get(block_type, {}), default=-1)
        for block_type, sequence in partly_written
    )
    blocks.damaged += 0 if blocks.partly_written else len(partly_written)
    blocks.intact = not blocks.damaged and used == slot + 1
    newest = {block_type: newest_version(parts) for block_type, parts in documents.items()}
    in_slots = set(logs)
    put_together(
        blocks, {block_type: one for block_type, one in newest.items() if one is not None}, logs
    )
    blocks.only_in_journal = {
        block_type
        for block_type, log in logs.items()
        if block_type not in in_slots and min(log, default=0) > 0
    }
    return blocks


def newest_version(blocks: Iterable[tuple[BlockHeader, memoryview]]) -> tuple[int, bytes] | None:
    """The newest version of a document of which every part is there, and its number."""
    versions: dict[tuple[int, int], dict[int, memoryview]] = {}
    for header, payload in blocks:
        part, parts = header.part
        versions.setdefault((header.sequence, parts), {})[part] = payload
    for (version, parts), by_part in sorted(versions.items(), reverse=True):
        if len(by_part) == parts and max(by_part) == parts - 1:
            return version, b"".join(by_part[part] for part in range(parts))
    return None


def read_file_header(view: memoryview) -> int:
    """The number of the run.

    Raises:
        RunFileDamagedError: the header is damaged, or this is not a run file.
        RunFileVersionError: the format is unknown.
    """
    if view[: len(MAGIC)] == MAGIC and len(view) < _FILE_HEADER.size:
        raise RunFileDamagedError(
            f"not a run file: it begins like one, and ends after {len(view)} bytes"
        )
    if len(view) < _FILE_HEADER.size or view[: len(MAGIC)] != MAGIC:
        raise RunFileDamagedError(
            f"not a run file: it starts with {bytes(view[:8])!r}, but a run file starts with "
            f"{MAGIC!r} and has more than {_FILE_HEADER.size} bytes"
        )
    _, major, minor, slot_bytes, slots_offset, run_id, crc = _FILE_HEADER.unpack_from(view)
    if zlib.crc32(view[:_FILE_HEADER_CHECKED_BYTES]) != crc:
        raise RunFileDamagedError("the header of the run file is damaged (checksum)")
    if major != MAJOR_VERSION:
        raise RunFileVersionError(
            f"the run file has format {major}.{minor}; this version of pyinstrument_gpu reads "
            f"{MAJOR_VERSION}.x: use "
            + ("an older one, or record again" if major < MAJOR_VERSION else "a newer one")
        )
    if (slot_bytes, slots_offset) != (SLOT_BYTES, SLOTS_OFFSET):
        raise RunFileVersionError(
            f"the run file has slots of {slot_bytes} bytes at {slots_offset}; this version of "
            f"pyinstrument_gpu reads those with slots of {SLOT_BYTES} at {SLOTS_OFFSET}: use a "
            "newer one"
        )
    return int(run_id)
