# SPDX-License-Identifier: Apache-2.0
"""CSV as RFC 4180 has it: a header, CRLF, quotes doubled, UTF-8 without a byte order mark.

docs/exporters/csv-parquet.md describes the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import spans as span_table
from pyinstrument_gpu.export import summary as summary_table
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.text import Column, chunk_rows, integers, lines, texts
from pyinstrument_gpu.model.paths import without_surrogates
from pyinstrument_gpu.model.run_data import RunData

_METRIC_COLUMNS = ("metric", "update", "step", "host_ns", "value")
_SYNC_COLUMNS = (
    *("file", "line", "function", "kind", "allowed", "path", "step", "thread", "thread_name"),
    *("begin_ns", "blocked_ns", "bytes"),
)
_NUMBERS_BYTES = 200  # no row's numbers and commas are wider


def write(
    runs: Sequence[RunData],
    sink: BinaryIO,
    *,
    advance: Callable[[int], None],
    summary: bool = False,
    metrics: bool = False,
    syncs: bool = False,
) -> None:
    """Write spans, statistics, metrics or syncs as CSV.

    Every span is a row, in the order of `Run.spans`. Several runs stand one after the other with
    their ranks in a first column `rank`, on one time axis (see `offsets_ns_of`).

    Takes about half a second per million spans; memory does not grow with their number.

    Args:
        summary: one row per phase path with its statistics, instead of one per span.
        metrics: one row per value of a metric, instead of one per span.
        syncs: one row per wait for a device, instead of one per span.

    Raises:
        ExportError: there are several runs, and one does not know when it began; more than one of
            `summary`, `metrics` and `syncs` is asked for.
    """
    tables = {
        "summary": (summary, summary_table.COLUMNS),
        "metrics": (metrics, _METRIC_COLUMNS),
        "syncs": (syncs, _SYNC_COLUMNS),
    }
    asked = [name for name, (is_asked, _) in tables.items() if is_asked]
    if len(asked) > 1:
        raise ExportError(f"{' and '.join(asked)} are tables: export one after the other")
    several = len(runs) > 1
    columns = tables[asked[0]][1] if asked else span_table.COLUMNS
    sink.write(",".join(("rank", *columns) if several else columns).encode() + b"\r\n")
    ranks = [b"%d," % rank if several else b"" for rank in ranks_of(runs)]
    if summary:
        for run, rank in zip(runs, ranks, strict=True):
            for row in summary_table.rows(run):
                sink.write(rank + b",".join(map(_cell, row)) + b"\r\n")
            advance(len(run.spans))
        return
    for run, rank, offset_ns in zip(runs, ranks, offsets_ns_of(runs), strict=True):
        if metrics or syncs:
            sink.writelines((_metrics if metrics else _syncs)(run, rank, offset_ns))
            advance(len(run.spans))
            continue
        for rows, part in _spans(run, rank, offset_ns):
            sink.write(part)
            advance(rows)


def _spans(run: RunData, rank: bytes, offset_ns: int) -> Iterator[tuple[int, bytes]]:
    names = {
        column: (ids, [*map(_field, fields), b""])
        for column, (ids, fields) in span_table.text_columns(run).items()
    }
    widest = sum(max(map(len, fields)) for _, fields in names.values())
    rows = chunk_rows(_NUMBERS_BYTES + widest)
    for begin in range(0, len(run.spans), rows):
        part = slice(begin, begin + rows)
        chunk = run.spans[part]
        cells: list[Column | bytes] = [rank]
        for column in span_table.COLUMNS:
            if column in names:
                ids, fields = names[column]
                numbers = chunk[ids]
                cells.append(texts(fields, np.where(numbers < 0, len(fields) - 1, numbers)))
            else:
                cells.append(integers(span_table.numbers(run, part, column, offset_ns)))
            cells.append(b",")
        yield len(chunk), lines([*cells[:-1], b"\r\n"])


def _metrics(run: RunData, rank: bytes, offset_ns: int) -> Iterator[bytes]:
    names = [_field(name) for name in run.metric_names]
    for update, step, host_ns, name, value in run.metrics.tolist():
        cells = (names[name], b"%d" % update, _number(step), b"%d" % (host_ns + offset_ns))
        yield rank + b",".join((*cells, repr(value).encode())) + b"\r\n"


def _syncs(run: RunData, rank: bytes, offset_ns: int) -> Iterator[bytes]:
    sites = [
        b",".join(
            (
                *(_field(site.file), b"%d" % site.line, _field(site.function)),
                *(site.kind.name.lower().encode(), b"%d" % site.is_allowed),
            )
        )
        for site in run.syncs.sites
    ]
    paths = [_field(path) for path in run.paths]
    threads = [b"%d,%b" % (i, _field(thread.name)) for i, thread in enumerate(run.threads)]
    for begin_ns, duration_ns, size, site, path, step, thread in run.syncs.events.tolist():
        cells = (
            *(sites[site], paths[path] if path >= 0 else b"", _number(step), threads[thread]),
            *(b"%d" % (begin_ns + offset_ns), _number(duration_ns), b"%d" % size),
        )
        yield rank + b",".join(cells) + b"\r\n"


def _number(value: int) -> bytes:
    """The digits; nothing for a negative one, which is missing."""
    return b"" if value < 0 else b"%d" % value


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
