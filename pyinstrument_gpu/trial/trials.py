# SPDX-License-Identifier: Apache-2.0
"""Runs a command for a trial, and once with a recording, each time as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError, RunFileError, TrialError
from pyinstrument_gpu.gate.sides import (
    CommandSide,
    RecordedCommand,
    kill_group,
    last_lines,
    recorded_runs,
)
from pyinstrument_gpu.report.no_steps import no_steps
from pyinstrument_gpu.trial.child import MadeEdit, TrialData, TrialOrder, path_of_rank
from pyinstrument_gpu.trial.edits.table import edits
from pyinstrument_gpu.trial.working_copy import WorkingCopy

_POLL_S = 0.05
_LOOK_S = 1.0
_PATIENCE_S = 1.0
_FEWEST_RECORDED = 3
_SAME_START = {
    "PYTHONHASHSEED": "0",
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
}
"""What draws must not depend on, and what trackers of experiments must not send."""


@dataclass(frozen=True)
class TrialResult:
    """A trial that was made.

    Attributes:
        step_ns: the time per step, of the slowest rank.
        duration_s: of the whole trial.
        waiting_share: of the time, in which the loop waited for a processor.
        data: what else was found, of the first rank.
    """

    step_ns: float
    duration_s: float
    waiting_share: float
    data: TrialData


@dataclass(frozen=True)
class TrialPlan:
    """How long each trial is: after so many steps it ends, of which the first are left out."""

    warmup: int
    steps: int
    limit_s: float


class Runner(Protocol):
    """Makes trials. `TrialRunner` runs them; tests have one of their own."""

    def trial(self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False) -> TrialResult:
        """Run the program with these edits.

        Raises:
            TrialError: it failed, or did not make as many steps in time.
        """


class TrialRunner:
    """Runs a command in copies of the working directory.

    Args:
        words: the command, as `RecordedCommand` takes it. What lies below the working directory is
            that of the copy, also by its full path, and all else is found from there.
        folder: for what trials write.
        copy: None to run it where it is.

    Raises:
        TrialError: it can't be seen which program is to be run.
    """

    def __init__(self, words: Sequence[str], folder: Path, copy: WorkingCopy | None) -> None:
        try:
            self._side = CommandSide([*words] if copy is None else _of_a_copy(words))
        except GateError as error:
            raise TrialError(str(error)) from error
        self._folder = folder
        self._copy = copy
        self._number = 0

    @property
    def command(self) -> RecordedCommand:
        return self._side.command

    @property
    def program(self) -> Path | None:
        """The user's file that is run, if it is one."""
        name = self.command.program
        return None if name is None or not os.path.isfile(name) else Path(name).absolute()

    def trial(self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False) -> TrialResult:
        self._number += 1
        place = Path.cwd() if self._copy is None else self._copy.renew()
        name = self._folder / f"{self._number:03}"
        order = TrialOrder(
            result=str(name),
            warmup=plan.warmup,
            steps=plan.steps,
            edits=tuple(made),
            is_dry=is_dry,
            folder=os.path.realpath(place) if is_dry else "",
        )
        path = Path(f"{name}.json")
        with atomic_write(path, follow_links=False) as file:
            file.write(msgspec.json.encode(order))
        variables: dict[str, str] = {}
        for one in () if is_dry else made:
            variables |= edits()[one.name].environment(one.value)
        began_s = time.monotonic()
        code = self._run(["--trial", str(path)], place, variables, plan.limit_s)
        duration_s = time.monotonic() - began_s
        ranks: list[TrialData] = []
        while (found := path_of_rank(str(name), len(ranks))).exists():
            ranks.append(msgspec.json.decode(found.read_bytes(), type=TrialData))
        if not ranks or len(ranks) != ranks[0].world_size:
            how = "before its warm-up was over" if not code else f"with exit code {code}"
            raise TrialError(f"it ended {how}{last_lines(self._log)}")

        # A job takes as long as the rank that takes longest.
        def step_ns(one: TrialData) -> float:
            return one.elapsed_ns / (one.steps - one.warmup)

        slowest = max(ranks, key=step_ns)
        waiting_share = slowest.waiting_ns / max(slowest.elapsed_ns, 1)
        return TrialResult(step_ns(slowest), duration_s, waiting_share, ranks[0])

    def recorded(self, seconds: float, limit_s: float) -> Run:
        """Record the program until steps have taken this long, and end it.

        Raises:
            TrialError: it failed, had no step, or is not the program of the working directory.
        """
        place = Path.cwd() if self._copy is None else self._copy.renew()
        until_s = time.monotonic() + limit_s
        path = self._folder / "recorded.gpurun"
        options = ["-o", str(path), "--overwrite", "--no-report"]
        with self._side.started(options, self._log, place, self._variables) as process:
            while process.poll() is None and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
                if self._recorded_s() >= seconds:
                    break
            code = process.poll()
            if code is None:
                process.send_signal(signal.SIGKILL)
            _end(process)
        if code:
            hint = "" if self._copy is None else ", in a copy of its folder (--in-place makes none)"
            last = last_lines(self._log)
            raise TrialError(f"the program ended with exit code {code}{hint}{last}")
        runs = recorded_runs("recorded", self._folder)
        if not runs:
            raise TrialError(f"the program was not recorded{last_lines(self._log)}")
        if len(runs[0].steps.closed) < _FEWEST_RECORDED:
            raise TrialError(
                f"too few steps were found to be measured: {no_steps(runs[0])}. Steps that can't "
                f"be found are named by gpu_steps or gpu_step{last_lines(self._log)}"
            )
        program = runs[0].environment.get("program_folder")
        if program is not None and not Path(program).resolve().is_relative_to(place.resolve()):
            raise TrialError(
                f"the program is that of {program}, not of the working directory: run `try` there, "
                "or give --in-place"
            )
        return runs[0]

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._number:03}.log"

    @property
    def _variables(self) -> dict[str, str]:
        return {
            **_SAME_START,
            "WANDB_DIR": str(self._folder),
            "MLFLOW_TRACKING_URI": f"file:{self._folder / 'mlruns'}",
        }

    def _recorded_s(self) -> float:
        """For how long the program that is being recorded has made steps."""
        try:
            closed = recorded_runs("recorded", self._folder)[0].steps.closed
        except (OSError, RunFileError, IndexError):
            return 0.0
        if len(closed) < _FEWEST_RECORDED:
            return 0.0
        return float(closed["end_ns"][-1] - closed["begin_ns"][0]) / 1e9

    def _run(
        self, options: Sequence[str], place: Path, variables: Mapping[str, str], limit_s: float
    ) -> int:
        """Run the command to its end; return its exit code."""
        until_s = time.monotonic() + limit_s
        variables = {**self._variables, **variables}
        with self._side.started(options, self._log, place, variables) as process:
            while process.poll() is None and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            code = process.poll()
            _end(process)
        if code is None:
            raise TrialError(f"it took longer than {limit_s:.0f} s")
        return code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a group, after the processes that clean up behind others have done so."""
    until_s = time.monotonic() + _PATIENCE_S
    while process.poll() is not None and time.monotonic() < until_s:
        try:
            os.killpg(process.pid, 0)
        except OSError:
            return
        time.sleep(_POLL_S)
    kill_group(process)


def _of_a_copy(words: Sequence[str]) -> list[str]:
    """The words of a command that runs in a copy: what lies below the working directory is named
    from there, and interpreters and what lies elsewhere by their full paths."""
    here = os.getcwd()
    found = []
    for word in words:
        is_tool = os.sep in word and os.access(word, os.X_OK) and os.path.isfile(word)
        is_above = word.split(os.sep)[0] == os.pardir and os.path.exists(word)
        if is_above or (is_tool and not word.endswith(".py")):
            word = os.path.abspath(word)
        elif word.startswith(here + os.sep):
            word = os.path.relpath(word, here)
        found.append(word)
    return found
