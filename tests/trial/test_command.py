# SPDX-License-Identifier: Apache-2.0
"""Trials of a program with a known cause, in processes of their own, and the command `try`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.trial.child import MadeEdit, Met
from pyinstrument_gpu.trial.results import Same, alike
from pyinstrument_gpu.trial.trials import TrialPlan, TrialRunner
from pyinstrument_gpu.trial.tries import facts_of
from pyinstrument_gpu.trial.working_copy import WorkingCopy
from tests.helpers.launched import ENVIRONMENT

pytest.importorskip("torch")
pytest.importorskip("scipy")
PLAN = TrialPlan(warmup=3, steps=12, limit_s=200)

PROGRAM = """
import os
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((4,), index / 480)


def main():
    if os.path.exists("checkpoint.pt"):
        raise SystemExit("an earlier trial has left its checkpoint")
    loader = DataLoader(Remote(), batch_size=4, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    Path(os.environ["NOTES"]).write_text("where trackers write")
    try:
        for step, rows in enumerate(loader):
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.save(model.state_dict(), "checkpoint.pt")
    finally:
        open(os.environ["ENDED"], "a").write("the program was told of its end")


if __name__ == "__main__":
    main()
"""

LINE = 1 + PROGRAM.splitlines().index(
    "    loader = DataLoader(Remote(), batch_size=4, shuffle=True)"
)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder, in which anything may be written. Its path is short: sockets between
    loader workers lie in it, whose paths have 107 characters at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


@pytest.fixture
def program(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the program, which is the working directory."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(folder)
    for name, value in (
        ("PYTHONPATH", ENVIRONMENT["PYTHONPATH"]),
        ("ENDED", str(tmp_path / "ended")),
        ("TMPDIR", str(temporary)),
        ("NOTES", str(tmp_path / "notes")),
    ):
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def runner(program: Path, temporary: Path) -> TrialRunner:
    folder = temporary / "trials"
    folder.mkdir()
    return TrialRunner(["train.py"], folder, WorkingCopy(program, folder))


def test_a_dry_trial_says_where_edits_would_be_made(runner: TrialRunner, tmp_path: Path) -> None:
    made = [MadeEdit("workers", 2), MadeEdit("optimizer", "foreach"), MadeEdit("channels_last")]
    measured = runner.trial(made, PLAN, is_dry=True)
    found = measured.data
    assert measured.step_ns > 0.035e9  # a batch waits for 40 ms
    assert [(place.line, place.call) for place in found.met[0].places] == [(LINE, "DataLoader")]
    assert [place.call for place in found.met[1].places] == ["SGD"]
    assert found.met[2] == Met(False)
    assert found.written == (str(tmp_path / "notes"),)


def test_a_trial_makes_its_edit_and_leaves_all_else(
    runner: TrialRunner, program: Path, tmp_path: Path
) -> None:
    before = digests(program)
    base = runner.trial([], PLAN)
    edited = runner.trial([MadeEdit("workers", 4)], PLAN)
    assert base.data.steps == edited.data.steps == PLAN.steps
    assert edited.data.met[0].is_met
    assert len(base.data.results.losses) == PLAN.steps and base.data.results.digest
    assert alike(base.data.results, edited.data.results) is Same.IDENTICAL
    assert digests(program) == before
    assert not (tmp_path / "ended").exists()


def test_a_program_that_fails_behind_its_warmup_has_no_result(
    runner: TrialRunner, program: Path
) -> None:
    text = (program / "train.py").read_text()
    text = text.replace("for step, rows in enumerate(loader):", "for step, rows in steps(loader):")
    steps = "def steps(loader):\n    for step, rows in enumerate(loader):\n"
    steps += (
        "        if step == 8:\n            raise ValueError('no more')\n        yield step, rows\n"
    )
    (program / "train.py").write_text(text.replace("def main():", f"{steps}\n\ndef main():"))
    with pytest.raises(pig.TrialError, match=r"exit code 1(.|\n)*ValueError: no more"):
        runner.trial([], PLAN)


def test_a_program_is_recorded_and_ended(runner: TrialRunner) -> None:
    run = runner.recorded(seconds=0.5, limit_s=200)
    closed = run.steps.closed
    assert closed["end_ns"][-1] - closed["begin_ns"][0] >= 0.5e9
    assert facts_of(run).share("data") > 0.8


def test_paths_of_a_command_stay_right_in_a_copy(program: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (program / "python").write_text("")
    (program / "python").chmod(0o755)
    words = ["taskset", "./python", str(program / "train.py"), "--data", "../data", "--x", "../y"]
    runner = TrialRunner(words, tmp_path, WorkingCopy(program, tmp_path / "trials"))
    assert runner.program == program / "train.py"
    python = str(program / "python")
    run = ["taskset", python, "-m", "pyinstrument_gpu", "run"]
    assert runner.command.with_options([]) == [
        *(*run, "train.py", "--data", str(tmp_path / "data"), "--x", "../y")
    ]
    with pytest.raises(pig.TrialError, match="can't see which program"):
        TrialRunner(["make", "train"], tmp_path, None)


def test_a_program_that_fails_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no data')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pyinstrument_gpu", "try", "train.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "exit code 1" in done.stderr and "no data" in done.stderr
