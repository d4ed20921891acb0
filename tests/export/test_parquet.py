# SPDX-License-Identifier: Apache-2.0
"""The Parquet export, read back with pyarrow and compared with the CSV."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from hypothesis import given, settings

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE
from pyinstrument_gpu.errors import ExportError, MissingDependencyError
from pyinstrument_gpu.export import csv as csv_export
from pyinstrument_gpu.export import export, parquet
from tests.helpers.csv_rows import csv_rows
from tests.helpers.made_runs import rank, run_of, runs, written

SPANS = [
    (1, 1, 0, 1, 0, -1, -1, 1_000, 20_000, -1, -1, -1, 1),
    (0, 0, -1, 0, 1, 0, 7, 0, 2**62, 9_999, 10_000, 0, 0),
]

COLUMNS = (
    *("phase", "path", "step", "depth", "thread", "thread_name", "device", "stream", "stream_name"),
    *("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns", "device_ns"),
    *("blocked_ns", "flags"),
)
OF_HOST = ("attention", "forward/attention", 0, 1, 0, "MainThread", *[None] * 3, 1_000, 20_000)
OF_STREAM = ("forward", "forward", None, 0, 1, "", 0, 7, "stream 7", 0, 2**62, 9_999, 10_000, 1, 0)
ROWS = [
    dict(zip(COLUMNS, row, strict=True)) for row in ((*OF_HOST, *[None] * 4, 1), (*OF_STREAM, 0))
]


def read(data: bytes) -> Any:
    return pa.parquet.read_table(io.BytesIO(data))


def test_one_row_per_span() -> None:
    table = read(written(parquet.write, run_of(SPANS)))
    assert table.to_pylist() == ROWS
    texts = pa.dictionary(pa.int32(), pa.string())
    expected = {name: pa.from_numpy_dtype(SPAN_DTYPE[name]) for name in SPAN_DTYPE.names or ()}
    expected.update(phase=texts, path=texts, thread_name=texts, stream_name=texts)
    expected["device_ns"] = pa.int64()
    assert {field.name: field.type for field in table.schema} == expected


def test_run_without_spans_is_a_table_without_rows() -> None:
    table = read(written(parquet.write, run_of([])))
    assert (table.num_rows, table.column_names) == (0, [*COLUMNS])


@settings(max_examples=12)
@given(run=runs(with_modules=True))
def test_says_what_the_csv_says(run: Run) -> None:
    for options in ({}, {"modules": True}):
        text = written(csv_export.write, run, **options).decode()
        table = read(written(parquet.write, run, **options)).to_pylist()
        as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in table]
        assert as_text == csv_rows(text)


def test_every_row_of_a_long_run(tmp_path: Path) -> None:
    spans = np.zeros(300_000, SPAN_DTYPE)
    spans["host_begin_ns"] = np.arange(len(spans))
    run_of(spans).export(tmp_path / "out.parquet")
    file = pa.parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.metadata.num_row_groups > 1
    begins = file.read(["host_begin_ns"])["host_begin_ns"].to_numpy()
    assert np.array_equal(begins, np.arange(len(spans)))


def test_summary_has_one_row_per_path() -> None:
    table = read(written(parquet.write, run_of(SPANS), summary=True))
    columns = ("phase", "path", "count", *(f"host_{of}" for of in ("count", "total_ns", "max_ns")))
    assert [tuple(row[name] for name in columns) for row in table.to_pylist()] == [
        ("forward", "forward", 1, 1, 2**62, 2**62),
        ("attention", "forward/attention", 1, 1, 19_000, 19_000),
    ]
    assert table["host_mean_ns"].to_pylist() == [2.0**62, 19_000.0]
    assert table["device_total_ns"].to_pylist() == [1, None]
    assert table["blocked_total_ns"].null_count == 2
    assert table.schema.field("host_std_ns").type == pa.float64()
    empty = read(written(parquet.write, run_of([]), summary=True))
    assert empty.num_rows == 0
    assert empty.schema == table.schema


@pytest.mark.parametrize("name", ["out/", "existing"])
def test_folder_is_partitioned_by_rank(tmp_path: Path, name: str) -> None:
    (tmp_path / "existing").mkdir()
    folder = f"{tmp_path}/{name}"
    export([rank(3, 1_000, SPANS[:1]), rank(10, 0, SPANS)], folder)
    files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.*"))
    assert files == ["rank=10/part-0.parquet", "rank=3/part-0.parquet"]
    table = pa.dataset.dataset(folder, partitioning="hive").to_table().sort_by("rank")
    assert [row["rank"] for row in table.to_pylist()] == [3, 10, 10]
    assert table["host_begin_ns"].to_pylist() == [2_000, 1_000, 0]


def test_each_rank_can_add_its_own_partition(tmp_path: Path) -> None:
    for run in (rank(0, 0, SPANS), rank(1, 0, SPANS), rank(1, 0, SPANS[:1])):
        run.export(tmp_path, "parquet-folder")
    table = pa.dataset.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(table["rank"].to_pylist()) == [0, 0, 1]


def test_a_folder_named_as_a_partition_is_that_partition(tmp_path: Path) -> None:
    rank(3, 0, SPANS).export(f"{tmp_path}/x/rank=3/")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")] == [
        "x/rank=3/part-0.parquet"
    ]


@pytest.mark.parametrize("ranks", [[2], [2, 3]])
def test_a_folder_named_as_the_partition_of_another_rank(tmp_path: Path, ranks: list[int]) -> None:
    with pytest.raises(ExportError, match="'rank=3' is the name of a partition, and the runs are"):
        export([rank(each, 0, SPANS) for each in ranks], f"{tmp_path}/rank=3/")
    assert list(tmp_path.iterdir()) == []


def test_folder_of_summaries(tmp_path: Path) -> None:
    export([run_of(SPANS), run_of(SPANS[:1])], tmp_path, "parquet-folder", summary=True)
    table = pa.dataset.dataset(tmp_path, partitioning="hive").to_table()
    rows = sorted((row["rank"], row["path"]) for row in table.to_pylist())
    assert rows == [(0, "forward"), (0, "forward/attention"), (1, "forward/attention")]


def test_folder_named_like_a_file_is_not_taken_for_one_of_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(ExportError, match="Is a directory"):
        run_of(SPANS).export(tmp_path / "out.csv")


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ExportError, match="cannot write"):
        run_of(SPANS).export(tmp_path / "file", "parquet-folder")


@pytest.mark.parametrize("name", ["out.parquet", "out/"])
def test_missing_pyarrow_is_an_error_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match="pip install pyarrow"):
        run_of(SPANS).export(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []


def test_tables_are_exported_one_at_a_time(tmp_path: Path) -> None:
    for name in ("x.parquet", "x/"):
        with pytest.raises(ExportError, match="summary and modules are separate tables"):
            run_of(SPANS).export(f"{tmp_path}/{name}", summary=True, modules=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options", [{}, {"summary": True}, {"modules": True}])
def test_schema_says_what_runs_these_are(options: dict[str, Any], tmp_path: Path) -> None:
    runs = [rank(1, 0, SPANS, dropped={"depth": 3, "names": 0}), rank(0, 0, SPANS, complete=False)]
    runs[0].environment |= {"run_id": "0" * 15 + "1", "torch": "2.9.0", "version": "0.1.0"}
    export(runs, tmp_path / "x.parquet", **options)
    export(runs, tmp_path / "x", "parquet-folder", **options)
    files = ("x.parquet", "x/rank=1/part-0.parquet", "x/rank=0/part-0.parquet")
    found = [
        json.loads(pa.parquet.read_schema(tmp_path / file).metadata[b"pyinstrument_gpu"])["runs"]
        for file in files
    ]
    assert found[0] == [*found[1], *found[2]]
    first, second = found[0]
    assert (first["run_id"], first["host"], first["rank"]) == ("0" * 15 + "1", "box", 1)
    assert (first["torch"], first["version"]) == ("2.9.0", "0.1.0")
    assert (first["complete"], first["dropped"]) == (True, {"depth": 3})
    assert (first["spans"], first["spans_recorded"]) == (2, 2)
    assert (second["rank"], second["complete"]) == (0, False)
