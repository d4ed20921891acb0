# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event files, many events at once.

A file is records of TFRecord (https://www.tensorflow.org/tutorials/load_data/tfrecord): the length
of the data, its checksum, the data, their checksum. The data are an `Event` in the encoding of
protocol buffers, with a `Summary` of one `Value` for each tag
(https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto).

Events with the same tags differ only in the bytes of their numbers. So they are rows of one matrix
of bytes, and a checksum is taken of a column of it at a time. To write an event object each would
take twenty times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Bytes: TypeAlias = NDArray[np.uint8]

_VERSION = b"brain.Event:2"

# The keys of fields: 8 times the number of the field, and how it is encoded.
_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_FILE_VERSION, _EVENT_SUMMARY = (
    b"\x09",
    b"\x10",
    b"\x1a",
    b"\x2a",
)
_SUMMARY_VALUE, _VALUE_TAG, _VALUE_SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"

_CHUNK_BYTES = 1 << 20


def head(wall_time: float) -> bytes:
    """The first event of a file, which names the version."""
    event = _EVENT_WALL_TIME + np.float64(wall_time).astype("<f8").tobytes()
    event += _field(_EVENT_FILE_VERSION, _VERSION)
    return _records(_rows(event, 1))


def events(
    wall_times: NDArray[np.float64],
    steps: NDArray[np.int64],
    tags: Sequence[str],
    values: NDArray[np.float64],
    is_present: NDArray[np.bool_],
) -> Iterator[bytes]:
    """The events of some steps, each with all tags that have a value in all of them, and then, tag
    by tag, those with another.

    Args:
        wall_times: in seconds.
        steps: from 0 on.
        tags: in UTF-8's range.
        values: a row for each tag; written as 32-bit floats.
        is_present: which of the values there are.
    """
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values.T, "<f4")
    always = is_present.all(axis=1)
    groups: list[list[int]] = [
        np.flatnonzero(always).tolist(),
        *([tag] for tag in np.flatnonzero(~always).tolist()),
    ]
    for group in groups:
        if not len(group):
            continue
        rows = np.flatnonzero(is_present[group].all(axis=0))
        # The longer the number of a step, the more bytes it takes.
        lengths = _varint_bytes(steps[rows])
        for length in np.unique(lengths).tolist():
            chosen = rows[lengths == length]
            of_group = [tags[tag] for tag in group]
            chunk_rows = max(1, _CHUNK_BYTES // (64 + sum(map(len, of_group))))
            for begin in range(0, len(chosen), chunk_rows):
                part = chosen[begin : begin + chunk_rows]
                of_part = numbers[part][:, group]
                yield _records(_events(wall_times[part], steps[part], length, of_group, of_part))


def _events(
    wall_times: NDArray[np.float64],
    steps: NDArray[np.int64],
    step_bytes: int,
    tags: Sequence[str],
    values: NDArray[np.float32],
) -> _Bytes:
    """A row of bytes for each event."""
    count = len(steps)
    summary = []
    for position, tag in enumerate(tags):
        value = _field(_VALUE_TAG, tag.encode()) + _VALUE_SIMPLE_VALUE
        before = _SUMMARY_VALUE + _varint(len(value) + 4) + value
        number = np.ascontiguousarray(values[:, position]).view(np.uint8).reshape(count, 4)
        summary += [_rows(before, count), number]
    summary_bytes = sum(part.shape[1] for part in summary)
    shifts = 7 * np.arange(step_bytes)
    step = (steps[:, None] >> shifts & 0x7F).astype(np.uint8)
    step[:, :-1] |= 0x80
    wall = np.ascontiguousarray(wall_times, "<f8").view(np.uint8).reshape(count, 8)
    parts = [
        *(_rows(_EVENT_WALL_TIME, count), wall),
        *(_rows(_EVENT_STEP, count), step),
        *(_rows(_EVENT_SUMMARY + _varint(summary_bytes), count), *summary),
    ]
    return np.hstack(parts)


def _records(data: _Bytes) -> bytes:
    """The rows as records, one after the other."""
    count, length = data.shape
    head = _rows(length.to_bytes(8, "little"), 1)
    prefix = np.hstack([head, _checksums(head)])
    return np.hstack([np.repeat(prefix, count, axis=0), data, _checksums(data)]).tobytes()


def _checksums(rows: _Bytes) -> _Bytes:
    """Of each row the masked CRC-32C, in four bytes."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _CRC_TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
    checksums: _Bytes = masked.astype("<u4").view(np.uint8).reshape(len(rows), 4)
    return checksums


def _crc_table() -> NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(0x82F63B78), crc >> 1)
    return crc


_CRC_TABLE = _crc_table()
"""Of CRC-32C, whose polynomial is that of Castagnoli, with its bits in reverse."""


def _rows(same: bytes, count: int) -> _Bytes:
    return np.broadcast_to(np.frombuffer(same, np.uint8), (count, len(same)))


def _field(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _varint_bytes(numbers: NDArray[np.int64]) -> NDArray[np.intp]:
    """How many bytes each number from 0 on takes."""
    limits = np.int64(1) << np.arange(7, 63, 7, dtype=np.int64)
    return np.searchsorted(limits, numbers, side="right") + 1
