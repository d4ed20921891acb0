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

import enum
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

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

KEPT_BLOCKS = {
    BlockType.SPANS: 128,
    BlockType.DEVICE_TIMES: 128,
    BlockType.STEPS: 32,
    BlockType.SYNCS: 32,
    BlockType.METRICS: 32,
    BlockType.DEVICE_CLOCKS: 32,
    BlockType.COLLECTIVES: 32,
}
_ITEM_BYTES = {
    BlockType.SPANS: SPAN_ITEM.itemsize,
    BlockType.DEVICE_TIMES: DEVICE_TIME_ITEM.itemsize,
    BlockType.STEPS: STEP_ITEM.itemsize,
    BlockType.SYNCS: SYNC_ITEM.itemsize,
    BlockType.METRICS: METRIC_ITEM.itemsize,
    BlockType.DEVICE_CLOCKS: DEVICE_CLOCK_ITEM.itemsize,
    BlockType.COLLECTIVES: COLLECTIVE_ITEM.itemsize,
}
"""How many of the newest blocks of a log are kept: 52,000 spans, for example. Other logs, those of
names, are kept from their beginning."""

_MOST_BLOCKS_OF_NAMES = 2048
# Of one run file; the recorder's own limit is `max_bytes`, by default a sixteenth of that.
_MOST_SLOTS = 1 << 20
_MOST_PARTS = 4096
_MOST_STRANGE = 1000


class Whereabouts(enum.Enum):
    """What has become of the file that is being followed, as seen at its path."""

    HERE = "here"
    MOVED = "moved"
    """It has another name now."""
    REMOVED = "removed"
    REPLACED = "replaced"
    """Something that is no run file is in its place."""
    SHORTENED = "shortened"
    """Another program has made it shorter, after which its recorder writes no more."""


class RunFollower:
    """Follows the run file at a path, and the next one that takes its place there.

    A file that is moved or removed is followed further as long as nothing else is at the path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.whereabouts = Whereabouts.HERE
        self._file: _File | None = None

    def look(self) -> Blocks:
        """The blocks as they are now. Those that were read before are not read again.

        Raises:
            OSError, RunFileError: at the first look, and at later ones if the file cannot be read
                any more.
        """
        file = self._find()
        if self.whereabouts is Whereabouts.REPLACED and not file.is_that_run():
            return file.blocks  # overwritten in place: what was read is all that there is
        blocks = file.look()
        if file.is_shortened and self.whereabouts is Whereabouts.HERE:
            self.whereabouts = Whereabouts.SHORTENED
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
                self.whereabouts = Whereabouts.HERE
                return known
            new = _File(self.path)
        except (OSError, RunFileError) as error:
            if known is None:
                raise
            if not isinstance(error, FileNotFoundError):
                self.whereabouts = Whereabouts.REPLACED
            elif known.status().st_nlink == 0:
                self.whereabouts = Whereabouts.REMOVED
            else:
                self.whereabouts = Whereabouts.MOVED
            return known
        self.close()
        self._file = new
        self.whereabouts = Whereabouts.HERE
        return new


@dataclass
class _Log:
    """What is known of a log: where its blocks are, and those that were read.

    Attributes:
        slots: by sequence.
        order: the sequences in `slots`, ascending.
        blocks: those that were read, by sequence.
        open_from: this block and those behind it may have grown since they were read.
        wrong: of blocks whose checksum was wrong, the header that they had.
    """

    slots: dict[int, int] = field(default_factory=dict)
    order: deque[int] = field(default_factory=deque)
    blocks: dict[int, LogBlock] = field(default_factory=dict)
    open_from: int = 0
    wrong: dict[int, BlockHeader] = field(default_factory=dict)


class _File:
    """One run in one open file."""

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
        self._empty: set[int] = set()
        self._strange: dict[int, bytes] = {}  # headers that are none of this run, by slot
        self._documents: dict[int, set[int]] = {}  # the slots of each
        self._versions: dict[int, tuple[int, bytes]] = {}
        self._logs: dict[int, _Log] = {}
        self._damaged: set[int] = set()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def is_file(self, status: os.stat_result) -> bool:
        return os.path.samestat(status, self.status())

    def is_that_run(self) -> bool:
        """Whether the file still holds the run that it held when it was opened."""
        try:
            return self._read_run_id() == self._run_id
        except (OSError, RunFileError):
            return False

    def _read_run_id(self) -> int:
        return read_file_header(memoryview(os.pread(self._descriptor, FILE_HEADER_BYTES, 0)))

    def look(self) -> Blocks:
        self._look_at_strange()
        self._scan()
        for block_type in self._documents:
            self._read_document(block_type)
        self._scan()
        for block_type, log in self._logs.items():
            self._read_log(block_type, log)
        self.blocks = self._put_together()
        return self.blocks

    # Where blocks are

    def _scan(self) -> None:
        """Find the blocks in slots that are new, or were empty or reused."""
        size = self.status().st_size
        self.is_shortened |= size < self._bytes
        self._bytes = max(self._bytes, size)
        room = size - SLOTS_OFFSET - BLOCK_HEADER_BYTES
        slots = min(max(0, room // SLOT_BYTES + 1), _MOST_SLOTS)
        unsorted: set[int] = set()
        for slot in [*self._empty, *range(self._scanned, slots)]:
            self._note(slot, unsorted)
        self._scanned = max(self._scanned, slots)
        self._sort(unsorted)
        for block_type, log in list(self._logs.items()):
            while log.order and self._is_reused(block_type, log.order[0], log):
                sequence = log.order.popleft()
                self._note(log.slots.pop(sequence), unsorted)
        self._sort(unsorted)

    def _look_at_strange(self) -> None:
        """Look again at what were no headers of this run when they were last seen."""
        unsorted: set[int] = set()
        for slot, data in list(self._strange.items()):
            del self._strange[slot]
            self._damaged.discard(slot)
            self._note(slot, unsorted)
            if self._strange.get(slot) == data:
                self._damaged.add(slot)
        self._sort(unsorted)

    def _sort(self, unsorted: set[int]) -> None:
        for block_type in unsorted:
            log = self._logs[block_type]
            log.order = deque(sorted(log.slots))
        unsorted.clear()

    def _is_reused(self, block_type: int, sequence: int, log: _Log) -> bool:
        header = self._header(log.slots[sequence])
        return header is not None and (header.type, header.sequence) != (block_type, sequence)

    def _header(self, slot: int) -> BlockHeader | None:
        """The header of a block of this run; None if there is none, or it is damaged."""
        data = os.pread(self._descriptor, BLOCK_HEADER_BYTES, SLOTS_OFFSET + slot * SLOT_BYTES)
        if len(data) < BLOCK_HEADER_BYTES:
            return None
        header = BlockHeader.read(data)
        is_right = header.is_at_home(self._run_id, slot) and header.is_right(data)
        return header if is_right else None

    def _note(self, slot: int, unsorted: set[int]) -> None:
        """Find out what is in a slot; `unsorted` gets the log whose order is lost by it."""
        self._empty.discard(slot)
        header = self._header(slot)
        if header is None:
            begin = SLOTS_OFFSET + slot * SLOT_BYTES
            data = os.pread(self._descriptor, BLOCK_HEADER_BYTES, begin)
            if len(data) < BLOCK_HEADER_BYTES or BlockHeader.read(data).is_empty:
                self._empty.add(slot)
            elif len(self._strange) < _MOST_STRANGE:
                self._strange[slot] = data
            else:
                self._damaged.add(slot)
            return
        if header.type < FIRST_LOG_TYPE:
            self._documents.setdefault(header.type, set()).add(slot)
        elif header.type in _KNOWN_TYPES:
            log = self._logs.setdefault(header.type, _Log())
            if log.order and header.sequence < log.order[-1]:
                unsorted.add(header.type)
            if header.sequence not in log.slots:
                log.order.append(header.sequence)
            log.slots[header.sequence] = slot

    # What is in them

    def _read_document(self, block_type: int) -> None:
        held, _ = self._versions.get(block_type, (0, b""))
        versions: dict[tuple[int, int], dict[int, memoryview]] = {}
        for slot in self._documents.get(block_type, ()):
            header = self._header(slot)
            if header is None or header.type != block_type or header.sequence <= held:
                continue
            part, parts = header.part
            if parts > _MOST_PARTS:
                continue
            # By now it may be that of the version after the next.
            found, payload = self._payload(slot)
            if found == header and payload is not None:
                versions.setdefault((header.sequence, parts), {})[part] = payload
        newest = newest_version(versions)
        if newest is not None:
            self._versions[block_type] = newest

    def _payload(self, slot: int) -> tuple[BlockHeader | None, memoryview | None]:
        """A block's header and payload; None if they are damaged, or being written just now."""
        data = os.pread(self._descriptor, SLOT_BYTES, SLOTS_OFFSET + slot * SLOT_BYTES)
        if len(data) < BLOCK_HEADER_BYTES:
            return None, None
        header = BlockHeader.read(data)
        if not header.is_at_home(self._run_id, slot):
            return None, None
        return header, header.payload(memoryview(data))

    def _read_log(self, block_type: int, log: _Log) -> None:
        kept = KEPT_BLOCKS.get(BlockType(block_type))
        if kept is None:
            wanted: Iterable[int] = list(log.order)[:_MOST_BLOCKS_OF_NAMES]
        else:
            wanted = list(log.order)[-kept:]
        for sequence in wanted:
            known = log.blocks.get(sequence)
            if known is not None and sequence < log.open_from:
                continue
            slot = log.slots[sequence]
            header = self._header(slot)
            if header is None or (header.type, header.sequence) != (block_type, sequence):
                continue
            if known is not None and header.length <= len(known.payload):
                continue
            found, payload = self._payload(slot)
            if found is None or (found.type, found.sequence) != (block_type, sequence):
                continue  # it has given its slot away just now
            if payload is not None:
                log.blocks[sequence] = LogBlock(found.first, payload)
                log.wrong.pop(sequence, None)
                self._damaged.discard(slot)
            else:
                if log.wrong.get(sequence) == found:
                    self._damaged.add(slot)
                log.wrong[sequence] = found
        log.open_from = log.order[-1] if log.order else 0
        if kept is not None:
            for sequence in [*log.blocks]:
                if sequence <= log.open_from - kept:
                    del log.blocks[sequence]
                    log.wrong.pop(sequence, None)

    def _put_together(self) -> Blocks:
        blocks = Blocks(damaged=len(self._damaged), intact=not self._damaged)
        logs = {block_type: dict(log.blocks) for block_type, log in self._logs.items()}
        put_together(blocks, self._versions, logs)
        for block_type in KEPT_BLOCKS.keys() & blocks.logs.keys():
            log = _newest_in_a_row(blocks.logs[block_type], _ITEM_BYTES[block_type])
            blocks.logs[block_type] = log
            if log and log[0].first > 0:
                blocks.shortened.add(block_type)
        return blocks


_KNOWN_TYPES = frozenset(BlockType)


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
