# SPDX-License-Identifier: Apache-2.0
"""The TICK document: what the newest blocks of logs have beyond what stands in their slots."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pyinstrument_gpu.core.file.blocks import FIRST_LOG_TYPE, Blocks, BlockType, LogBlock
from pyinstrument_gpu.core.file.cursor import Cursor

_SECTION = struct.Struct("<IIQQQ")


def put_together(
    blocks: Blocks,
    documents: Mapping[int, tuple[int, bytes]],
    logs: dict[int, dict[int, LogBlock]],
) -> None:
    """Fill in the documents and logs, with what the journal has beyond the slots.

    Args:
        documents: of each the newest version, with its number.
        logs: of each the blocks in slots by sequence; those of the journal are added.
    """
    state_version, _ = documents.get(BlockType.STATE, (0, b""))
    _, journal = documents.get(BlockType.TICK, (0, b""))
    blocks.documents = {
        block_type: content
        for block_type, (_, content) in documents.items()
        if block_type != BlockType.TICK
    }
    cursor = Cursor(journal, "TICK")
    while cursor:
        block_type, length, sequence, first, offset = cursor.numbers(_SECTION)
        content = cursor.take(length)
        if block_type >= FIRST_LOG_TYPE:
            _extend(logs.setdefault(block_type, {}), sequence, first, offset, content)
        elif block_type == BlockType.STATE and sequence > state_version:
            blocks.documents[BlockType.STATE] = bytes(content)
    for block_type, log in logs.items():
        blocks.logs[block_type] = [block for _, block in sorted(log.items())]


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
