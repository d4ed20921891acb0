# SPDX-License-Identifier: Apache-2.0
"""CSV as RFC 4180 has it. docs/exporters/data.md describes the columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias
from urllib.parse import quote

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.runs import json_text, metadata
from pyinstrument_gpu.export.tables import TableColumn, TablePart, tables_of
from pyinstrument_gpu.export.text import TextColumn, chunk_rows, integers, lines, reals, texts

OPTIONS = {
    "neutralize_formulas": (
        "put an apostrophe before texts that a spreadsheet would take for formulas",
        None,
    )
}

_Field: TypeAlias = Callable[[str], bytes]
"""Makes a cell of a text."""


def write(
    runs: Sequence[Run],
    sink: BinaryIO,
    *,
    advance: Callable[[int], None],
    neutralize_formulas: bool = False,
    **table: bool,
) -> None:
    """Write spans, or instead of them a row per path with its statistics (`summary`), per step
    (`steps`), per value of a metric (`metrics`), per wait for a device (`syncs`) or per pass
    through a module (`modules`).

    With `neutralize_formulas`, a text that a spreadsheet would take for a formula begins with an
    apostrophe. Takes about half a second per million spans.

    Raises:
        ExportError: more than one of these tables is asked for.
    """
    several = len(runs) > 1
    field = _neutral_field if neutralize_formulas else _field
    is_first = True
    for _, rank, parts in tables_of(runs, advance, **table):
        first = b"%d," % rank if several else b""
        fields: dict[str, list[bytes]] = {}
        for part in parts:
            if is_first:
                names = ["rank", *part] if several else part
                sink.write(b",".join(map(field, names)) + b"\r\n")
                is_first = False
            sink.writelines(_lines(part, first, fields, field))


def write_metadata(runs: Sequence[Run], path: Path) -> None:
    """Write beside x.csv what runs it has, and what they lack: x.csv-metadata.json, where readers
    of "CSV on the Web" look for it (https://www.w3.org/TR/tabular-metadata/)."""
    document = {
        "@context": "http://www.w3.org/ns/csvw",
        "url": quote(path.name, errors="surrogateescape"),
        "notes": metadata(runs)["runs"],
    }
    beside = path.with_name(f"{path.name}-metadata.json")
    with atomic_write(beside, follow_links=False) as sink:
        sink.write(json_text(document) + b"\n")


def _lines(
    part: TablePart, first: bytes, fields: dict[str, list[bytes]], field: _Field
) -> Iterator[bytes]:
    """Yield the rows in chunks, each row prefixed with `first`. `fields` keeps the cells of texts,
    which all parts of a run share."""
    for name, column in part.items():
        if column.texts is not None and name not in fields:
            fields[name] = [b"", *map(field, column.texts)]
    count = len(next(iter(part.values())).values)
    for rows in slices_of(count, chunk_rows(*fields.values(), numbers=len(part))):
        cells: list[TextColumn | bytes] = [first]
        for name, column in part.items():
            cells += [_cells(column, rows, fields.get(name)), b","]
        yield lines([*cells[:-1], b"\r\n"])


def _cells(column: TableColumn, rows: slice, fields: list[bytes] | None) -> TextColumn:
    values = column.values[rows]
    if fields is not None:
        return texts(fields, values + 1)
    if values.dtype.kind == "f":
        return reals(values, column.is_missing[rows], column.decimals)
    return integers(values)


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
