# SPDX-License-Identifier: Apache-2.0
"""Run files in which blocks say something else, and have the checksums that go with it."""

import copy
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import (
    BLOCK_HEADER_BYTES,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET,
    BlockHeader,
)
from pyinstrument_gpu.core.file.items import PATH_ITEM, STEP_COMPLETE, STEP_ITEM, STEP_SAMPLED
from tests.helpers.encoders import pack_block

_NEWEST = 1 << 32
_ONE_PART = 1 << 32
_MODULE_CALL = 1 << 30
_CHECKED_BYTES = 60
_SECTION = struct.Struct("<IIQQQ")
_NUMBERS = (0, 1, 2, 5, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def with_block(data: bytes, block_type: int, payload: bytes) -> bytes:
    """A file of the run 1 with one more block: a newer version of a document, or the beginning of a
    log."""
    slot = -(-(len(data) - SLOTS_OFFSET) // SLOT_BYTES)
    place = (0, 0) if block_type >= BlockType.NAMES else (_NEWEST + slot, _ONE_PART)
    block = pack_block(block_type, 1, slot, *place, payload)
    return data.ljust(SLOTS_OFFSET + slot * SLOT_BYTES, b"\0") + block


def without(data: bytes, *block_types: BlockType) -> bytes:
    """A file whose blocks of these types are gone, as where its tail was cut off."""
    for slot in slots_of(data):
        if _block(data, slot)[0].type in block_types:
            begin = SLOTS_OFFSET + slot * SLOT_BYTES
            data = data[:begin] + bytes(len(data[begin:][:SLOT_BYTES])) + data[begin + SLOT_BYTES :]
    return data


def with_format(data: bytes, major: int, minor: int) -> bytes:
    """A file that says that its format is another one."""
    header = bytearray(data[:_CHECKED_BYTES])
    struct.pack_into("<II", header, len(MAGIC), major, minor)
    checksum = zlib.crc32(header).to_bytes(4, "little")
    return bytes(header) + checksum + data[_CHECKED_BYTES + len(checksum) :]


def with_modules(data: bytes, paths: Sequence[int]) -> bytes:
    """A file in which these paths are calls of modules, which were timed in every other step."""

    def mark_paths(payload: bytearray) -> None:
        np.frombuffer(payload, PATH_ITEM)["name"][list(paths)] |= _MODULE_CALL

    def mark_steps(payload: bytearray) -> None:
        flags = np.frombuffer(payload, STEP_ITEM)["flags"]
        flags[:] = STEP_COMPLETE | STEP_SAMPLED
        flags[::2] |= 2 << 8

    return _changed(_changed(data, BlockType.PATHS, mark_paths), BlockType.STEPS, mark_steps)


def with_payload(data: bytes, block_type: BlockType, payload: bytes) -> bytes:
    """A file whose only block of a type has another payload."""

    def replace(old: bytearray) -> None:
        old[:] = payload

    return _changed(data, block_type, replace)


def with_changed_steps(data: bytes, steps: int | slice, flags: int) -> bytes:
    """A file in which some steps, by their places, have other flags."""

    def change(payload: bytearray) -> None:
        np.frombuffer(payload, STEP_ITEM)["flags"][steps] = flags

    return _changed(data, BlockType.STEPS, change)


def with_journal(data: bytes) -> bytes:
    """A file whose spans and state stand in the journal in part, as they do while it is written."""
    sections = b""
    for slot in slots_of(data):
        header, payload = _block(data, slot)
        kept = 0 if header.type == BlockType.STATE else len(payload) // 2
        if header.type == BlockType.SPANS:
            sections += _SECTION.pack(header.type, len(payload) - kept, 0, 0, kept)
            sections += payload[kept:]
            data = _with_payload(data, slot, bytes(payload[:kept]))
        elif header.type == BlockType.STATE:
            sections += _SECTION.pack(header.type, len(payload), _NEWEST << 1, 0, 0) + payload
    return with_block(data, BlockType.TICK, sections)


def slots_of(data: bytes) -> list[int]:
    """The slots that hold a block."""
    slots = range((len(data) - SLOTS_OFFSET) // SLOT_BYTES + 1)
    return [slot for slot in slots if any(data[SLOTS_OFFSET + slot * SLOT_BYTES :][:4])]


def forge(data: bytes, rng: random.Random, values: Sequence[Any]) -> bytes:
    """The file with one block replaced.

    Args:
        values: what may take the place of a value of JSON.
    """
    slot = rng.choice(slots_of(data))
    header, payload = _block(data, slot)
    what = rng.random()
    if payload[:1] == b"{" and what < 0.6:
        _change_json(payload, rng, values)
    elif payload and what < 0.8:
        _change_bytes(payload, rng)
    elif what < 0.9:
        del payload[rng.randrange(len(payload) + 1) :]
    else:
        place = rng.choice(((header.sequence, header.first), (0, 0), (1, 2**32 - 1)))
        header = header._replace(
            type=rng.choice(list(BlockType)), sequence=place[0], first=place[1]
        )
    return _with_payload(data, slot, bytes(payload), header)


def all_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each value within this one, as what it is in, an object or a list, and its place there."""
    within = value.items() if isinstance(value, dict) else enumerate(value)
    for place, one in [*within]:
        yield value, place
        if isinstance(one, (dict, list)):
            yield from all_places(one)


def _change_json(payload: bytearray, rng: random.Random, values: Sequence[Any]) -> None:
    try:
        document = json.loads(payload)
    except ValueError:  # it was forged before
        _change_bytes(payload, rng)
        return
    for _ in range(rng.choice((1, 1, 2))):
        places = [*all_places(document)]
        if not places:
            break
        inside, place = rng.choice(places)
        if rng.random() < 0.2:
            del inside[place]
        elif isinstance(inside[place], int) and rng.random() < 0.6:
            number = rng.choice(_NUMBERS)
            inside[place] = rng.choice((number, -number, inside[place] + 1, rng.randrange(50)))
        else:
            inside[place] = copy.deepcopy(rng.choice(values))
    changed = json.dumps(document).encode()
    if len(changed) <= PAYLOAD_BYTES:
        payload[:] = changed


def _change_bytes(payload: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(payload))
        if rng.random() < 0.4:
            payload[at] ^= 1 << rng.randrange(8)
            continue
        size = rng.choice((2, 4, 8))
        at -= at % size
        before = int.from_bytes(payload[at : at + size], "little")
        number = rng.choice((rng.choice(_NUMBERS), rng.randrange(50), before + 1, before - 1))
        changed = (number % 256**size).to_bytes(size, "little")
        payload[at : at + size] = changed[: len(payload) - at]


def _changed(data: bytes, block_type: BlockType, change: Callable[[bytearray], None]) -> bytes:
    for slot in slots_of(data):
        header, payload = _block(data, slot)
        if header.type == block_type:
            change(payload)
            data = _with_payload(data, slot, bytes(payload))
    return data


def _block(data: bytes, slot: int) -> tuple[BlockHeader, bytearray]:
    begin = SLOTS_OFFSET + slot * SLOT_BYTES
    header = BlockHeader.read(memoryview(data)[begin:])
    content = begin + BLOCK_HEADER_BYTES
    return header, bytearray(data[content : content + header.length])


def _with_payload(
    data: bytes, slot: int, payload: bytes, header: BlockHeader | None = None
) -> bytes:
    """The file with another payload, and another header, in a slot."""
    header = header or _block(data, slot)[0]
    begin = SLOTS_OFFSET + slot * SLOT_BYTES
    place = header.sequence, header.first
    block = pack_block(header.type, header.run_id, slot, *place, payload)
    return data[:begin] + block + data[begin + len(block) :]
