# SPDX-License-Identifier: Apache-2.0
"""PYINSTRUMENT_GPU_RECORD: a recording that begins at the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyinstrument_gpu.core.run import Run
from tests.helpers.script import run_script

PROGRAM = """
import pyinstrument_gpu as pig
for _ in pig.gpu_steps([1, 2, 3]):
    with pig.gpu_phase("forward"):
        pass
"""
VARIABLE = "PYINSTRUMENT_GPU_RECORD"


def run_with(
    value: object, source: str = PROGRAM, *arguments: object, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return run_script(source, *arguments, environment={VARIABLE: str(value), **environment})


def environment_with(value: Path, *folders: Path) -> dict[str, str]:
    """That of this process, in which the folders come first on Python's path."""
    path = os.pathsep.join([*map(str, folders), *sys.path])
    return {**os.environ, "PYTHONPATH": path, VARIABLE: str(value)}


def test_the_import_records_until_the_program_ends(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    # Other settings hold for it, too.
    done = run_with(path, PYINSTRUMENT_GPU_RECORD_ARGUMENTS="no")
    assert (done.stdout, done.stderr) == ("", "")
    run = Run.load(path)
    assert run.complete
    assert "command" not in run.environment
    assert (run.step_totals.count, run.phases["forward"].count) == (3, 3)


@pytest.mark.parametrize(
    ("value", "ranks", "name"),
    [
        ("train.gpurun", "2", "train.rank1.gpurun"),
        ("rank-{rank}.gpurun", "1", "rank-1.gpurun"),
    ],
)
def test_ranks_have_files_of_their_own(tmp_path: Path, value: str, ranks: str, name: str) -> None:
    run_with(tmp_path / value, RANK="1", WORLD_SIZE=ranks)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_process_may_be_part_of_the_name(tmp_path: Path) -> None:
    for _ in range(2):
        run_with(tmp_path / "{pid}.gpurun")
    assert {path.stem == str(Run.load(path).environment["pid"]) for path in tmp_path.iterdir()} == {
        True
    }
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("missing/train.gpurun", []),
        ("", []),
        ("there.gpurun", []),
        ("there.gpurun", ["-W", "error"]),
    ],
)
def test_a_path_that_can_not_be_is_one_warning(
    tmp_path: Path, value: str, options: list[str]
) -> None:
    (tmp_path / "there.gpurun").write_text("a text")
    done = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM + "print('trained')"],
        env=environment_with(tmp_path / value),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count(f"{VARIABLE}: nothing is recorded: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.gpurun"]
    assert (tmp_path / "there.gpurun").read_text() == "a text"


def test_advice_for_a_file_that_is_there_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "there.gpurun").write_text("a text")
    done = run_with(tmp_path / "there.gpurun")
    assert "there.gpurun already exists: choose another path, perhaps one with {pid}" in done.stderr
    assert "overwrite" not in done.stderr


def test_processes_that_the_program_starts_record_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program)],
        env=environment_with(path, tmp_path),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = Run.load(path)
    assert run.complete
    assert run.phases["of all"].count == 1
    assert [one.name for one in tmp_path.glob("*.gpurun")] == ["train.gpurun"]


CHILDREN = """
import multiprocessing, os, subprocess, sys
import pyinstrument_gpu as pig

def work():
    with pig.gpu_phase("of all"):
        pass

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
    subprocess.run([sys.executable, "-c", "import program; program.work()"], check=True)
    if os.fork() == 0:
        work()
        sys.exit()
    os.wait()
    work()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_program_that_does_not_import_it(tmp_path: Path, method: str) -> None:
    (tmp_path / "work.py").write_text("def work():\n    import pyinstrument_gpu\n")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing, work
if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=work.work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment_with(tmp_path / "train.gpurun", tmp_path),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*.gpurun"))


def test_commands_do_not_record_themselves(tmp_path: Path) -> None:
    asked, path = tmp_path / "asked.gpurun", tmp_path / "run.gpurun"
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    environment = environment_with(asked)
    command = [sys.executable, "-m", "pyinstrument_gpu"]
    for arguments in (
        ["run", "-o", str(path), "--no-report", str(program)],
        ["report", str(path)],
    ):
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert not asked.exists()
    assert Run.load(path).step_totals.count == 3


def test_the_console_script_does_not_either(tmp_path: Path) -> None:
    asked = tmp_path / "asked.gpurun"
    script = tmp_path / "pyinstrument-gpu"
    script.write_text("from pyinstrument_gpu.cli import main\nmain(['--version'])\n")
    environment = environment_with(asked)
    subprocess.run([sys.executable, str(script)], env=environment, check=True, capture_output=True)
    assert not asked.exists()


def test_a_recording_of_the_programs_own_comes_first(tmp_path: Path) -> None:
    asked, own = tmp_path / "asked.gpurun", tmp_path / "own.gpurun"
    source = f"{PROGRAM}\nimport sys\nwith pig.record(sys.argv[1]), pig.gpu_step():\n    pass"
    done = run_with(asked, source, own)
    assert done.stderr.count("the program has started a recording of its own") == 1
    assert (Run.load(asked).step_totals.count, Run.load(own).step_totals.count) == (3, 1)
    assert Run.load(asked).complete


def test_switched_off(tmp_path: Path) -> None:
    done = run_with(tmp_path / "train.gpurun", PYINSTRUMENT_GPU="0")
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())
