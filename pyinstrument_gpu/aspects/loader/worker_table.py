# SPDX-License-Identifier: Apache-2.0
"""Memory that a recording shares with the workers of its DataLoaders.

A worker claims a slot and writes into it, about once a second, all that is known of it, as a JSON
object. A slot has room for two texts. The one that is not read is overwritten, and then the slot
says that it is the newer one. So a worker that is killed in the middle leaves what it had written
before, and there is no lock that it could take with it: a reader that meets a text which was
overwritten meanwhile finds that its checksum is wrong, and reads again.

A slot belongs to the process that holds a file lock on its first byte, which the system releases
when the process ends, however it does. A worker takes a slot that was never used, or else the one
whose owner has ended first.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import zlib
from contextlib import suppress
from typing import Any

SLOTS = 64
TEXT_BYTES = 192 << 10
_NUMBER = struct.Struct("=Q")
_HEAD = struct.Struct("=II")
_OPEN = struct.Struct("=QQQ")
_TRIES = 3


class WorkerTable:
    """The slots. A forked process shares them, and so does one that was given them by pickle.

    Memory is taken as it is written: a slot that was never used takes none.

    Args:
        descriptor: of the memory; None for new memory.

    Raises:
        OSError: there is no memory, or no descriptor.
    """

    def __init__(self, descriptor: int | None = None, slots: int = SLOTS) -> None:
        self._slots = slots
        if descriptor is None:
            descriptor = os.memfd_create("loader_workers")
            os.ftruncate(descriptor, slots * _Slot.BYTES)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._file = status.st_dev, status.st_ino
        self._memory = mmap.mmap(descriptor, slots * _Slot.BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever pickles it has loaded this. A program that doesn't should not find it.
        from multiprocessing import reduction

        return _received, (reduction.DupFd(self._descriptor), self._slots)

    def claim(self) -> _Slot | None:
        """A slot for the calling process, until it ends; None where there is none, or where the
        program has closed the descriptor."""
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != self._file:
            return None
        slots = [_Slot(self._memory, place) for place in range(self._slots)]
        for slot in sorted(slots, key=lambda one: one.written_ns):
            with suppress(OSError):  # another process has it
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot.begin)
                return slot
        return None

    def read(self) -> list[dict[str, Any]]:
        """Return the content of the slots, those of ended workers among them; as `open` the number
        of the batch that a worker was asked for and has not made, and since when, or 0 for none."""
        slots = [_Slot(self._memory, place) for place in range(self._slots)]
        found = ((slot, slot.read()) for slot in slots)
        return [{**one, "open": self._open(slot, one)} for slot, one in found if one is not None]

    def _open(self, slot: _Slot, said: dict[str, Any]) -> tuple[int, int]:
        number, begin_ns, process = slot.open_batch()
        # What it says may still be what the process said that had it before.
        if begin_ns and process == said["process"] and not self._is_free(slot):
            return number, begin_ns
        return 0, 0

    def _is_free(self, slot: _Slot) -> bool:
        """Return whether its process has ended. Only for another process than that."""
        with suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot.begin)
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, slot.begin)
            return True
        return False

    def close(self) -> None:
        """Give the descriptor back. The memory goes with this object: another thread may be about
        to read it. Workers that still run keep theirs."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


class _Slot:
    BYTES = 4096 + 2 * TEXT_BYTES

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._memory = memory
        self.begin = place * self.BYTES

    @property
    def written_ns(self) -> int:
        """The time when it was written last; 0 where it never was."""
        return int(_NUMBER.unpack_from(self._memory, self.begin + 8)[0])

    def open_batch(self) -> tuple[int, int, int]:
        number, begin_ns, process = _OPEN.unpack_from(self._memory, self.begin + 16)
        return number, begin_ns, process

    def begins(self, number: int, begin_ns: int) -> None:
        """Set what `open_batch` returns from now on."""
        _OPEN.pack_into(self._memory, self.begin + 16, number, begin_ns, os.getpid())

    def write(self, value: dict[str, Any], now_ns: int) -> bool:
        """Write a value. Return False if it has no room, and the slot says what it said before."""
        text = json.dumps(value, separators=(",", ":")).encode()
        if len(text) > TEXT_BYTES - _HEAD.size:
            return False
        turn = self._turn() + 1
        begin = self._text_begin(turn)
        _HEAD.pack_into(self._memory, begin, len(text), zlib.crc32(text))
        self._memory[begin + _HEAD.size : begin + _HEAD.size + len(text)] = text
        _NUMBER.pack_into(self._memory, self.begin, turn)
        _NUMBER.pack_into(self._memory, self.begin + 8, now_ns)
        return True

    def read(self) -> dict[str, Any] | None:
        """Return the content; None where nothing was written, or nothing that is whole."""
        for _ in range(_TRIES):
            turn = self._turn()
            for newest in (turn, turn - 1):
                if newest > 0 and (text := self._text(self._text_begin(newest))) is not None:
                    value: dict[str, Any] = json.loads(text)
                    return value
        return None

    def _turn(self) -> int:
        return int(_NUMBER.unpack_from(self._memory, self.begin)[0])

    def _text_begin(self, turn: int) -> int:
        return self.begin + 4096 + turn % 2 * TEXT_BYTES

    def _text(self, begin: int) -> bytes | None:
        length, checksum = _HEAD.unpack_from(self._memory, begin)
        if length > TEXT_BYTES - _HEAD.size:
            return None
        text = self._memory[begin + _HEAD.size : begin + _HEAD.size + length]
        return text if zlib.crc32(text) == checksum else None


def _received(descriptor: Any, slots: int) -> WorkerTable:
    return WorkerTable(descriptor.detach(), slots)
