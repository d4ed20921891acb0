# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as its rank 0 finds them at its end."""

import fcntl
import os
from pathlib import Path

import pytest

from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.launch.rank_files import finished_job, is_local, pattern_of_ranks
from tests.cli.test_ranks import save_job


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, Path]:
    """The files of four ranks, on a machine on which two run."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    return dict(enumerate(map(Path, save_job(tmp_path, ranks=4))))


def test_finished_ranks_are_a_job(paths: dict[int, Path]) -> None:
    job = finished_job(paths, 5.0)
    assert [rank.rank for rank in job.ranks] == [0, 1, 2, 3]
    assert (job.world_size, job.missing) == (4, {})


def test_ranks_that_are_not_there_are_named_with_the_reason(paths: dict[int, Path]) -> None:
    paths[1].unlink()
    paths[2].unlink()
    with paths[3].open("rb") as recorded:
        fcntl.flock(recorded, fcntl.LOCK_EX)  # as a recording does
        job = finished_job(paths, 0.0)
    assert [rank.rank for rank in job.ranks] == [0]
    assert job.missing == {
        1: f"{paths[1]} does not exist",
        2: f"{paths[2]} does not exist: it ran on another machine. `report` takes the files of all",
        3: f"still recording into {paths[3]}",
    }


def test_a_file_of_an_earlier_job_is_not_of_this_one(paths: dict[int, Path]) -> None:
    other = save_job(paths[0].parent / "other", ranks=3)
    os.replace(other[2], paths[2])
    job = finished_job(paths, 60.0)
    assert [rank.rank for rank in job.ranks] == [0, 1, 3]
    assert "the numbers of ranks differ" in job.missing[2]


def test_a_damaged_file_is_named_and_an_own_one_is_an_error(paths: dict[int, Path]) -> None:
    paths[1].write_bytes(b"nothing")
    job = finished_job(paths, 60.0)
    assert [rank.rank for rank in job.ranks] == [0, 2, 3]
    assert str(paths[1]) in job.missing[1]
    paths[0].write_bytes(b"nothing")
    with pytest.raises(RunFileError):
        finished_job(paths, 60.0)


def test_ranks_of_a_machine_are_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert is_local(99)  # nothing says that it is not
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [rank for rank in range(12) if is_local(rank)] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("first", "second", "pattern"),
    [
        ("job.rank0.gpurun", "job.rank1.gpurun", "job.rank*.gpurun"),
        ("a 0/r0.gpurun", "a 0/r1.gpurun", "'a 0/r'*.gpurun"),
        ("00-0.gpurun", "01-1.gpurun", None),
        ("x.gpurun", "x.rank1.gpurun", None),
    ],
)
def test_pattern_of_files(first: str, second: str, pattern: str | None) -> None:
    assert pattern_of_ranks(Path(first), Path(second)) == pattern
