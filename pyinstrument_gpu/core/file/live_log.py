# SPDX-License-Identifier: Apache-2.0
"""The log of an active recording as it grows, for readers in its own process: sinks and windows of
the profiler. Other processes follow the file (follower.py).

The native module keeps for each reader what is new, so a look costs what is new and not what there
is. What comes is decoded as the reader of files does.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import FIRST_LOG_TYPE, Blocks, BlockType, LogBlock
from pyinstrument_gpu.core.file.items import DROPPED_STEP_ITEM
from pyinstrument_gpu.core.file.names import LogTables
from pyinstrument_gpu.core.file.state import State, decode_state
from pyinstrument_gpu.core.file.steps import indices_of
from pyinstrument_gpu.native import native

_RECORD = struct.Struct("<IIQ")


class LogSubscription:
    """A subscription to the log of a recording, with the names, paths and threads as they are when
    it is made. It has to be closed."""

    def __init__(self, recording: object) -> None:
        self._recording = recording
        self._number = native.open_subscription(recording)

    def take(self) -> bytes:
        """Return what is new since the last call; nothing once the recording is over."""
        return native.take_subscription(self._recording, self._number)

    def close(self) -> None:
        """Take no more. Calling it again does nothing."""
        native.close_subscription(self._recording, self._number)


class LiveLog:
    """A reader's view of a log.

    Attributes:
        tables: the names, paths and threads so far.
        state: the newest STATE.
        statistics: the newest STATISTICS document; None if there is none yet.
    """

    def __init__(self) -> None:
        self.tables = LogTables()
        self.state = State()
        self.statistics: bytes | None = None
        self._dropped_steps = np.empty(0, DROPPED_STEP_ITEM)

    def take(self, taken: bytes) -> Blocks:
        """Take in what came from a subscription. Returns the new blocks, which refer to nothing
        that is not known by then."""
        blocks = Blocks()
        view = memoryview(taken)
        while view:
            block_type, length, first = _RECORD.unpack_from(view)
            payload, view = view[_RECORD.size :][:length], view[_RECORD.size + length :]
            if block_type < FIRST_LOG_TYPE:
                blocks.documents[block_type] = bytes(payload)
            else:
                blocks.logs.setdefault(block_type, []).append(LogBlock(first, payload))
        self.tables.add(blocks)
        for block in blocks.logs.get(BlockType.DROPPED_STEPS, []):
            # The last ones known may come again.
            serials = np.frombuffer(block.payload, DROPPED_STEP_ITEM)
            self._dropped_steps = np.union1d(self._dropped_steps, serials)
        self.state = blocks.document(BlockType.STATE, decode_state) or self.state
        self.statistics = blocks.documents.get(BlockType.STATISTICS, self.statistics)
        return blocks

    def indices(self, serials: NDArray[Any]) -> NDArray[np.int64]:
        """The indices of steps, by which users know them; -1 for none and for a dropped one."""
        return indices_of(serials, self._dropped_steps)
