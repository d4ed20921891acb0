# SPDX-License-Identifier: Apache-2.0
"""What a run says of where it took place."""

import os
import platform
import sys
from pathlib import Path

import pytest

from pyinstrument_gpu.recording.environment import code_revision, gather
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
