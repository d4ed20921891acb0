# SPDX-License-Identifier: Apache-2.0
"""The CSV export and the door to all exports."""

import gzip
import io
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from pyinstrument_gpu import export as export_module
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import FOLDER, FORMATS, Exporter, export
from pyinstrument_gpu.export.csv import write
from tests.helpers.csv_rows import csv_rows
from tests.helpers.made_runs import ANCHOR, rank, run_of, syncs_of
from tests.helpers.made_runs import written as written_by
from tests.helpers.run_writer import save

HEADER = (
    b"phase,path,step,depth,thread,thread_name,device,stream,stream_name,host_begin_ns,"
    b"host_end_ns,device_begin_ns,device_end_ns,device_ns,blocked_ns,flags\r\n"
)

QUANTILES = ("p50_ns", "p95_ns", "p99_ns")


SPANS = [
    (1, 1, 0, 1, 0, -1, -1, 1_000, 20_000, -1, -1, -1, 1),
    (0, 0, 0, 0, 0, 0, 7, 0, 1_234_567_890_123, 9_999, 10_000, 0, 1),
    (0, 0, -1, 0, 1, -1, -1, 5, 6, -1, -1, -1, 0),
]


def written(run: Run, **options: Any) -> bytes:
    return written_by(write, run, **options)


def test_one_row_per_span() -> None:
    assert written(run_of(SPANS)) == HEADER + (
        b"attention,forward/attention,0,1,0,MainThread,,,,1000,20000,,,,,1\r\n"
        b"forward,forward,0,0,0,MainThread,0,7,stream 7,0,1234567890123,9999,10000,1,0,1\r\n"
        b"forward,forward,,0,1,,,,,5,6,,,,,0\r\n"
    )


def test_formulas_of_spreadsheets_are_neutralized_on_demand() -> None:
    names = ["=1+1", "-2", "@a", "+b", "\t=c", "\uff1dd", "a;=e", "f", "g=1"]
    spans = [(i, i, 0, 0, 0, -1, -1, 5, 6, -1, -1, -1, 1) for i in range(len(names))]
    parents = [-1] * len(names)
    run = run_of(spans, names, path_parents=parents, threads=[Thread(11, "=T")])
    plain = [row["phase"] for row in csv_rows(written(run).decode())]
    assert plain == names
    rows = csv_rows(written(run, neutralize_formulas=True).decode())
    assert [row["phase"] for row in rows] == [
        *("'=1+1", "'-2", "'@a", "'+b", "'\t=c", "'\uff1dd"),
        *("a;=e", "f", "g=1"),
    ]
    assert {row["thread_name"] for row in rows} == {"'=T"}
    assert b'"a;=e"' in written(run, neutralize_formulas=True)
    summary = csv_rows(written(run, summary=True, neutralize_formulas=True).decode())
    assert [row["phase"] for row in summary] == [row["phase"] for row in rows]


def test_numbers_are_no_formulas() -> None:
    metrics = np.array([(1, 0, 5, 0, -0.5)], METRIC_DTYPE)
    run = run_of(SPANS, metric_names=["=loss"], metrics=metrics)
    assert written(run, metrics=True, neutralize_formulas=True).endswith(
        b'"\'=loss",1,0,5,-0.5\r\n'
    )


def test_metadata_stand_beside_the_file(tmp_path: Path) -> None:
    run = run_of(SPANS, complete=False, environment={"run_id": "0" * 16, "host": "b\udcff"})
    run.export(tmp_path / "a b.csv")
    assert sorted(os.listdir(tmp_path)) == ["a b.csv", "a b.csv-metadata.json"]
    document = json.loads((tmp_path / "a b.csv-metadata.json").read_text())
    assert document["@context"] == "http://www.w3.org/ns/csvw"
    assert document["url"] == "a%20b.csv"
    (about,) = document["notes"]
    assert (about["run_id"], about["host"], about["complete"]) == ("0" * 16, "b\ufffd", False)
    run_of(SPANS).export(tmp_path / "a b.csv")
    document = json.loads((tmp_path / "a b.csv-metadata.json").read_text())
    assert document["notes"][0]["complete"] is True


def test_summary_has_one_row_per_path() -> None:
    host = Statistic.of(np.array([1, 2, 4]))
    statistics = {
        (0, Scope.STEP): PhaseStatistics(host=host, self_host=Statistic.of(np.array([3]))),
        (1, Scope.OUTSIDE): PhaseStatistics(host=Statistic.of(np.array([7]))),
    }
    text = written(run_of([], statistics=statistics), summary=True).decode()
    assert text.endswith("\r\n")
    rows = csv_rows(text)
    measures = ("host", "self_host", "device", "blocked")
    numbers = ("count", "total_ns", "mean_ns", "std_ns", "min_ns", *QUANTILES, "max_ns")
    assert list(rows[0]) == [
        *("phase", "path", "count"),
        *(f"{measure}_{number}" for measure in measures for number in numbers),
        *("model_flops", "hardware_flops", "mfu", "hfu"),
    ]
    values = [list(row.values()) for row in rows]
    assert values == [
        ["forward", "forward", "3"]
        + ["3", "7", "2.333", "1.247", "1", "2", "4", "4", "4"]
        + ["1", "3", "3.000", "0.000", "3", "3", "3", "3", "3"]
        + [""] * 22,
        ["attention", "forward/attention", "1"]
        + ["1", "7", "7.000", "0.000", "7", "7", "7", "7", "7"]
        + [""] * 31,
    ]


def test_syncs_as_rows() -> None:
    first, second = rank(0, 0), rank(1, 1_000)
    first.syncs = second.syncs = syncs_of(first)
    rows = [tuple(row.values()) for row in csv_rows(written(first, syncs=True).decode())]
    item = ("/home/a, b/train.py", "57", "train", "item", "0", "", "", "")
    copy = ("/home/a, b/data.py", "7", "<lambda>", "h2d_pageable", "1", "", "", "")
    assert rows == [
        (*item, "forward", "3", "0", "MainThread", "100", "50", "4"),
        (*item, "", "", "0", "MainThread", "200", "1001", "4"),
        (*copy, "forward", "4", "0", "MainThread", "2000", "5", str(1 << 40)),
        (*item, "forward/attention", "3", "1", "", "150", "", "8"),
    ]
    both = csv_rows(written_by(write, first, second, syncs=True).decode())
    assert [row["rank"] for row in both] == ["0"] * 4 + ["1"] * 4
    assert [row["begin_ns"] for row in both][4:] == ["1100", "1200", "3000", "1150"]
    assert csv_rows(written(run_of([]), syncs=True).decode()) == []
    with pytest.raises(ExportError, match="metrics and syncs are separate tables"):
        written(first, metrics=True, syncs=True)


def test_names_are_data_and_survive() -> None:
    names = ("a,b", 'say "hi"', "two\r\nlines", "=SUM(A1)", "über 🚀", " x ", "nul\0", "\ud800x")
    spans = [(i, i, 0, 0, 0, -1, -1, 0, 1, -1, -1, -1, 1) for i in range(len(names))]
    run = run_of(spans, names)
    text = written(run).decode("utf-8")
    rows = csv_rows(text)
    expected = [*names[:-1], "\ufffdx"]
    assert [row["phase"] for row in rows] == expected
    assert [row["path"] for row in rows] == [
        *(path.replace("\ud800", "\ufffd") for path in run.paths)
    ]
    assert b'\r\n"say ""hi""",' in written(run)


def test_every_integer_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinstrument_gpu.export.text._CHUNK_ROWS", 7)
    edges = [10**digits + offset for digits in range(19) for offset in (-1, 0, 1)]
    edges += [-1, 0, 2**63 - 1]
    spans = np.zeros(len(edges), SPAN_DTYPE)
    spans["host_begin_ns"] = edges
    spans["blocked_ns"] = edges[::-1]
    rows = csv_rows(written(run_of(spans)).decode())
    cells = ["" if value < 0 else str(value) for value in edges]
    assert [row["host_begin_ns"] for row in rows] == cells
    assert [row["blocked_ns"] for row in rows] == cells[::-1]


def test_is_written_in_chunks_also_when_names_are_long() -> None:
    class Sink(io.BytesIO):
        largest = 0

        def write(self, data: Any, /) -> int:
            self.largest = max(self.largest, len(data))
            return super().write(data)

    spans = np.zeros(50_000, SPAN_DTYPE)
    for names in (("short",), ("x" * 256, "y" * 256)):
        spans["path"] = len(names) - 1
        sink = Sink()
        write([run_of(spans, names)], sink, advance=lambda _: None)
        assert sink.getvalue().count(b"\r\n") == 50_001
        assert 0 < sink.largest < 17 << 20


def test_several_runs_are_rows_with_their_ranks_on_one_axis() -> None:
    spans = [(0, 0, 0, 0, 1, 0, 7, 1, 2, 3, -1, 9, 1)]
    later, earlier = rank(3, 1_000, spans), rank(0, 0, spans)
    assert written_by(write, later, earlier) == b"rank," + HEADER + (
        b"3,forward,forward,0,0,1,,0,7,stream 7,1001,1002,1003,,,9,1\r\n"
        b"0,forward,forward,0,0,1,,0,7,stream 7,1,2,3,,,9,1\r\n"
    )


def test_stream_time_is_exact_and_there_without_a_place_on_the_axis() -> None:
    spans = np.array(SPANS[:2], SPAN_DTYPE)
    spans["stream"], spans["device"] = (14, 0), (1, 0)
    run = run_of(spans, span_device_ns=np.array([77, 2]), span_device_clock_ns=np.array([5, 6]))
    rows = csv_rows(written(run).decode())
    columns = ("stream_name", "device_begin_ns", "device_end_ns", "device_ns")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("default stream", "", "", "77"),
        ("default stream", "9999", "10000", "2"),
    ]


def test_several_summaries_need_no_common_axis() -> None:
    text = written_by(write, run_of(SPANS), run_of(SPANS[:1]), summary=True).decode()
    rows = csv_rows(text)
    assert [(row["rank"], row["path"], row["count"]) for row in rows] == [
        ("0", "forward", "2"),
        ("0", "forward/attention", "1"),
        ("1", "forward/attention", "1"),
    ]


def test_runs_without_different_ranks_are_numbered() -> None:
    text = written_by(write, rank(5, 0, SPANS[:1]), rank(5, 0, SPANS[:1])).decode()
    assert [line[:2] for line in text.splitlines()[1:]] == ["0,", "1,"]


def test_last_reading_of_the_clocks_will_do() -> None:
    anchor = ANCHOR | {"run_ns": 40, "realtime_ns": ANCHOR["realtime_ns"] + 50}
    text = written_by(
        write, rank(0, 0), run_of([(0, 0, 0, 0, 0, -1, -1, 1, 2, -1, -1, -1, 1)], anchor=anchor)
    )
    assert b",11,12,,,,,1\r\n" in text


def test_several_runs_of_which_one_has_no_clock_are_refused() -> None:
    with pytest.raises(ExportError, match="run 2 has no start time"):
        written_by(write, rank(0, 0), run_of([]))


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no run"):
        export([], tmp_path / "out.csv")
    assert os.listdir(tmp_path) == []


def test_export_by_suffix_and_by_name(tmp_path: Path) -> None:
    run = run_of(SPANS)
    run.export(tmp_path / "a.CSV")
    run.export(tmp_path / "b.txt", "csv")
    run.export(str(tmp_path / "c.csv"), summary=True)
    assert (tmp_path / "a.CSV").read_bytes() == written(run)
    assert (tmp_path / "b.txt").read_bytes() == written(run)
    assert (tmp_path / "c.csv").read_bytes() == written(run, summary=True)
    files = ["a.CSV", "b.txt", "c.csv"]
    assert sorted(os.listdir(tmp_path)) == sorted([*files, *(f"{f}-metadata.json" for f in files)])


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("out", None, r"no format has the suffix '' of .*out'; known: \.csv/\.csv\.gz \(csv\)"),
        (
            "out",
            None,
            r"by name only: tensorboard\. For a folder, write '.*out/'; for an event file",
        ),
        ("out.gz", None, r"no format has the suffix '\.gz'"),
        ("out.nsys-rep", None, r"create -n .*out\.nvtxt -o .*out\.nsys-rep"),
        ("out.cvs", None, r"no format has the suffix '\.cvs'"),
        ("out.csv", "cvs", r"unknown format 'cvs'; known: csv"),
    ],
)
def test_unknown_format_names_the_known(
    tmp_path: Path, name: str, format: str | None, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        run_of(SPANS).export(tmp_path / name, format)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "out.csv",
            "csv has no option 'sumary'; it has summary, steps, metrics, syncs, modules, "
            "neutralize_formulas",
        ),
        ("out.json", "perfetto has no option 'sumary'; it has none"),
    ],
)
def test_unknown_option_names_the_known_and_leaves_no_file(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        run_of(SPANS).export(tmp_path / name, sumary=True)
    assert os.listdir(tmp_path) == []


def test_existing_file_is_replaced_when_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "out.csv"
    old.write_bytes(b"old")
    link = tmp_path / "link.csv"
    link.symlink_to(old)

    def fail(runs: Any, sink: BinaryIO, **options: Any) -> None:
        sink.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export_module, "FORMATS", {"csv": Exporter(fail, {".csv": "it fails"})})
        with pytest.raises(ExportError, match=r"out\.csv': No space left on device"):
            export([run_of(SPANS)], old)
    assert old.read_bytes() == b"old"

    run_of(SPANS).export(link)
    assert link.is_symlink()
    assert old.read_bytes() == written(run_of(SPANS))
    assert sorted(os.listdir(tmp_path)) == ["link.csv", "link.csv-metadata.json", "out.csv"]


def test_file_has_the_usual_permissions(tmp_path: Path) -> None:
    run_of(SPANS).export(tmp_path / "out.csv")
    (tmp_path / "other").touch()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("out.csv", "other")}
    assert len(modes) == 1


def test_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "out.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run_of(SPANS).export(pipe)
        assert os.read(reader, 1 << 16) == written(run_of(SPANS))
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["out.csv"]


def test_link_to_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    # As /dev/stdout and what a shell passes for >(program): the link leads to no path.
    read_end, write_end = os.pipe()
    try:
        run_of(SPANS).export(f"/dev/fd/{write_end}", "csv")
        assert os.read(read_end, 1 << 16) == written(run_of(SPANS))
    finally:
        os.close(read_end)
        os.close(write_end)


def test_run_file_is_never_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "run.gpurun", tmp_path / "out.csv"
    save(run_of(SPANS), path)
    link.symlink_to(path)
    before = path.read_bytes()
    for place in (path, link):
        with pytest.raises(ExportError, match=f"{place}' is a run file and would be replaced"):
            run_of(SPANS).export(place, "csv")
    assert path.read_bytes() == before


def test_missing_folder_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nowhere/out\.csv': No such file or directory"):
        run_of(SPANS).export(tmp_path / "nowhere" / "out.csv")


@pytest.mark.parametrize(("suffix", "format"), [(".csv", "csv"), (".json", "perfetto")])
def test_compressed_files_hold_the_same(tmp_path: Path, suffix: str, format: str) -> None:
    run = run_of(SPANS)
    run.export(tmp_path / f"x{suffix}")
    run.export(tmp_path / f"x{suffix}.gz")
    run.export(tmp_path / "x.txt.GZ", format)

    plain = (tmp_path / f"x{suffix}").read_bytes()
    for name in (f"x{suffix}.gz", "x.txt.GZ"):
        compressed = (tmp_path / name).read_bytes()
        assert gzip.decompress(compressed) == plain
        assert compressed[3:8] == b"\0" * 5  # neither a name nor a time
    if suffix == ".csv":
        document = json.loads((tmp_path / "x.csv.gz-metadata.json").read_text())
        assert document["url"] == "x.csv.gz"


def test_table_of_formats_is_consistent() -> None:
    suffixes = [suffix for exporter in FORMATS.values() for suffix in exporter.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix == suffix.lower() for suffix in suffixes)
    assert all(suffix.startswith(".") or suffix == FOLDER for suffix in suffixes)
