# SPDX-License-Identifier: Apache-2.0
"""Follows a run file while it is being written.

Each look reads what has been written since the last one: blocks that are new, and the documents
and newest blocks that have changed. The result are the file's blocks as `read_blocks` would find
them, except that of long logs there are only the newest blocks, so a look costs the same after an
hour and after a week. The file is only read, and never locked: its writer does not notice.

Three things make that work without a word from the writer:

* Documents, of which the journal is one, are read before slots of logs are looked for. What a
  document goes on from or counts was written before it, so it is in its slot by then.
* Blocks of history that are overwritten are the oldest of their log. So if the oldest known block
  of a log still stands, all others do, and if not, its slot has something new.
* What is read while it is being written has a wrong checksum. It is read again with the next look,
  and counts as damaged only if it was wrong twice, the same each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from pyinstrument_gpu.core.file.blocks import FIRST_LOG_TYPE, Blocks, BlockType, LogBlock
from pyinstrument_gpu.core.file.framing import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET,
    BlockHeader,
    newest_version,
    read_file_header,
)
from pyinstrument_gpu.core.file.items import (
    CAUSE_ITEM,
    COLLECTIVE_ITEM,
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    METRIC_ITEM,
    SPAN_ITEM,
    STEP_ITEM,
    SYNC_ITEM,
)
from pyinstrument_gpu.core.file.journal import put_together
from pyinstrument_gpu.errors import RunFileError

_ITEMS = {
    BlockType.SPANS: SPAN_ITEM,
    BlockType.DEVICE_TIMES: DEVICE_TIME_ITEM,
    BlockType.STEPS: STEP_ITEM,
    BlockType.SYNCS: SYNC_ITEM,
    BlockType.METRICS: METRIC_ITEM,
    BlockType.DEVICE_CLOCKS: DEVICE_CLOCK_ITEM,
    BlockType.COLLECTIVES: COLLECTIVE_ITEM,
    BlockType.CAUSES: CAUSE_ITEM,
}
MOST_BLOCKS = 128
KEPT_BLOCKS = {
    **dict.fromkeys(_ITEMS, 32),
    **dict.fromkeys((BlockType.SPANS, BlockType.DEVICE_TIMES), MOST_BLOCKS),
}
"""How many of the newest blocks of a log are kept: 52,000 spans, for example. Other logs, those of
names, are kept from their beginning."""

_MOST_BLOCKS_OF_NAMES = 2048
# Of one run file; the recorder's own limit is `max_bytes`, by default a sixteenth of that.
_MOST_SLOTS = 1 << 20
_KNOWN_TYPES = frozenset(BlockType)


class RunFollower:
    """Follows the run file at a path, and the next one that takes its place there.

    A file that is moved or removed is followed further as long as nothing else is at the path.

    Attributes:
        lost: what has become of the file, in words; None while it is at its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.lost: str | None = None
        self._file: _File | None = None

    def look(self, most_blocks: int = MOST_BLOCKS) -> Blocks:
        """The blocks as they are now. Those that were read before are not read again.

        Args:
            most_blocks: of a log of spans or the like, only so many of the newest are kept. With 0
                there are documents alone.

        Raises:
            OSError, RunFileError: at the first look, and at later ones if the file cannot be read
                any more.
        """
        file = self._find()
        if self.lost is not None and not file.is_that_run():
            return file.blocks  # overwritten in place: what was read is all that there is
        blocks = file.look(most_blocks)
        if file.is_shortened and self.lost is None:
            self.lost = "another program has made the file shorter"
        return blocks

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _find(self) -> _File:
        """The file that stands at the path now, or the last one that did."""
        known = self._file
        try:
            status = os.stat(self.path)
            if known is not None and known.is_file(status) and known.is_that_run():
                self.lost = None
                return known
            new = _File(self.path)
        except (OSError, RunFileError) as error:
            if known is None:
                raise
            is_gone = isinstance(error, FileNotFoundError)
            what = "moved or removed" if is_gone else "replaced by something that is no run"
            self.lost = f"the file has been {what}"
            return known
        self.close()
        self._file = new
        self.lost = None
        return new


@dataclass
class _Log:
    """The known part of a log: where its blocks are, and those that were read.

    Attributes:
        slots: by sequence.
        is_sorted: whether `slots` is ascending.
        blocks: those that were read, by sequence.
        open_from: this block and those behind it may have grown since they were read.
    """

    slots: dict[int, int] = field(default_factory=dict)
    is_sorted: bool = True
    blocks: dict[int, LogBlock] = field(default_factory=dict)
    open_from: int = 0

    def add(self, sequence: int, slot: int) -> None:
        self.is_sorted &= not self.slots or sequence >= next(reversed(self.slots))
        self.slots[sequence] = slot

    def sort(self) -> None:
        if not self.is_sorted:
            self.slots = dict(sorted(self.slots.items()))
            self.is_sorted = True


class _File:
    """A run in an open file."""

    def __init__(self, path: str) -> None:
        # What a pipe has to say could be waited for.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._run_id = self._read_run_id()
        except BaseException:
            self.close()
            raise
        self.blocks = Blocks()
        self.is_shortened = False
        self._bytes = 0
        self._scanned = 0
        self._unknown: set[int] = set()  # slots without a block of this run
        self._wrong: dict[int, bytes] = {}  # of slots where the last look found none the header
        self._documents: dict[int, set[int]] = {}  # the slots of each
        self._versions: dict[int, tuple[int, bytes]] = {}
        self._logs: dict[int, _Log] = {}

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def is_file(self, status: os.stat_result) -> bool:
        return os.path.samestat(status, self.status())

    def is_that_run(self) -> bool:
        """Return whether the file still holds the run that it held when it was opened."""
        try:
            return self._read_run_id() == self._run_id
        except (OSError, RunFileError):
            return False

    def _read_run_id(self) -> int:
        return read_file_header(memoryview(os.pread(self._descriptor, FILE_HEADER_BYTES, 0)))

    def look(self, most_blocks: int) -> Blocks:
        before, self._wrong = self._wrong, {}
        self._scan()
        for block_type in self._documents:
            self._read_document(block_type)
        self._scan()
        for block_type, log in self._logs.items() if most_blocks else ():
            self._read_log(block_type, log, most_blocks)
        self.blocks = self._put_together(len(before.items() & self._wrong.items()))
        return self.blocks

    # Where blocks are

    def _scan(self) -> None:
        """Find the blocks in slots that are new or reused, and in others that may have got one."""
        size = self.status().st_size
        self.is_shortened |= size < self._bytes
        self._bytes = max(self._bytes, size)
        room = size - SLOTS_OFFSET - BLOCK_HEADER_BYTES
        slots = min(max(0, room // SLOT_BYTES + 1), _MOST_SLOTS)
        for slot in [*self._unknown, *range(self._scanned, slots)]:
            self._note(slot)
        self._scanned = max(self._scanned, slots)
        for block_type, log in list(self._logs.items()):
            log.sort()
            while log.slots and self._is_reused(block_type, *next(iter(log.slots.items()))):
                self._note(log.slots.pop(next(iter(log.slots))))

    def _is_reused(self, block_type: int, sequence: int, slot: int) -> bool:
        header, _ = self._header(slot)
        return header is not None and (header.type, header.sequence) != (block_type, sequence)

    def _header(
        self, slot: int, count: int = BLOCK_HEADER_BYTES
    ) -> tuple[BlockHeader | None, bytes]:
        """The header of a block of this run, None if there is none or it is damaged; and so many
        of the bytes that stand there."""
        data = os.pread(self._descriptor, count, SLOTS_OFFSET + slot * SLOT_BYTES)
        if len(data) < BLOCK_HEADER_BYTES:
            return None, b""
        header = BlockHeader.read(data)
        is_right = header.is_at_home(self._run_id, slot) and header.is_right(data)
        return header if is_right else None, data

    def _note(self, slot: int) -> None:
        """Find out what is in a slot."""
        self._unknown.discard(slot)
        self._wrong.pop(slot, None)
        header, data = self._header(slot)
        if header is None:
            self._unknown.add(slot)
            if data and not BlockHeader.read(data).is_empty:
                self._wrong[slot] = data
        elif header.type < FIRST_LOG_TYPE:
            self._documents.setdefault(header.type, set()).add(slot)
        elif header.type in _KNOWN_TYPES:
            self._logs.setdefault(header.type, _Log()).add(header.sequence, slot)

    # What is in them

    def _block(
        self, slot: int, is_wanted: Callable[[BlockHeader], bool]
    ) -> tuple[BlockHeader, memoryview] | None:
        """The block in a slot, if it is wanted, and neither damaged nor being written just now."""
        header, data = self._header(slot)
        if header is not None and is_wanted(header):
            header, data = self._header(slot, SLOT_BYTES)  # by now it may be another block
        if header is None or not is_wanted(header):
            return None
        payload = header.payload(memoryview(data))
        if payload is not None:
            return header, payload
        if header.type >= FIRST_LOG_TYPE:
            self._wrong[slot] = data[:BLOCK_HEADER_BYTES]
        return None

    def _read_document(self, block_type: int) -> None:
        held, _ = self._versions.get(block_type, (0, b""))

        def is_newer(header: BlockHeader) -> bool:
            return header.type == block_type and header.sequence > held

        parts = [self._block(slot, is_newer) for slot in self._documents[block_type]]
        newest = newest_version(part for part in parts if part is not None)
        if newest is not None:
            self._versions[block_type] = newest

    def _read_log(self, block_type: int, log: _Log, most_blocks: int) -> None:
        log.sort()
        kept = KEPT_BLOCKS.get(BlockType(block_type))
        if kept is None:
            wanted = [*islice(log.slots, _MOST_BLOCKS_OF_NAMES)]
        else:
            kept = min(kept, most_blocks)
            wanted = [*islice(reversed(log.slots), kept)]
        for sequence in wanted:
            if sequence not in log.blocks or sequence >= log.open_from:
                self._read_log_block(block_type, log, sequence)
        log.open_from = next(reversed(log.slots), 0)
        if kept is not None:
            oldest = log.open_from - kept + 1
            log.blocks = {one: block for one, block in log.blocks.items() if one >= oldest}

    def _read_log_block(self, block_type: int, log: _Log, sequence: int) -> None:
        slot, known = log.slots[sequence], log.blocks.get(sequence)

        def is_news(header: BlockHeader) -> bool:
            is_it = (header.type, header.sequence) == (block_type, sequence)
            return is_it and (known is None or header.length > len(known.payload))

        block = self._block(slot, is_news)
        if block is not None:
            header, payload = block
            log.blocks[sequence] = LogBlock(header.first, payload)

    def _put_together(self, damaged: int) -> Blocks:
        blocks = Blocks(damaged=damaged, intact=not damaged)
        logs = {block_type: dict(log.blocks) for block_type, log in self._logs.items()}
        put_together(blocks, self._versions, logs)
        for block_type in KEPT_BLOCKS.keys() & blocks.logs.keys():
            log = _newest_in_a_row(blocks.logs[block_type], _ITEMS[block_type].itemsize)
            blocks.logs[block_type] = log
            if log and log[0].first > 0:
                blocks.shortened.add(block_type)
        return blocks


def _newest_in_a_row(blocks: list[LogBlock], item_bytes: int) -> list[LogBlock]:
    """The blocks behind the last gap. There is one where a block was damaged, and where one that
    still grew at the last look has been full and given its slot away since."""
    begin = len(blocks) - 1
    while begin > 0:
        before = blocks[begin - 1]
        if before.first + len(before.payload) // item_bytes != blocks[begin].first:
            break
        begin -= 1
    return blocks[max(0, begin) :]
