# SPDX-License-Identifier: Apache-2.0
"""CSV as RFC 4180 has it: a header, CRLF, quotes doubled, UTF-8 without a byte order mark.

docs/exporters/csv-parquet.md describes the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from pyinstrument_gpu.export import spans as span_table
from pyinstrument_gpu.export import summary as summary_table
from pyinstrument_gpu.export.ranks import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.text import (
    Column,
    chunk_rows,
    integers,
    lines,
    texts,
    without_surrogates,
)
from pyinstrument_gpu.run import Run

_NUMBERS_BYTES = 200  # no row's numbers and commas are wider


def write(
    runs: Sequence[Run],
    sink: BinaryIO,
    *,
    advance: Callable[[int], None],
    summary: bool = False,
) -> None:
    """Write spans, or statistics, as CSV.

    Every span is a row, in the order of `Run.spans`. Several runs stand one after the other with
    their ranks in a first column `rank`, on one time axis (see `offsets_ns_of`).

    Takes about half a second per million spans; memory does not grow with their number.

    Args:
        runs: the ranks of one job, or a single run.
        sink: a binary stream.
        advance: called with the number of spans done since its last call.
        summary: one row per phase path with its statistics, instead of one per span.

    Raises:
        ExportError: there are several runs, and one does not know when it began.
    """
    several = len(runs) > 1
    columns = summary_table.COLUMNS if summary else span_table.COLUMNS
    sink.write(",".join(("rank", *columns) if several else columns).encode() + b"\r\n")
    ranks = [b"%d," % rank if several else b"" for rank in ranks_of(runs)]
    if summary:
        for run, rank in zip(runs, ranks, strict=True):
            for row in summary_table.rows(run):
                sink.write(rank + b",".join(map(_cell, row)) + b"\r\n")
            advance(len(run.spans))
        return
    for run, rank, offset_ns in zip(runs, ranks, offsets_ns_of(runs), strict=True):
        for rows, part in _spans(run, rank, offset_ns):
            sink.write(part)
            advance(rows)


def _spans(run: Run, rank: bytes, offset_ns: int) -> Iterator[tuple[int, bytes]]:
    names = {
        "phase": ("phase", [_field(name) for name in run.names]),
        "path": ("path", [_field(path) for path in run.paths]),
        "thread_name": ("thread", [_field(thread.name) for thread in run.threads]),
    }
    widest = sum(max(map(len, fields), default=0) for _, fields in names.values())
    rows = chunk_rows(_NUMBERS_BYTES + widest)
    for begin in range(0, len(run.spans), rows):
        chunk = run.spans[begin : begin + rows]
        cells: list[Column | bytes] = [rank]
        for column in span_table.COLUMNS:
            if column in names:
                ids, fields = names[column]
                cells.append(texts(fields, chunk[ids]))
            else:
                cells.append(integers(span_table.numbers(chunk, column, offset_ns)))
            cells.append(b",")
        yield len(chunk), lines([*cells[:-1], b"\r\n"])


def _cell(value: summary_table.Value) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return _field(value)
    return b"%.3f" % value if isinstance(value, float) else b"%d" % value


_NEEDS_QUOTES = re.compile('[",\r\n]')


def _field(text: str) -> bytes:
    text = without_surrogates(text)
    if _NEEDS_QUOTES.search(text):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode()
