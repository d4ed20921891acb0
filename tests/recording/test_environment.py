# SPDX-License-Identifier: Apache-2.0
"""What a run says of where it took place."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.recording import uncommitted
from pyinstrument_gpu.recording.environment import code_revision, gather, packages, variables
from tests.helpers.script import run_script


@pytest.mark.skipif(sys.platform != "linux", reason="recordings are made on Linux")
def test_machine_is_named_as_by_python() -> None:
    facts = gather()
    assert facts["host"] == platform.node()
    assert facts["python"] == platform.python_version()
    assert facts["platform"] == platform.platform()
    assert facts["cores"] == len(os.sched_getaffinity(0))


def test_nothing_is_started() -> None:
    source = """
import resource
from pyinstrument_gpu.recording import environment
environment.gather()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt)
"""
    assert run_script(source).stdout == "0\n"


def test_revision_of_a_repository(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    assert code_revision(inner) is None or (Path("/") / ".git").exists()
    git = tmp_path / "project" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert code_revision(inner) is None
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    assert code_revision(inner) == "a" * 40
    (git / "refs" / "heads" / "main").write_text("b" * 40 + "\n")
    assert code_revision(inner) == "b" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert code_revision(inner) == "c" * 40
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {git}\n")
    assert code_revision(worktree) == "c" * 40


@pytest.mark.parametrize(
    "head",
    [
        "ref: {folder}/private",
        "ref: ../private",
        "ref: refs/../../private",
        "ref: refs/heads/linked",
        "ref: refs/heads/long",
        "ref: HEAD",
        "the text of any file",
        "f" * 41,
        "F" * 40,
        "f" * 5000,
    ],
)
def test_a_revision_is_a_hash_and_no_text_of_another_file(tmp_path: Path, head: str) -> None:
    (tmp_path / "private").write_text("PRIVATE KEY\n")
    heads = tmp_path / ".git" / "refs" / "heads"
    heads.mkdir(parents=True)
    (heads / "linked").symlink_to(tmp_path / "private")
    (heads / "long").write_text("a" * 40 + " " * 5000)
    (tmp_path / ".git" / "packed-refs").write_text(f"{'a' * 40} ../private\n")
    (tmp_path / ".git" / "HEAD").write_text(head.format(folder=tmp_path) + "\n")
    assert code_revision(tmp_path) is None


def test_a_revision_may_be_a_sha256(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("0f" * 32)
    assert code_revision(tmp_path) == "0f" * 32


def test_variables_that_matter_and_no_secret() -> None:
    environment = {
        "OMP_NUM_THREADS": "4",
        "TORCH_LOGS": "x" * 2000,
        "PYTHONHASHSEED": "0",
        "NCCL_SECRET": "hidden",
        "PYTHON_API_KEY": "hidden",
        "HF_TOKEN": "hidden",
        "TORCHELASTIC_RUN_ID": "7",
        "OMP_ANYTHING": "hidden",
        "HOME": "/root",
    }
    assert variables(environment) == {
        "OMP_NUM_THREADS": "4",
        "PYTHONHASHSEED": "0",
        "TORCH_LOGS": "x" * 1000,
    }


def test_packages_are_those_that_are_imported() -> None:
    for name in ("numpy", "msgspec"):
        importlib.import_module(name)
    found = packages()
    assert found["numpy"] == metadata.version("numpy")
    assert found["msgspec"] == metadata.version("msgspec")
    assert not {"os", "re", "tests"} & found.keys()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has it")
def test_the_start_of_the_machine() -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts = gather()
    assert facts["boot_id"] == boot_id
    assert facts["asleep_ns"] >= 0


def test_job_id_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert gather()["slurm_job"] == "4711"
    monkeypatch.setenv("SLURM_JOB_ID", "none")
    assert "slurm_job" not in gather()


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def answer(folder: Path, number: int) -> Any:
    """What git says; each number is asked anew."""
    asked = uncommitted._ask(folder, -number)
    pipe = asked._pipe
    assert pipe is not None
    os.set_blocking(pipe, True)
    return asked.facts().get("uncommitted")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_uncommitted_changes(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("a")
    git(tmp_path, "init", "--quiet")
    assert answer(source, 1) is None  # there is no commit
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    (tmp_path / "train.gpurun").write_text("no code")
    assert answer(source, 2) == {"hash": None, "files": []}
    (source / "train.py").write_text("b")
    first = answer(source, 3)
    assert first["files"] == ["src/train.py"]
    (source / "new one.py").write_text("c")
    second = answer(source, 4)
    assert second["files"] == ["src/train.py", "src/new one.py"]
    (source / "new one.py").write_text("d")
    third = answer(source, 5)
    assert third["files"] == second["files"]
    assert len({first["hash"], second["hash"], third["hash"]}) == 3


NO_CHILD = """
import os, sys
from pathlib import Path
from pyinstrument_gpu.recording import uncommitted

uncommitted.ask(Path(sys.argv[1]))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise SystemExit("it has a child")
"""


def test_program_has_no_child_of_it(tmp_path: Path) -> None:
    """Neither while git runs nor later. In a process of its own, as this one may have children."""
    run_script(NO_CHILD, tmp_path)
