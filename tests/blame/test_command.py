# SPDX-License-Identifier: Apache-2.0
"""The command `blame` in a real repository."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.blame.commits import Repository
from pyinstrument_gpu.cli import main
from tests.helpers.launched import ENVIRONMENT
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run

# A stand-in for `pyinstrument-gpu run -o FILE --overwrite --no-report FOLDER`: it takes the next of
# the runs that are in the folder already, by what its own checkout was built to be. Which one is
# next depends on the commit alone: blame draws the order of the commits at random.
PLAYER = """\
#!/bin/sh
echo >> "$6/count"
number=$(cat ../number)
echo >> "$6/count-$number"
count=$(($(wc -l < "$6/count-$number") + 3 * number))
cp "$6/$(cat ../work)-$((count % 7)).gpurun" "$3"
"""
TRAINING = """\
from pyinstrument_gpu import gpu_phase, gpu_steps
for _ in gpu_steps(range(50)):
    with gpu_phase("forward"):
        sum(range(WORK))
"""
SPREAD = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.001)


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
    for number, work in enumerate(("10000", "no number", "10000", "20000", "20000")):
        (folder / "work.in").write_text(work)
        (folder / "code" / "train.py").write_text(TRAINING.replace("WORK", work))
        (folder / "number").write_text(str(number))
        git("add", ".")
        git("commit", "--quiet", "-m", f"Change {number}")
    monkeypatch.chdir(folder / "code")
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["blame", *arguments], prog_name="pyinstrument-gpu")


@pytest.fixture
def player(tmp_path: Path) -> tuple[str, ...]:
    """A command whose runs are made up, of the commits' `work`; that of none is not there."""
    folder = tmp_path / "player"
    folder.mkdir()
    (folder / "count").touch()
    for work, level in (("10000", 10), ("20000", 11)):
        for number, factor in enumerate(SPREAD):
            save(made_run([level * factor * MS] * 20), folder / f"{work}-{number}.gpurun")
    path = folder / "pyinstrument-gpu"
    path.write_text(PLAYER)
    path.chmod(0o755)
    return str(path), "run", str(folder)


def check_found(repository: Path, *command: str) -> None:
    (repository / "work.in").write_text("changed")
    git("add", "..")
    (repository / "code" / "train.py").write_text("changed as well")
    before = git("status", "--porcelain")
    result_file = repository.parent / "result.json"
    options = ("--build", "cp ../work.in ../work", "--json", str(result_file), "--max-runs", "40")
    result = invoke("HEAD~4..HEAD", *options, *command)
    assert result.exit_code == 0, result.output
    facts = json.loads(result_file.read_text())
    assert [suspect["subject"] for suspect in facts["suspects"]] == ["Change 3"]
    assert facts["phase"] == "forward"
    assert "(Change 3): forward +" in result.stdout
    changed = "Uncommitted changes are not part of what was run: code/train.py, work.in"
    assert changed in result.stdout.splitlines()
    # The checkout and its index are as they were, and nothing is left.
    assert git("status", "--porcelain") == before
    assert len(git("worktree", "list").splitlines()) == 1
    assert not list((repository.parent / "temporary").iterdir())
    assert not list((repository / ".git" / "pyinstrument-gpu").iterdir())


def test_a_commit_of_a_real_repository_is_found(repository: Path, player: tuple[str, ...]) -> None:
    check_found(repository, "--", *player)


@pytest.mark.slow
def test_a_commit_is_found_by_real_recordings(repository: Path) -> None:
    check_found(repository, "--at-once", "--", sys.executable, "train.py")


def test_an_unclear_result_says_what_to_do_and_is_gone_on_from(
    repository: Path, player: tuple[str, ...]
) -> None:
    # Both ends are the same, and no three runs show that within no margin.
    options = ("--build", "cp ../work.in ../work", "--margin", "0", "--max-runs")
    result = invoke("HEAD~1..HEAD", *options, "24", "--", *player)
    assert result.exit_code == 5, result.output
    assert result.stdout.startswith("No commit is named after 6 runs: UNCLEAR")
    assert "With a larger --max-runs the same command goes on from here" in result.stdout
    assert "--at-once shows smaller changes under CPU contention" in result.stdout
    assert "Uncommitted" not in result.stdout
    invoke("HEAD~1..HEAD", *options, "32", "--", *player)
    assert len((repository.parent / "player" / "count").read_text()) == 8  # two more


def test_a_build_that_fails_at_an_end_is_an_error_and_leaves_no_checkout(repository: Path) -> None:
    build = "echo no compiler here; exit 3"
    result = invoke("HEAD~1..HEAD", "--build", build, "--", sys.executable, "train.py")
    assert result.exit_code == 1
    assert "can't be run: its build ended with exit code 3" in result.stderr
    assert "no compiler here" in result.stderr
    assert len(git("worktree", "list").splitlines()) == 1


def test_only_checkouts_of_a_blame_of_this_repository_are_removed(
    repository: Path, tmp_path: Path
) -> None:
    command = ("HEAD~1..HEAD", "--build", "exit 3", "--", sys.executable, "train.py")
    assert invoke(*command).exit_code == 1
    (state,) = (repository / ".git" / "pyinstrument-gpu").glob("*/state.json")
    mine = Repository(repository)
    left = mine.make_folder()
    commit = mine.commits("HEAD~1", "HEAD")[0]
    mine.add_worktree(left / "checkout", commit)
    (precious := tmp_path / "precious").mkdir()
    mine.add_worktree(precious / "checkout", commit)
    unmarked = tmp_path / "temporary" / left.name.replace("blame-", "blame-x")
    unmarked.mkdir()
    (linked := unmarked.with_name(f"{unmarked.name}-link")).symlink_to(precious)
    other = tmp_path / "another"
    git("init", "--quiet", str(other))
    of_another = Repository(other).make_folder()
    above = tmp_path / "temporary" / ".." / "temporary" / left.name
    for folder in (precious, unmarked, linked, of_another, repository, tmp_path, above):
        document = json.loads(state.read_text()) | {"worktrees": str(folder)}
        state.write_text(json.dumps(document))
        assert invoke(*command).exit_code == 1
        assert folder.exists() and (left / "checkout" / "number").exists()
    assert (precious / "checkout" / "number").exists()
    state.write_text(json.dumps(document | {"worktrees": str(left)}))
    assert invoke(*command).exit_code == 1
    assert not left.exists()
    assert len(git("worktree", "list").splitlines()) == 2  # the user's own, and one beside it


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
