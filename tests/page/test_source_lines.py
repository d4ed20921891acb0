# SPDX-License-Identifier: Apache-2.0
"""Source lines on the page: only of files that are the program's, and still what ran."""

import os
from pathlib import Path

import pytest

from pyinstrument_gpu.page.source_lines import source_context

LATER_NS = 1 << 62


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("first\n\tloss.item()\nthird\nfourth\n", "utf-8")
    return path


def test_a_line_with_its_neighbours(file: Path) -> None:
    middle = source_context(str(file), 2, LATER_NS)
    assert (middle.first, middle.lines) == (1, ("first", "        loss.item()", "third"))
    first, last = (source_context(str(file), line, LATER_NS) for line in (1, 4))
    assert (first.first, first.lines[0]) == (1, "first")
    assert (last.first, last.lines) == (3, ("third", "fourth"))


def test_a_changed_file_is_not_shown(file: Path) -> None:
    began_ns = file.stat().st_mtime_ns
    assert source_context(str(file), 2, began_ns).lines
    os.utime(file, ns=(began_ns + 1, began_ns + 1))
    assert (
        source_context(str(file), 2, began_ns).missing == "the file was changed after the run began"
    )
    assert not source_context(str(file), 2, None).lines


@pytest.mark.parametrize("line", [0, -1, 5, 1 << 40])
def test_a_line_that_is_not_there(file: Path, line: int) -> None:
    assert source_context(str(file), line, LATER_NS).missing == "the file has no such line"


def test_nothing_but_source_files_is_read(file: Path, tmp_path: Path) -> None:
    secret = file.rename(tmp_path / "passwords")
    assert source_context(str(secret), 1, LATER_NS).missing == "not a file of Python"
    assert source_context("train.py", 1, LATER_NS).missing == "not a file of Python"
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("folder.py", "pipe.py", "nothing.py", "zero\0byte.py", "x" * 300 + ".py"):
        assert source_context(f"{tmp_path}/{name}", 1, LATER_NS).missing


def test_any_bytes_can_be_read(file: Path) -> None:
    file.write_bytes(b"# coding: no-such-thing\nx\n")
    assert source_context(str(file), 2, LATER_NS).missing
    file.write_bytes(b"a\nb\n\xff\n")
    assert source_context(str(file), 2, LATER_NS).lines == ("a", "b", "\ufffd")


def test_a_long_line_is_cut(file: Path) -> None:
    file.write_text("x" * 10_000, "utf-8")
    assert source_context(str(file), 1, LATER_NS).lines == ("x" * 200,)
