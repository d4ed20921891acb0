# SPDX-License-Identifier: Apache-2.0
"""The command `blame` in a real repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from tests.helpers.launched import ENVIRONMENT

# The work is counted in CPU time, of which a busy machine gives each run as much.
TRAINING = """\
import time
from pyinstrument_gpu import gpu_phase, gpu_steps
for _ in gpu_steps(range(12)):
    with gpu_phase("forward"):
        end = time.thread_time() + WORK
        while time.thread_time() < end:
            pass
"""


def git(*arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    command = ["git", *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five commits: the second does not run, and from the fourth on a step is far longer."""
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    folder = tmp_path / "repository"
    (folder / "code").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "--quiet")
    for number, work in enumerate(("0.0002", "no number", "0.0002", "0.02", "0.02")):
        (folder / "code" / "work.in").write_text(f"WORK = {work}\n")
        (folder / "code" / "train.py").write_text("from work import WORK\n" + TRAINING)
        (folder / "number").write_text(str(number))
        git("add", ".")
        git("commit", "--quiet", "-m", f"Change {number}")
    monkeypatch.chdir(folder / "code")
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["blame", *arguments], prog_name="pyinstrument-gpu")


def test_a_commit_of_a_real_repository_is_found(repository: Path) -> None:
    (repository / "number").write_text("changed")
    git("add", "..")
    (repository / "code" / "train.py").write_text("changed as well")
    before = git("status", "--porcelain")
    options = ("--build", "cp work.in work.py", "--json", "result.json", "--max-runs", "48")
    result = invoke("HEAD~4..HEAD", *options, "--", sys.executable, "train.py")
    assert result.exit_code == 0, result.output
    facts = json.loads(Path("result.json").read_text())
    os.remove("result.json")
    subjects = [suspect["subject"] for suspect in facts["suspects"]]
    assert subjects == ["Change 3"]
    assert facts["phase"] == "forward"
    assert "(Change 3): forward +" in result.stdout
    # The checkout and its index are as they were, and nothing is left.
    assert git("status", "--porcelain") == before
    assert len(git("worktree", "list").splitlines()) == 1
    assert not list((repository.parent / "temporary").iterdir())
    assert not list((repository / ".git" / "pyinstrument-gpu").iterdir())


def test_a_build_that_fails_at_an_end_is_an_error_and_leaves_no_checkout(repository: Path) -> None:
    build = "echo no compiler here; exit 3"
    result = invoke("HEAD~1..HEAD", "--build", build, "--", sys.executable, "train.py")
    assert result.exit_code == 1
    assert "can't be run: its build ended with exit code 3" in result.stderr
    assert "no compiler here" in result.stderr
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("commits", "exit_code", "message"),
    [
        ("HEAD", 2, "write the commits as GOOD..BAD"),
        ("HEAD~1...HEAD", 2, "write the commits as GOOD..BAD"),
        ("nothing..HEAD", 1, "nothing"),
        ("HEAD..HEAD~1", 1, "does not follow on HEAD by first parents"),
    ],
)
def test_commits_that_are_no_series_are_refused(
    commits: str, exit_code: int, message: str, repository: Path
) -> None:
    result = invoke(commits, "--", sys.executable, "train.py")
    assert result.exit_code == exit_code
    assert message in result.stderr
