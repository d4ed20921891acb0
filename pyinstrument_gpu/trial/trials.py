# SPDX-License-Identifier: Apache-2.0
"""Runs a command for a trial, and once with a recording, each time as a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError, RunFileError, TrialError
from pyinstrument_gpu.gate.sides import RecordedCommand, in_group, kill_group, last_lines, new_log
from pyinstrument_gpu.report.no_steps import no_steps
from pyinstrument_gpu.trial.child import MadeEdit, TrialData, TrialOrder, path_of_rank
from pyinstrument_gpu.trial.edits.table import edits
from pyinstrument_gpu.trial.results import Results
from pyinstrument_gpu.trial.working_copy import WorkingCopy

_POLL_S = 0.05
_LOOK_S = 1.0
_PATIENCE_S = 2.0
_FEWEST_STEPS = 20
_SAME_START = {
    "PYTHONHASHSEED": "0",
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
}
"""What trackers of experiments must not send, and what draws must not depend on."""


@dataclass(frozen=True)
class TrialResult:
    """A trial that was made.

    Attributes:
        step_ns: the time per step, or per as many samples as a step of the baseline has.
        duration_s: of the whole trial.
        waiting_share: of the time, in which the loop waited for a processor.
        finding: of the first rank, what else was found.
    """

    step_ns: float
    duration_s: float
    waiting_share: float
    finding: TrialData

    @property
    def results(self) -> Results:
        return self.finding.results


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
        words: the command.
        folder: for what trials write.
        copy: None to run it where it is.

    Raises:
        GateError: it can't be seen which program is to be run.
    """

    def __init__(self, words: Sequence[str], folder: Path, copy: WorkingCopy | None) -> None:
        self.command = RecordedCommand(words)
        self._folder = folder
        self._copy = copy
        self._number = 0

    @property
    def log(self) -> Path:
        return self._folder / f"{self._number:03}.log"

    def trial(self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False) -> TrialResult:
        with self._new_place() as place:
            result = self._folder / f"{self._number:03}"
            order = TrialOrder(
                result=str(result),
                warmup=plan.warmup,
                steps=plan.steps,
                edits=tuple(made),
                is_dry=is_dry,
                folder=os.path.realpath(place) if is_dry else "",
            )
            path = self._folder / f"{self._number:03}.json"
            path.write_bytes(msgspec.json.encode(order))
            variables: dict[str, str] = {}
            if not is_dry:
                for one in made:
                    variables |= edits()[one.name].environment(one.value)
            began_s = time.monotonic()
            self._run(["--trial", str(path)], place, variables, plan.limit_s)
            return self._measured(result, made, time.monotonic() - began_s, is_dry)

    def recorded(self, seconds: float, limit_s: float) -> Run:
        """Record the program until steps have taken this long, and end it.

        Raises:
            TrialError: it failed, or had no step.
        """
        with self._new_place() as place:
            path = self._folder / "recorded.gpurun"
            until_s = time.monotonic() + limit_s
            options = ["-o", str(path), "--overwrite", "--no-report"]
            with self._begun(options, place, {}) as process:
                while process.poll() is None and time.monotonic() < until_s:
                    time.sleep(_LOOK_S)
                    if _steps_s(path) >= seconds:
                        break
                code = process.poll()
                kill_group(process)
            if code:
                raise TrialError(f"the program ended with exit code {code}{last_lines(self.log)}")
            found = sorted(self._folder.glob("recorded*.gpurun"))
            if not found:
                raise TrialError(f"the program was not recorded{last_lines(self.log)}")
            run = Run.load(found[0])
            if len(run.steps.closed) < 2:
                raise TrialError(
                    f"no steps were found to be measured: {no_steps(run)}. Steps that can't be "
                    f"found are named by gpu_steps or gpu_step{last_lines(self.log)}"
                )
            return run

    @contextlib.contextmanager
    def _new_place(self) -> Iterator[Path]:
        self._number += 1
        if self._copy is None:
            yield Path.cwd()
            return
        try:
            yield self._copy.renew()
        finally:
            self._copy.remove()

    @contextlib.contextmanager
    def _begun(
        self, options: Sequence[str], place: Path, variables: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            **_SAME_START,
            "WANDB_DIR": str(self._folder),
            "MLFLOW_TRACKING_URI": f"file:{self._folder / 'mlruns'}",
            **variables,
        }
        words = self.command.with_options(options)
        with (
            new_log(self.log) as output,
            in_group(words, place, environment, output, self.command.text) as process,
        ):
            yield process

    def _run(
        self, options: Sequence[str], place: Path, variables: Mapping[str, str], limit_s: float
    ) -> None:
        until_s = time.monotonic() + limit_s
        with self._begun(options, place, variables) as process:
            while process.poll() is None and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            code = process.poll()
            kill_group(process)
        if code is None:
            raise TrialError(f"it took longer than {limit_s:.0f} s")
        if code:
            raise TrialError(f"it ended with exit code {code}{last_lines(self.log)}")

    def _measured(
        self, result: Path, made: Sequence[MadeEdit], duration_s: float, is_dry: bool
    ) -> TrialResult:
        ranks: list[TrialData] = []
        while (path := path_of_rank(str(result), len(ranks))).exists():
            ranks.append(msgspec.json.decode(path.read_bytes(), type=TrialData))
        if not ranks:
            raise TrialError(f"it ended before its warm-up was over{last_lines(self.log)}")
        # A job takes as long as the rank that takes longest.
        slowest = max(ranks, key=lambda one: one.elapsed_ns)
        step_ns = slowest.elapsed_ns / (slowest.steps - slowest.warmup)
        if not is_dry:
            for one in made:
                step_ns /= edits()[one.name].samples_per_step(one.value)
        waiting = slowest.waiting_ns / max(slowest.elapsed_ns, 1)
        return TrialResult(step_ns, duration_s, waiting, ranks[0])


def _steps_s(path: Path) -> float:
    """For how long a program that is being recorded has made steps; 0 without enough of them."""
    try:
        run = Run.load(sorted(path.parent.glob(f"{path.stem}*.gpurun"))[0])
    except (OSError, RunFileError, IndexError):
        return 0.0
    closed = run.steps.closed
    if len(closed) < _FEWEST_STEPS:
        return 0.0
    return float(closed["end_ns"][-1] - closed["begin_ns"][0]) / 1e9


def checked_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command, of which those that are paths stay right in a copy: what lies
    below the working directory is named from there, and all else by its full path.

    Raises:
        TrialError: it can't be seen which program is to be run.
    """
    here = os.getcwd()
    found = []
    for number, word in enumerate(words):
        is_program = number == 0 and os.sep in word and not word.endswith(".py")
        if os.path.isabs(word) and os.path.exists(word) and word.startswith(here + os.sep):
            word = os.path.relpath(word, here)
        if os.path.exists(word) and (is_program or word.split(os.sep)[0] == os.pardir):
            word = os.path.abspath(word)
        found.append(word)
    try:
        RecordedCommand(found)
    except GateError as error:
        raise TrialError(str(error)) from error
    return found
