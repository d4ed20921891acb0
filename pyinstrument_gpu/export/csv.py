# SPDX-License-Identifier: Apache-2.0
"""CSV as RFC 4180 has it: a header, CRLF, quotes doubled, UTF-8 without a byte order mark.

Every span is a row, in the order of `Run.spans`; with `summary`, every phase path is one. Units
stand in the header. What is missing is an empty cell, never a zero. A lone surrogate in a name,
which UTF-8 cannot hold, becomes U+FFFD.

Names are written as they are. A spreadsheet that opens the file takes a cell that begins with `=`,
`+`, `-` or `@` for a formula: import such a file as text when its phase names come from others.

Spans are formatted a chunk at a time as one matrix of bytes, a row of text per span. Each field has
the width of its widest value in the chunk and is padded with 0xFF, which no UTF-8 text contains;
deleting that byte leaves the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.run import SPAN_DTYPE, Run
from pyinstrument_gpu.statistics import PhaseStatistics, Statistic

_CHUNK_SPANS = 16_384
_CHUNK_BYTES = 16 << 20  # fewer spans per chunk when names are long
_NUMBERS_BYTES = 200  # no row's numbers and commas are wider

_MEASURES = ("host", "self_host", "device", "blocked")
_NUMBERS = ("total_ns", "mean_ns", "std_ns", "min_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns")

_PAD = 0xFF


def write(runs: Sequence[Run], sink: BinaryIO, *, summary: bool = False) -> None:
    """Write the spans of a run, or its statistics, as CSV.

    Takes about half a second per million spans; memory does not grow with their number.

    Args:
        runs: exactly one run.
        sink: a binary stream.
        summary: one row per phase path with its statistics, instead of one per span.

    Raises:
        ExportError: there is not exactly one run.
    """
    if len(runs) != 1:
        raise ExportError(f"CSV holds one run, got {len(runs)}: export each to a file of its own")
    for part in _summary(runs[0]) if summary else _spans(runs[0]):
        sink.write(part)


def _summary(run: Run) -> Iterator[bytes]:
    columns = [f"{measure}_{number}" for measure in _MEASURES for number in ("count", *_NUMBERS)]
    yield ",".join(["phase", "path", "count", *columns]).encode() + b"\r\n"
    phase_of = dict(zip(run.paths, run.path_names.tolist(), strict=True))
    for path, statistics in run.phases.items():
        cells = [_field(run.names[phase_of[path]]), _field(path), b"%d" % statistics.count]
        cells += _statistic_cells(statistics)
        yield b",".join(cells) + b"\r\n"


def _statistic_cells(statistics: PhaseStatistics) -> Iterator[bytes]:
    for measure in _MEASURES:
        statistic: Statistic | None = getattr(statistics, measure)
        if statistic is None or not statistic.count:
            yield from [b""] * (1 + len(_NUMBERS))
            continue
        yield b"%d" % statistic.count
        for number in _NUMBERS:
            value = getattr(statistic, number)
            yield b"%.3f" % value if isinstance(value, float) else b"%d" % value


def _spans(run: Run) -> Iterator[bytes]:
    columns = SPAN_DTYPE.names or ()
    yield ",".join(columns).replace("thread", "thread,thread_name").encode() + b"\r\n"
    texts = {
        "phase": [_field(name) for name in run.names],
        "path": [_field(path) for path in run.paths],
        "thread": [b"%d,%b" % (i, _field(thread.name)) for i, thread in enumerate(run.threads)],
    }
    widest = _NUMBERS_BYTES + sum(max(map(len, column), default=0) for column in texts.values())
    rows = max(1, min(_CHUNK_SPANS, _CHUNK_BYTES // widest))
    for begin in range(0, len(run.spans), rows):
        chunk = run.spans[begin : begin + rows]
        yield _lines(
            [
                _texts(texts[column], chunk[column])
                if column in texts
                else _integers(chunk[column])
                for column in columns
            ]
        )


def _lines(columns: list[NDArray[np.uint8]]) -> bytes:
    rows = len(columns[0])
    comma = np.full((rows, 1), ord(","), np.uint8)
    line_end = np.broadcast_to(np.frombuffer(b"\r\n", np.uint8), (rows, 2))
    cells = [part for column in columns for part in (column, comma)]
    return np.hstack([*cells[:-1], line_end]).tobytes().translate(None, bytes([_PAD]))


def _texts(fields: list[bytes], ids: NDArray[Any]) -> NDArray[np.uint8]:
    """A padded row of bytes for each id."""
    used = np.flatnonzero(np.bincount(ids, minlength=len(fields)))
    width = max(len(fields[i]) for i in used)
    padded = b"".join(fields[i].ljust(width, bytes([_PAD])) for i in used)
    row_of = np.zeros(len(fields), np.intp)
    row_of[used] = np.arange(len(used))
    matrix = np.frombuffer(padded, np.uint8).reshape(len(used), width)
    rows: NDArray[np.uint8] = matrix[row_of[ids]]
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


def _integers(column: NDArray[Any]) -> NDArray[np.uint8]:
    """A padded row of decimal digits for each value; padding alone for -1, which is missing."""
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


_SURROGATE = re.compile("[\ud800-\udfff]")
_NEEDS_QUOTES = re.compile('[",\r\n]')


def _field(text: str) -> bytes:
    text = _SURROGATE.sub("\ufffd", text)
    if _NEEDS_QUOTES.search(text):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode()
