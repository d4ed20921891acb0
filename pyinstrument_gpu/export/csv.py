# SPDX-License-Identifier: Apache-2.0
"""CSV as RFC 4180 has it. docs/exporters/csv-parquet.md describes the columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import quote

from pyinstrument_gpu.export import summary as summary_table
from pyinstrument_gpu.export.atomic_file import atomic_write
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.run_facts import json_text, metadata
from pyinstrument_gpu.export.spans import MODULES, SPANS, SpanTable
from pyinstrument_gpu.export.table_choice import chosen_table
from pyinstrument_gpu.export.text import Column, chunk_rows, integers, lines, texts
from pyinstrument_gpu.model.paths import without_surrogates
from pyinstrument_gpu.model.run_data import RunData

_Field: TypeAlias = Callable[[str], bytes]
"""Makes a cell of a text."""

_METRIC_COLUMNS = ("metric", "update", "step", "host_ns", "value")
_SYNC_COLUMNS = (
    *("file", "line", "function", "kind", "allowed"),
    *("library_file", "library_line", "library_function"),
    *("path", "step", "thread", "thread_name"),
    *("begin_ns", "blocked_ns", "bytes"),
)


def write(
    runs: Sequence[RunData],
    sink: BinaryIO,
    *,
    advance: Callable[[int], None],
    summary: bool = False,
    metrics: bool = False,
    syncs: bool = False,
    modules: bool = False,
    neutralize_formulas: bool = False,
) -> None:
    """Write spans, or instead of them a row per path with its statistics (`summary`), per value of
    a metric (`metrics`), per wait for a device (`syncs`) or per pass through a module (`modules`).

    With `neutralize_formulas`, a text that a spreadsheet would take for a formula begins with an
    apostrophe. Takes about half a second per million spans.

    Raises:
        ExportError: more than one of these tables is asked for.
    """
    chosen = chosen_table(summary=summary, metrics=metrics, syncs=syncs, modules=modules)
    table = MODULES if modules else SPANS
    columns, rows_of = {
        "summary": (summary_table.COLUMNS, _summary),
        "metrics": (_METRIC_COLUMNS, _metrics),
        "syncs": (_SYNC_COLUMNS, _syncs),
    }.get(chosen or "", (table.names, None))
    several = len(runs) > 1
    field = _neutral_field if neutralize_formulas else _field
    sink.write(_row(["rank", *columns] if several else columns, field))
    offsets_ns = [0] * len(runs) if summary else offsets_ns_of(runs)
    for run, rank, offset_ns in zip(runs, ranks_of(runs), offsets_ns, strict=True):
        if rows_of is None:
            first = b"%d," % rank if several else b""
            for rows, part in _spans(table, run, first, offset_ns, field):
                sink.write(part)
                advance(rows if chosen is None else 0)
        else:
            for row in rows_of(run, offset_ns):
                sink.write(_row([rank, *row] if several else row, field))
        if chosen is not None:
            advance(len(run.spans))


def write_metadata(runs: Sequence[RunData], path: Path) -> None:
    """Write beside x.csv what runs it has, and what they lack: x.csv-metadata.json, where readers
    of "CSV on the Web" look for it (https://www.w3.org/TR/tabular-metadata/)."""
    document = {
        "@context": "http://www.w3.org/ns/csvw",
        "url": quote(path.name, errors="surrogateescape"),
        "notes": metadata(runs)["runs"],
    }
    with atomic_write(path.with_name(f"{path.name}-metadata.json")) as sink:
        sink.write(json_text(document) + b"\n")


def _spans(
    table: SpanTable, run: RunData, rank: bytes, offset_ns: int, field: _Field
) -> Iterator[tuple[int, bytes]]:
    fields = {
        column: [b"", *map(field, column_texts)]
        for column, column_texts in table.texts_of(run).items()
    }
    for part in slices_of(len(table.of(run)), chunk_rows(*fields.values())):
        cells: list[Column | bytes] = [rank]
        for column, values in table.columns(run, part, offset_ns):
            is_text = column in fields
            cells += [texts(fields[column], values + 1) if is_text else integers(values), b","]
        yield part.stop - part.start, lines([*cells[:-1], b"\r\n"])


def _summary(run: RunData, offset_ns: int) -> Iterator[Sequence[Any]]:
    for row in summary_table.rows(run):
        yield [b"%.3f" % value if isinstance(value, float) else value for value in row]


def _metrics(run: RunData, offset_ns: int) -> Iterator[Sequence[Any]]:
    for update, step, host_ns, name, value in run.metrics.tolist():
        yield run.metric_names[name], update, _unless_missing(step), host_ns + offset_ns, value


def _syncs(run: RunData, offset_ns: int) -> Iterator[Sequence[Any]]:
    for begin_ns, duration_ns, size, site, path, step, thread in run.syncs.events.tolist():
        at = run.syncs.sites[site]
        yield (
            *(at.file, at.line, at.function, at.kind.name.lower(), int(at.is_allowed)),
            *(astuple(at.library) if at.library is not None else (None, None, None)),
            *(run.paths[path] if path >= 0 else None, _unless_missing(step)),
            *(thread, run.threads[thread].name),
            *(begin_ns + offset_ns, _unless_missing(duration_ns), size),
        )


def _unless_missing(value: int) -> int | None:
    return None if value < 0 else value


def _row(cells: Sequence[Any], field: _Field) -> bytes:
    """A line; None is an empty cell, and bytes stand as they are."""
    return b",".join(_cell(cell, field) for cell in cells) + b"\r\n"


def _cell(value: Any, field: _Field) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return field(value)
    return b"" if value is None else str(value).encode()


_NEEDS_QUOTES = re.compile('[",\r\n]')
# https://owasp.org/www-community/attacks/CSV_Injection: what begins a formula, also in full width,
# and what may be taken for the end of a cell.
_BEGINS_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_MAY_END_CELL = re.compile("[\",;'\t\r\n]")


def _field(text: str) -> bytes:
    text = without_surrogates(text)
    return (_quoted(text) if _NEEDS_QUOTES.search(text) else text).encode()


def _neutral_field(text: str) -> bytes:
    text = without_surrogates(text)
    if _BEGINS_FORMULA.match(text):
        text = "'" + text
    return (_quoted(text) if _MAY_END_CELL.search(text) else text).encode()


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
