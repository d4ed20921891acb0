# SPDX-License-Identifier: Apache-2.0
"""The TICK document: what the newest blocks of logs have beyond what stands in their slots."""

from __future__ import annotations

import struct

from pyinstrument_gpu.format.blocks import BlockType, LogBlock
from pyinstrument_gpu.format.cursor import Cursor

_SECTION = struct.Struct("<IIQQQ")
_FIRST_LOG_TYPE = 16


def apply_journal(
    journal: bytes, logs: dict[int, dict[int, LogBlock]], state_version: int
) -> bytes | None:
    """Add what the journal has to the blocks, by type and sequence.

    Args:
        state_version: of the STATE document; 0 for none.

    Returns:
        STATE as the journal has it, if that is newer.
    """
    state = None
    cursor = Cursor(journal, "TICK")
    while cursor:
        block_type, length, sequence, first, offset = cursor.numbers(_SECTION)
        content = cursor.take(length)
        if block_type >= _FIRST_LOG_TYPE:
            _extend(logs.setdefault(block_type, {}), sequence, first, offset, content)
        elif block_type == BlockType.STATE and sequence > state_version:
            state = bytes(content)
    return state


def _extend(
    log: dict[int, LogBlock], sequence: int, first: int, offset: int, content: memoryview
) -> None:
    """Have a block go on with what the journal says stands at `offset` of it."""
    block = log.get(sequence)
    if block is None:
        # One that is older than those in the file has made room for them.
        if offset == 0 and sequence > max(log, default=-1):
            log[sequence] = LogBlock(first, content)
    elif block.first == first and offset <= len(block.payload) < offset + len(content):
        payload = b"".join((block.payload[:offset], content))
        log[sequence] = LogBlock(first, memoryview(payload))
