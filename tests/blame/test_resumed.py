# SPDX-License-Identifier: Apache-2.0
"""A blame that was killed goes on, and says the same as one that was not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.launched import ENVIRONMENT
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run

# A stand-in for `pyinstrument-gpu run -o FILE --overwrite --no-report FOLDER`: it takes the next of
# the runs of its commit that are in the folder, by what is in its checkout. In place of the run
# that `stop` names by its stage and number, the second one of a pair, it kills the blame. From then
# on the machine is a slow one.
PLAYER = """\
#!/bin/sh
read work < work
if [ -e "$6/stop" ]; then
    read stage number < "$6/stop"
    folder=$(dirname "$3")
    case "$3" in
        */"$stage"*/baseline-"$number".gpurun) before="$folder/candidate-$number.gpurun" ;;
        */"$stage"*/candidate-"$number".gpurun) before="$folder/baseline-$number.gpurun" ;;
        */"$stage"/"$number"-*) before="$folder" ;;
        *) before= ;;
    esac
    if [ -e "$before" ]; then
        mv "$6/stop" "$6/slow"
        kill -KILL $PPID
        exit 1
    fi
fi
speed=fast
[ -e "$6/slow" ] && speed=slow
echo >> "$6/count-$work"
cp "$6/$work-$speed-$(($(wc -l < "$6/count-$work") % 7)).gpurun" "$3"
"""
SPREAD = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.001)
SPEEDS = {"fast": 1.0, "slow": 3.0}
BEFORE = {"data": 2.0, "forward": 3.0, "backward": 4.0}
AFTER = {"data": 1.8, "forward": 3.1, "backward": 5.0}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A blame of five commits, of which the fourth has made backward longer, and data shorter."""
    (player := tmp_path / "player").mkdir()
    (repository := tmp_path / "repository").mkdir()
    monkeypatch.chdir(repository)
    _git("init", "--quiet")
    for work, phases in zip("abcde", (BEFORE, BEFORE, BEFORE, AFTER, AFTER), strict=True):
        step = sum(phases.values())
        shares = {path: part / step for path, part in phases.items()}
        for speed, times in SPEEDS.items():
            for number, factor in enumerate(SPREAD):
                run = made_run([step * times * factor * MS] * 20, shares)
                save(run, player / f"{work}-{speed}-{number}.gpurun")
        (player / f"count-{work}").touch()
        (repository / "work").write_text(f"{work}\n")
        _git("add", ".")
        _git("commit", "--quiet", "-m", f"Change {work}")
    path = player / "pyinstrument-gpu"
    path.write_text(PLAYER)
    path.chmod(0o755)
    blame = [sys.executable, "-m", "pyinstrument_gpu", "blame", "HEAD~4..HEAD", "--max-runs", "60"]
    return [*blame, "--json", str(tmp_path / "result.json"), "--", str(path), "run", str(player)]


def _git(*arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stop", ["", "ends 01", "search 0012", "confirmation 03"])
def test_the_commit_and_the_phase_are_the_same_after_an_interruption(
    command: list[str], stop: str, tmp_path: Path
) -> None:
    """Also if the machine is another one when it goes on: runs before and after are no pair."""
    if stop:
        (tmp_path / "player" / "stop").write_text(f"{stop}\n")
        assert _run(command).returncode == -signal.SIGKILL
        (state,) = (tmp_path / "repository/.git/pyinstrument-gpu").glob("*/state.json")
        assert json.loads(state.read_text())["runs"]
        assert (tmp_path / "player" / "slow").exists()
    done = _run(command)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "result.json").read_text())
    assert [one["subject"] for one in facts["suspects"]] == ["Change d"]
    assert facts["phase"] == "backward"
    assert "(Change d): backward +2" in done.stdout
