# SPDX-License-Identifier: Apache-2.0
"""The tap of a recording's log, for several readers.

The native module has one tap, which hands out what is new once. Here it is shared out: a reader
gets the names, paths and threads as they stand when it comes, and from then on what is new.
"""

from __future__ import annotations

import threading

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import tap_records
from pyinstrument_gpu.native import native

_TABLES = {
    *(BlockType.NAMES, BlockType.PATHS, BlockType.THREADS, BlockType.STREAMS),
    *(BlockType.DROPPED_STEPS, BlockType.METRIC_NAMES),
}
_HISTORY = {BlockType.SPANS, BlockType.STEPS, BlockType.DEVICE_TIMES, BlockType.SYNCS}
_MOST_HISTORY_BYTES = 4 << 20
"""For a reader that doesn't come. The native tap keeps as much."""


class Tap:
    """The tap of one recording: open as long as it has readers."""

    def __init__(self, recording: object) -> None:
        self._recording = recording
        # The handler of a signal may come by wherever its thread is.
        self._lock = threading.RLock()
        self._readers: list[TapReader] = []
        self._tables = bytearray()

    def reader(self) -> TapReader:
        """A new reader, which has to be closed."""
        with self._lock:
            if self._readers:
                self._share()
            else:
                self._tables.clear()
                native.open_tap(self._recording)
            reader = TapReader(self, bytes(self._tables))
            self._readers.append(reader)
            return reader

    def take(self, reader: TapReader) -> bytes:
        with self._lock:
            self._share()
            return reader.empty()

    def leave(self, reader: TapReader) -> None:
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)
                if not self._readers:
                    native.close_tap(self._recording)

    def _share(self) -> None:
        for block_type, record in tap_records(native.take_tap(self._recording)):
            if block_type in _TABLES:
                self._tables += record
            for reader in self._readers:
                reader.put(block_type, record)


class TapReader:
    """One reader of a recording's log. `Tap.reader` makes it."""

    def __init__(self, tap: Tap, tables: bytes) -> None:
        self._tap = tap
        self._waiting = bytearray(tables)
        self._history_bytes = 0

    def take(self) -> bytes:
        """What is new since the last call, as `_C.take_tap` has it."""
        return self._tap.take(self)

    def close(self) -> None:
        """Take no more. Calling it again does nothing."""
        self._tap.leave(self)

    def put(self, block_type: int, record: memoryview) -> None:
        if block_type in _HISTORY:
            self._history_bytes += len(record)
            # From the first piece that is left out: one gap, not many. STATE shows it.
            if self._history_bytes > _MOST_HISTORY_BYTES:
                return
        self._waiting += record

    def empty(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        self._history_bytes = 0
        return taken
