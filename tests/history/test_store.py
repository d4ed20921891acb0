# SPDX-License-Identifier: Apache-2.0
"""Runs in a store: each once, whatever ends or repeats the writing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, MissingDependencyError
from pyinstrument_gpu.history import store as store_module
from pyinstrument_gpu.history.store import add_runs, read_runs
from tests.helpers.run_writer import save
from tests.history.weeks import run_of_day, saved, weeks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "runs", weeks(4))


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gpurun"))


def ids(store: Path) -> list[str]:
    runs, _ = read_runs(str(store))
    return [str(one) for one in runs["run_id"]]


def test_rows_of_a_run_and_of_its_phases(folder: Path, tmp_path: Path) -> None:
    assert add_runs(tmp_path / "store", files_in(folder)) == (4, [])
    runs, phases = read_runs(str(tmp_path / "store"))
    assert [*runs["host"]] == ["box"] * 4
    assert runs["elapsed_ns"][0] == pytest.approx(100e6, rel=0.05)
    of_first = phases["place"] == 0
    times_ns = dict(zip(phases["phase"][of_first], phases["self_ns"][of_first], strict=True))
    assert {*times_ns} == {"forward", "backward", "outside phases"}
    assert sum(times_ns.values()) == pytest.approx(runs["step_ns"][0])


def test_a_run_that_is_there_is_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_runs(tmp_path / "store", files_in(folder))

    def no_load(*_: Any) -> Run:
        raise AssertionError("it was read again")

    monkeypatch.setattr(Run, "load", no_load)
    assert add_runs(tmp_path / "store", files_in(folder)) == (0, [])


def test_many_files_become_one_and_what_is_in_two_is_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_runs(store, files_in(folder)[:3])
    shutil.copytree(store, tmp_path / "before")
    monkeypatch.setattr(store_module, "_MOST_FILES", 4)
    assert add_runs(store, files_in(folder))[0] == 1
    assert [file.name[:5] for file in store.iterdir()] == ["runs-"]
    assert add_runs(store, files_in(folder))[0] == 0
    whole = ids(store)
    assert len(whole) == 4
    # As after a kill before the files of single runs were removed.
    for file in (tmp_path / "before").iterdir():
        shutil.copy(file, store)
    assert ids(store) == whole
    # As of another process that made one file of others.
    part = pyarrow.parquet.read_table(next((tmp_path / "before").iterdir()))
    pyarrow.parquet.write_table(part, store / "runs-0123456789abcdef.parquet")
    assert ids(store) == whole
    assert len(read_runs(str(store))[1]["place"]) == 12


def test_an_unfinished_file_is_not_of_the_store(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_runs(store, files_in(folder)[:2])
    (store / ".0123456789abcdef.part").write_bytes(b"PAR1")
    assert len(ids(store)) == 2


def test_a_run_that_goes_on_is_left_for_the_next_time(tmp_path: Path) -> None:
    run = run_of_day(1)
    run.complete = False
    saved(tmp_path, iter([run]))
    (file,) = files_in(tmp_path)
    added, (note,) = add_runs(tmp_path / "store", [file])
    assert added == 0
    assert note.startswith("left for the next time: 1 run that may go on, ")
    assert note.endswith(f": {file}")
    os.utime(file, (1e9, 1e9))
    assert add_runs(tmp_path / "store", [file]) == (1, [])


def test_a_file_that_was_cut_short_is_not_left_for_ever(tmp_path: Path) -> None:
    """It says what its beginning says, or is named with what to do, whenever it was written."""
    saved(tmp_path, iter([run_of_day(1)]))
    (file,) = files_in(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:300])
    os.utime(file, (1e9, 1e9))
    _, notes = add_runs(tmp_path / "store", [file])
    assert str(file) in notes[0]
    assert notes[1] == "to hear of the file no more, remove the file"
    file.write_bytes(whole[: len(whole) // 2])
    os.utime(file, (2e10, 2e10))  # in 2603
    assert add_runs(tmp_path / "store", [file]) == (1, [])


def test_of_a_job_there_is_rank_0(tmp_path: Path) -> None:
    saved(tmp_path, (run_of_day(one, rank=one, world_size=2) for one in range(2)))
    assert add_runs(tmp_path / "store", files_in(tmp_path)) == (1, [])
    assert ids(tmp_path / "store") == [f"{0:016x}"]


def test_what_can_not_be_read_is_named_and_what_has_no_step_is_kept(tmp_path: Path) -> None:
    (tmp_path / "wrong.gpurun").write_bytes(b"wrong")
    save(Run(environment=run_of_day(7).environment), tmp_path / "empty.gpurun")
    added, (note, then) = add_runs(tmp_path / "store", files_in(tmp_path))
    assert added == 1
    assert "wrong.gpurun" in note
    assert "remove the file" in then
    assert read_runs(str(tmp_path / "store"))[0]["steps"].tolist() == [0]


def test_no_store_and_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="no history can be read from"):
        read_runs(str(tmp_path))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install (duckdb|pyarrow)"):
        read_runs(str(tmp_path))
