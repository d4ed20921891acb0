# SPDX-License-Identifier: Apache-2.0
"""Many rows of text at once, as one matrix of bytes.

A column is a matrix with one row per row of text. Each column has the width of its widest value
and is padded with 0xFF, which no UTF-8 text contains; `lines` joins columns and deletes that byte,
which leaves the text. So a million rows need no Python object each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.uint8]

_PAD = 0xFF

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 16 << 20  # fewer rows per chunk when texts are long


def chunk_rows(widest_row: int) -> int:
    """How many rows to format at once when none is wider than this many bytes."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // widest_row))


def lines(columns: Sequence[Column | bytes]) -> bytes:
    """The rows one after the other; bytes stand in every row."""
    rows = next(len(column) for column in columns if not isinstance(column, bytes))
    parts = [
        np.broadcast_to(np.frombuffer(column, np.uint8), (rows, len(column)))
        if isinstance(column, bytes)
        else column
        for column in columns
    ]
    return np.hstack(parts).tobytes().translate(None, bytes([_PAD]))


def texts(fields: Sequence[bytes], ids: NDArray[Any]) -> Column:
    """A text for each id, which indexes `fields`; false and true are 0 and 1."""
    ids = ids.astype(np.intp)
    used = np.flatnonzero(np.bincount(ids, minlength=len(fields)))
    used_fields = [fields[i] for i in used.tolist()]
    width = max(1, *map(len, used_fields))
    padded = b"".join(field.ljust(width, bytes([_PAD])) for field in used_fields)
    row_of = np.zeros(len(fields), np.intp)
    row_of[used] = np.arange(len(used))
    matrix = np.frombuffer(padded, np.uint8).reshape(len(used), width)
    rows: Column = matrix[row_of[ids]]
    return rows


def _four_digit_groups() -> NDArray[np.uint32]:
    """The texts of 0 ... 9999, four bytes each: with leading zeros, then with padding instead."""
    digits = np.arange(10_000)[:, np.newaxis] // np.array([1000, 100, 10, 1])
    inner = (digits % 10 + ord("0")).astype(np.uint8)
    leading = np.where(digits > 0, inner, np.uint8(_PAD))
    return np.concatenate([inner, leading]).view(np.uint32)[:, 0]


_GROUPS = _four_digit_groups()
_ZERO = np.frombuffer(bytes([_PAD, _PAD, _PAD, ord("0")]), np.uint32)[0]
_EMPTY = np.frombuffer(bytes([_PAD] * 4), np.uint32)[0]
_THOUSANDTHS = np.frombuffer(b"".join(b".%03d" % i for i in range(1000)), np.uint32)


def integers(column: NDArray[Any]) -> Column:
    """The decimal digits of each value; nothing for a negative one, which is missing."""
    values = column.astype(np.int64)
    groups = -(-len(str(values.max())) // 4) if values.max() >= 0 else 0
    text = np.empty((len(values), groups), np.uint32)
    rest = values
    for group in reversed(range(groups)):
        higher = rest // 10_000
        index = rest - higher * 10_000
        index[higher <= 0] += 10_000
        text[:, group] = _GROUPS[index]
        rest = higher
    if groups:
        text[values == 0, -1] = _ZERO
        text[values < 0] = _EMPTY
    return text.view(np.uint8)


def thousandths(column: NDArray[np.int64]) -> Column:
    """Each value divided by 1000, exactly: 1234567 as `1234.567`. No value may be negative."""
    whole = column // 1000
    fraction = _THOUSANDTHS[column - whole * 1000]
    return np.hstack([integers(whole), fraction[:, np.newaxis].view(np.uint8)])
