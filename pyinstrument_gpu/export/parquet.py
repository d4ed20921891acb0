# SPDX-License-Identifier: Apache-2.0
"""Parquet, as docs/exporters/csv-parquet.md describes it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyinstrument_gpu.errors import ExportError, needed_for
from pyinstrument_gpu.export import summary as summary_table
from pyinstrument_gpu.export.atomic_file import atomic_write
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.run_facts import json_text, metadata, run_facts
from pyinstrument_gpu.export.table import Part
from pyinstrument_gpu.export.tables import SPANS, SUMMARY, TABLES, chosen_table
from pyinstrument_gpu.model.paths import without_surrogates
from pyinstrument_gpu.model.run_data import RunData

_METADATA_KEY = "pyinstrument_gpu"
"""In the metadata of the schema, where pandas has "pandas"."""

_PARTITION = re.compile(r"rank=\d+")


def write(
    runs: Sequence[RunData],
    sink: BinaryIO,
    *,
    advance: Callable[[int], None],
    summary: bool = False,
    steps: bool = False,
    metrics: bool = False,
    syncs: bool = False,
    modules: bool = False,
) -> None:
    """Rows and columns are as in `csv.write`. The metadata of the schema say what runs these are,
    and what they lack. Raises MissingDependencyError without pyarrow, and ExportError where more
    than one table is asked for."""
    table = chosen_table(
        summary=summary, steps=steps, metrics=metrics, syncs=syncs, modules=modules
    )
    ranks = ranks_of(runs) if len(runs) > 1 else [None]
    offsets_ns = [0] * len(runs) if summary else offsets_ns_of(runs)
    _write(list(zip(runs, ranks, offsets_ns, strict=True)), sink, advance, table, runs)


def write_folder(
    runs: Sequence[RunData],
    folder: Path,
    *,
    advance: Callable[[int], None],
    summary: bool = False,
    steps: bool = False,
    metrics: bool = False,
    syncs: bool = False,
    modules: bool = False,
) -> None:
    """Write a folder of Parquet files partitioned by rank: `rank=0/part-0.parquet` and so on.

    Partitions of the same ranks are replaced, others stay: so each rank can add its own. A folder
    that is named as the partition of the only run is that partition. Rows and errors are as in
    `write`; ExportError also where a folder is named as the partition of another rank, or where a
    run that does not know its rank would replace one that ran beside it.
    """
    table = chosen_table(
        summary=summary, steps=steps, metrics=metrics, syncs=syncs, modules=modules
    )
    offsets_ns = [0] * len(runs) if summary else offsets_ns_of(runs)
    _pyarrow()  # raises before a folder is made
    ranks = ranks_of(runs)
    if _PARTITION.fullmatch(folder.name):
        if [folder.name] != [f"rank={rank}" for rank in ranks]:
            raise ExportError(
                f"{folder.name!r} is the name of a partition, and the runs are of "
                f"{', '.join(f'rank {rank}' for rank in ranks)}: give the folder around it"
            )
        folder = folder.parent
    for run, rank, offset_ns in zip(runs, ranks, offsets_ns, strict=True):
        file = folder / f"rank={rank}" / "part-0.parquet"
        if "rank" not in run.environment and _holds_another(file, run):
            raise ExportError(
                f"{os.fspath(file)!r} is of a run beside this one, which does not know its rank: "
                "export the runs together, or each into a folder of its own"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as sink:
            _write([(run, None, offset_ns)], sink, advance, table, runs)


def _holds_another(file: Path, run: RunData) -> bool:
    """Whether a partition is of a run beside this one: on another host, or at the same time on the
    same one. A later one of the same program replaces it."""
    pa = _pyarrow()
    try:
        found = pa.parquet.read_schema(file).metadata[_METADATA_KEY.encode()]
        (other,) = json.loads(found)["runs"]
        own = run_facts(run)
        if other["run_id"] == own["run_id"]:
            return False
        if other["host"] != own["host"]:
            return True
        other_begin_s, begin_s = (
            datetime.fromisoformat(one["started"]).timestamp() for one in (other, own)
        )
        other_end_s, end_s = (
            begin + one["duration_ns"] / 1e9
            for begin, one in ((other_begin_s, other), (begin_s, own))
        )
        return bool(begin_s < other_end_s and other_begin_s < end_s)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return False  # there is none, or nothing is known of it


def _pyarrow() -> Any:
    with needed_for("Parquet", "pyarrow", "parquet"):
        import pyarrow.parquet
    return pyarrow


def _write(
    parts: Sequence[tuple[RunData, int | None, int]],
    sink: BinaryIO,
    advance: Callable[[int], None],
    chosen: str,
    runs: Sequence[RunData],
) -> None:
    """Write runs, each with its rank, None for no such column, and the offset of its times. They
    are some of `runs`, and have the columns of all of these."""
    pa = _pyarrow()
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for run, rank, offset_ns in parts:
            if chosen == SUMMARY:
                tables = _summary(pa, run)
            else:
                tables = _tables(pa, TABLES[chosen](run, offset_ns, runs))
            for table in tables:
                if rank is not None:
                    table = table.add_column(
                        0, "rank", pa.repeat(pa.scalar(rank, pa.int32()), len(table))
                    )
                if writer is None:
                    is_dictionary = pa.types.is_dictionary
                    names = [field.name for field in table.schema if is_dictionary(field.type)]
                    schema = table.schema.with_metadata(
                        {_METADATA_KEY: json_text(metadata([run for run, *_ in parts]))}
                    )
                    writer = stack.enter_context(
                        pa.parquet.ParquetWriter(sink, schema, use_dictionary=names)
                    )
                writer.write_table(table)
                advance(len(table) if chosen == SPANS else 0)
            if chosen != SPANS:
                advance(len(run.spans))


def _tables(pa: Any, parts: Iterable[Part]) -> Iterator[Any]:
    strings: dict[str, Any] = {}
    for part in parts:
        columns = {}
        for name, column in part.items():
            values, missing = np.ascontiguousarray(column.values), column.is_missing
            if column.texts is not None:
                if name not in strings:  # they are those of all parts
                    strings[name] = _strings(pa, column.texts)
                indices = pa.array(values, pa.int32(), mask=missing)
                columns[name] = pa.DictionaryArray.from_arrays(indices, strings[name])
            else:
                columns[name] = pa.array(values, mask=missing if missing.any() else None)
        yield pa.table(columns)


def _summary(pa: Any, run: RunData) -> Iterator[Any]:
    text, number = pa.dictionary(pa.int32(), pa.string()), pa.int64()
    types = {"phase": text, "path": text} | dict.fromkeys(summary_table.FLOATS, pa.float64())
    schema = pa.schema([(name, types.get(name, number)) for name in summary_table.COLUMNS])
    rows = [dict(zip(schema.names, row, strict=True)) for row in summary_table.rows(run)]
    yield pa.Table.from_pylist(rows, schema)


def _strings(pa: Any, strings: Sequence[str]) -> Any:
    return pa.array([without_surrogates(string) for string in strings], pa.string())
