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

TextColumn: TypeAlias = NDArray[np.uint8]

_PAD = 0xFF

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 16 << 20  # fewer rows per chunk when texts are long
_NUMBERS_BYTES = 400  # no row's numbers and constant parts are wider
_NUMBER_BYTES = 25


def chunk_rows(*fields: Sequence[bytes], numbers: int = 0) -> int:
    """Return how many rows to format at once, where each has one text of every sequence. `numbers`
    are columns of them beyond the usual ones."""
    widest_row = (
        _NUMBERS_BYTES
        + numbers * _NUMBER_BYTES
        + sum(max(map(len, each), default=0) for each in fields)
    )
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // widest_row))


def lines(columns: Sequence[TextColumn | bytes]) -> bytes:
    """The rows one after the other; bytes stand in every row."""
    return _side_by_side(columns).tobytes().translate(None, bytes([_PAD]))


def without(columns: Sequence[TextColumn | bytes], rows: NDArray[np.bool_]) -> TextColumn:
    """The columns as one, in which some rows have no text."""
    column = _side_by_side(columns)
    column[rows] = _PAD
    return column


def _side_by_side(columns: Sequence[TextColumn | bytes]) -> TextColumn:
    rows = next(len(column) for column in columns if not isinstance(column, bytes))
    parts = [
        np.broadcast_to(np.frombuffer(column, np.uint8), (rows, len(column)))
        if isinstance(column, bytes)
        else column
        for column in columns
    ]
    return np.hstack(parts)


def texts(fields: Sequence[bytes], ids: NDArray[Any]) -> TextColumn:
    """A text for each id, which indexes `fields`; false and true are 0 and 1."""
    ids = ids.astype(np.intp)
    used = np.flatnonzero(np.bincount(ids, minlength=len(fields)))
    used_fields = [fields[i] for i in used.tolist()]
    width = max(1, *map(len, used_fields))
    padded = b"".join(field.ljust(width, bytes([_PAD])) for field in used_fields)
    row_of = np.zeros(len(fields), np.intp)
    row_of[used] = np.arange(len(used))
    matrix = np.frombuffer(padded, np.uint8).reshape(len(used), width)
    rows: TextColumn = matrix[row_of[ids]]
    return rows


def integers(column: NDArray[Any]) -> TextColumn:
    """The decimal digits of each value; nothing for a negative one, which is missing."""
    values = column.astype(np.int64)
    width = len(str(values.max())) if values.max() >= 0 else 0
    digits = np.empty((width, len(values)), np.uint8)
    rest = values
    for place in reversed(range(width)):
        higher = rest // 10
        digits[place] = np.where(rest > 0, ord("0") + rest - 10 * higher, _PAD)
        rest = higher
    digits[-1:, values == 0] = ord("0")
    text: TextColumn = digits.T
    return text


def reals(
    column: NDArray[np.float64], is_missing: NDArray[np.bool_], decimals: int | None = None
) -> TextColumn:
    """Format values with so many decimals, or as Python writes them; nothing for missing ones."""
    form = b"%r" if decimals is None else b"%%.%df" % decimals
    values = zip(column.tolist(), is_missing.tolist(), strict=True)
    cells = np.array([b"" if missing else form % value for value, missing in values], np.bytes_)
    width = cells.dtype.itemsize
    text: TextColumn = np.frombuffer(cells.tobytes(), np.uint8).reshape(len(cells), width).copy()
    text[text == 0] = _PAD
    return text


def thousandths(column: NDArray[np.int64]) -> TextColumn:
    """Format values divided by 1000, exactly: 1234567 as `1234.567`. None may be negative."""
    whole = column // 1000
    fraction = integers(1000 + column - 1000 * whole)
    fraction[:, 0] = ord(".")
    text: TextColumn = np.hstack([integers(whole), fraction])
    return text
