# SPDX-License-Identifier: Apache-2.0
"""Parquet, as docs/exporters/data.md describes it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError, needed_for
from pyinstrument_gpu.export.runs import json_text, metadata, ranks_of, run_facts
from pyinstrument_gpu.export.tables import TablePart, tables_of

_METADATA_KEY = "pyinstrument_gpu"
"""In the metadata of the schema, where pandas has "pandas"."""

_PARTITION = re.compile(r"rank=\d+")


def write(
    runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None], **table: bool
) -> None:
    """Write a table. Rows, columns and errors are as in `csv.write`. The metadata of the schema say
    what runs these are, and what they lack. Raises MissingDependencyError without pyarrow."""
    several = len(runs) > 1
    found = tables_of(runs, advance, **table)
    _write(((rank if several else None, parts) for _, rank, parts in found), metadata(runs), sink)


def write_folder(
    runs: Sequence[Run], folder: Path, *, advance: Callable[[int], None], **table: bool
) -> None:
    """Write a folder of Parquet files partitioned by rank: `rank=0/part-0.parquet` and so on.

    Partitions of the same ranks are replaced, others stay: so each rank can add its own. A folder
    that is named as the partition of the only run is that partition. Rows and errors are as in
    `write`; ExportError also where a folder is named as the partition of another rank, or where a
    run that does not know its rank would replace one that ran beside it.
    """
    _pyarrow()  # raises before a folder is made
    if _PARTITION.fullmatch(folder.name):
        ranks = ranks_of(runs)
        if [folder.name] != [f"rank={rank}" for rank in ranks]:
            raise ExportError(
                f"{folder.name!r} is the name of a partition, and the runs are of "
                f"{', '.join(f'rank {rank}' for rank in ranks)}: give the folder around it"
            )
        folder = folder.parent
    for run, rank, parts in tables_of(runs, advance, **table):
        file = folder / f"rank={rank}" / "part-0.parquet"
        if "rank" not in run.environment and _holds_another(file, run):
            raise ExportError(
                f"{os.fspath(file)!r} is of a run beside this one, which does not know its rank: "
                "export the runs together, or each into a folder of its own"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file, follow_links=False) as sink:
            _write([(None, parts)], metadata([run]), sink)


def _holds_another(file: Path, run: Run) -> bool:
    """Return whether a partition is of a run beside this one: on another host, or at the same time
    on the same one. A later one of the same program replaces it."""
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
    with needed_for("Parquet", "pyarrow"):
        import pyarrow.parquet
    return pyarrow


def _write(
    tables: Iterable[tuple[int | None, Iterator[TablePart]]],
    about: Mapping[str, Any],
    sink: BinaryIO,
) -> None:
    """Write tables of the same columns, each with its rank, None for no such column."""
    pa = _pyarrow()
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for rank, parts in tables:
            for table in _tables(pa, parts):
                if rank is not None:
                    ranks = pa.repeat(pa.scalar(rank, pa.int32()), len(table))
                    table = table.add_column(0, "rank", ranks)
                if writer is None:
                    is_dictionary = pa.types.is_dictionary
                    names = [field.name for field in table.schema if is_dictionary(field.type)]
                    schema = table.schema.with_metadata({_METADATA_KEY: json_text(about)})
                    writer = stack.enter_context(
                        pa.parquet.ParquetWriter(sink, schema, use_dictionary=names)
                    )
                writer.write_table(table)


def _tables(pa: Any, parts: Iterable[TablePart]) -> Iterator[Any]:
    strings: dict[str, Any] = {}
    for part in parts:
        columns = {}
        for name, column in part.items():
            values, missing = np.ascontiguousarray(column.values), column.is_missing
            if column.texts is not None:
                if name not in strings:  # they are those of all parts
                    texts = [without_surrogates(text) for text in column.texts]
                    strings[name] = pa.array(texts, pa.string())
                indices = pa.array(values, pa.int32(), mask=missing)
                columns[name] = pa.DictionaryArray.from_arrays(indices, strings[name])
            else:
                columns[name] = pa.array(values, mask=missing if missing.any() else None)
        yield pa.table(columns)
