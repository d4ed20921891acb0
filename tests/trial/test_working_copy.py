# SPDX-License-Identifier: Apache-2.0
"""Copies of the working directory, which keep a user's files from what trials write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.trial import working_copy
from pyinstrument_gpu.trial.working_copy import WorkingCopy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "train.py").write_text("x = 1\n")
    (source / "data" / "rows.bin").write_bytes(b"rows")
    return source


def test_each_copy_is_as_the_directory_was(source: Path, tmp_path: Path) -> None:
    copy = WorkingCopy(source, tmp_path / "trials")
    place = copy.renew()
    (place / "checkpoint.pt").write_text("new")
    (place / "data" / "rows.bin").write_bytes(b"changed")
    again = copy.renew()
    assert sorted(path.name for path in again.rglob("*")) == ["data", "rows.bin", "train.py"]
    assert (again / "data" / "rows.bin").read_bytes() == b"rows"
    assert (source / "data" / "rows.bin").read_bytes() == b"rows"
    assert copy.original(str(again / "train.py")) == source / "train.py"
    assert copy.original("/elsewhere/train.py") is None


def test_environments_history_and_run_files_are_left_out(source: Path, tmp_path: Path) -> None:
    for folder in (".git", "__pycache__", "env"):
        (source / folder).mkdir()
        (source / folder / "file").write_text("x")
    (source / "env" / "pyvenv.cfg").write_text("")
    (source / "train.gpurun").write_text("")
    os.mkfifo(source / "pipe")
    place = WorkingCopy(source, tmp_path / "trials").renew()
    assert sorted(path.name for path in place.iterdir()) == ["data", "train.py"]


def test_links_lead_where_they_led(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("far")
    (source / "far").symlink_to("../outside")
    (source / "near").symlink_to("train.py")
    (source / "absolute").symlink_to(source / "data")
    place = WorkingCopy(source, tmp_path / "trials").renew()
    assert (place / "far").read_text() == "far"
    assert (place / "near").resolve() == (place / "train.py").resolve()
    assert (place / "absolute").resolve() == (place / "data").resolve()


def test_what_changes_meanwhile_is_in_no_copy(source: Path, tmp_path: Path) -> None:
    copy = WorkingCopy(source, tmp_path / "trials")
    copy.renew()
    (source / "train.py").write_text("x = 2\n")
    place = copy.renew()
    assert (place / "train.py").read_text() == "x = 1\n"
    assert copy.original(str(place / "train.py")) is None


def test_a_folder_that_cannot_be_written_to_is_removed(source: Path, tmp_path: Path) -> None:
    (source / "data").chmod(0o555)
    copy = WorkingCopy(source, tmp_path / "trials")
    copy.renew()
    assert (copy.renew() / "data" / "rows.bin").exists()
    copy.remove()
    assert not copy.place.exists()
    (source / "data").chmod(0o755)


def test_a_directory_that_is_too_large_says_what_to_do(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_copy, "MOST_BYTES", 8)
    with pytest.raises(TrialError, match=r"--link train\.py|--link data"):
        WorkingCopy(source, tmp_path / "trials")
    monkeypatch.setattr(working_copy, "MOST_BYTES", 6)
    copy = WorkingCopy(source, tmp_path / "trials", ["data"])
    place = copy.renew()
    assert (place / "data").is_symlink() and (place / "data" / "rows.bin").read_bytes() == b"rows"
    copy.remove()
    assert (source / "data" / "rows.bin").exists() and not place.exists()


@pytest.mark.parametrize("link", ["dta", "..", ".", "../source", "/"])
def test_a_link_to_what_is_not_inside_is_an_error(source: Path, tmp_path: Path, link: str) -> None:
    with pytest.raises(TrialError, match="to be linked"):
        WorkingCopy(source, tmp_path / "trials", [link])
