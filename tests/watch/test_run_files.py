# SPDX-License-Identifier: Apache-2.0
"""Which files are watched."""

import os
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.watch import process
from pyinstrument_gpu.watch.run_files import run_files
from tests.helpers.run_writer import save
from tests.helpers.watched import running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, written_s: int, **environment: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save(running(environment={"run_id": str(path), **environment}), path)
    os.utime(path, (written_s, written_s))
    return path


def rank(number: int, of: int = 4, **others: object) -> dict[str, object]:
    return {"rank": number, "world_size": of, **others}


def test_a_file(folder: Path) -> None:
    path = write(folder / "of any name", 1)
    assert run_files(str(path))() == [path]
    for wrong, reason in ((folder / "missing", "there is no file"), (folder / "b", "not a run")):
        (folder / "b").write_text("a text")
        with pytest.raises(RunFileError, match=reason):
            run_files(str(wrong))


def test_the_newest_of_a_folder(folder: Path) -> None:
    write(folder / "a.gpurun", 2)
    newest = write(folder / "b.gpurun", 3)
    write(folder / "c.gpurun", 1)
    (folder / "d.txt").touch()
    assert run_files(str(folder))() == [newest]


def test_the_newest_below_the_working_directory(folder: Path) -> None:
    write(folder / "a.gpurun", 2)
    newest = write(folder / "runs" / "today" / "b.gpurun", 3)
    write(folder / ".hidden" / "c.gpurun", 4)
    assert run_files(None)() == [newest]


def test_the_ranks_of_the_newest_job(folder: Path) -> None:
    newest = write(folder / "train.rank1.gpurun", 9, **rank(1))
    first = write(folder / "train.rank0.gpurun", 8, **rank(0))
    write(folder / "other.rank0.gpurun", 7, **rank(0))
    write(folder / "train.rank2.gpurun", 7, **rank(2, of=8))
    write(folder / "train.rank7.gpurun", 7, **rank(0))
    (folder / "train.rank4.gpurun").write_text("no run")
    files = run_files(str(folder))
    assert files() == [first, newest]
    late = write(folder / "train.rank10.gpurun", 10, **rank(10))
    assert files() == [first, newest, late]


def test_ranks_in_folders_of_their_machines(folder: Path) -> None:
    first = write(folder / "a" / "train.rank0.gpurun", 8, **rank(0))
    newest = write(folder / "b" / "train.rank1.gpurun", 9, **rank(1))
    assert run_files(str(folder))() == [first, newest]
    assert run_files(str(folder / "b"))() == [newest]


OURS: dict[str, object] = {"job": "new", "arguments": ["/code/train.py"]}


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": ["/code/train.py"]},
        {"arguments": ["/code/train.py"], "job": "old"},
        {"arguments": ["/code/test.py"], "job": "new"},
    ],
)
def test_ranks_of_another_job_are_left_out(folder: Path, other: dict[str, object]) -> None:
    """Of one to which its launcher gave another id or none, and of another program."""
    for number in (0, 1):
        write(folder / "a" / f"job.rank{number}.gpurun", 1, **rank(number, 2, **other))
    ours = [write(folder / "b" / "job.rank0.gpurun", 9, **rank(0, 2, **OURS))]
    files = run_files(str(folder))
    assert files() == ours
    ours.append(write(folder / "b" / "job.rank1.gpurun", 8, **rank(1, 2, **OURS)))
    assert files() == ours


def test_ranks_of_two_jobs_of_one_command(folder: Path) -> None:
    """Until the others are there, rank 1 may be of either."""
    ours = [write(folder / "b" / "job.rank0.gpurun", 9, **rank(0))]
    other = write(folder / "a" / "job.rank1.gpurun", 1, **rank(1))
    files = run_files(str(folder))
    assert files() == [*ours, other]
    write(folder / "a" / "job.rank0.gpurun", 1, **rank(0))
    ours.append(write(folder / "b" / "job.rank1.gpurun", 8, **rank(1)))
    assert files() == ours


def test_a_rank_that_may_be_of_two_jobs_is_refused_by_name(folder: Path) -> None:
    for name in ("a", "b"):
        write(folder / name / "job.rank0.gpurun", 9, **rank(0))
    write(folder / "c" / "job.rank1.gpurun", 1, **rank(1))
    with pytest.raises(JobError) as raised:
        run_files(".")
    assert str(raised.value).splitlines()[1:] == [
        "    a/job.rank0.gpurun",
        "    b/job.rank0.gpurun",
        "    c/job.rank1.gpurun",
        "Give the files of one job",
    ]


def test_one_rank_alone(folder: Path) -> None:
    path = write(folder / "train.gpurun", 1, **rank(0, of=1))
    write(folder / "train.rank0.gpurun", 0, **rank(1, of=1))
    assert run_files(str(folder))() == [path]


def test_a_process(folder: Path) -> None:
    with pig.record("train") as recording:
        assert run_files(str(os.getpid()))() == [recording.path]
    (folder / "7").mkdir()
    with pytest.raises(RunFileError, match=r"there is no run file .* in 7"):
        run_files("7")  # a folder of that name comes first


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError, "there is no process 99, and no file of that name"),
        (PermissionError, "the files of process 99 can't be seen: it belongs to another user"),
    ],
)
def test_a_process_that_is_not_to_be_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], reason: str
) -> None:
    def recorded_files(pid: int, proc: Path) -> tuple[list[Path], bool]:
        raise error

    monkeypatch.setattr(process, "recorded_files", recorded_files)
    with pytest.raises(RunFileError, match=reason):
        run_files("99")


def test_children_of_a_process_are_its_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {98: [], 99: [folder / "a"], 100: [folder / "b"]}
    monkeypatch.setattr(process, "recorded_files", lambda pid, proc: (files[pid], False))
    monkeypatch.setattr(process, "children", lambda pid, proc: [99, 100])
    assert run_files("98")() == [folder / "a", folder / "b"]


def test_a_process_that_records_nothing_is_told_how_to_begin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "children", lambda pid, proc: [])
    with pytest.raises(RunFileError, match=r"records nothing.*\n.*pyinstrument-gpu run train.py"):
        run_files(str(os.getpid()))
    with pig.record(), pytest.raises(RunFileError, match="records in memory"):
        run_files(str(os.getpid()))


def test_nothing_at_all(folder: Path) -> None:
    words = r"there is no run file \(.gpurun\) in .*\n.*run train.py\n.*\n.*GPU_RECORD="
    for target in (None, str(folder)):
        with pytest.raises(RunFileError, match=words):
            run_files(target)
