# SPDX-License-Identifier: Apache-2.0
"""The common part of callbacks of frameworks: finding the framework's package, and recording a
training with automatic phases and steps."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu import auto
from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.errors import MissingDependencyError, RecordingError
from pyinstrument_gpu.native import DISABLED
from pyinstrument_gpu.patching.problems import print_error, warn_of
from pyinstrument_gpu.recording.recording import Recording, active, record

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

_current: TrainingRecording | None = None
"""The one whose recording is active."""


class TrainingRecording:
    """Records each training that a callback reports.

    If a recording is active when a training begins, none is started: that one gets the phases and
    steps. But for the constructor, nothing raises: what goes wrong is a RuntimeWarning.

    It can be copied and pickled; the copy has no recording yet.

    Args:
        owner: what the warnings call the callback.
        path, options: as for `record`. Of further trainings, files are called "train-2.gpurun".
        counts_updates: whether `note_update` will report the framework's steps.
        report: whether the first rank prints the report of each training.

    Raises:
        ValueError, TypeError, ConfigurationError: an argument or a setting is wrong.
    """

    def __init__(
        self,
        owner: str,
        path: str | os.PathLike[str] | None,
        options: dict[str, Any],
        counts_updates: bool = True,
        report: bool = False,
    ) -> None:
        record(path, **options)
        self._settings = owner, path, options, counts_updates, report
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._settings = state["settings"]
        self._forget()

    def _forget(self) -> None:
        self._owner, self._path, self._options, self._counts_updates, self._reports = self._settings
        self.recording: Recording | None = None
        self._is_on = False
        self._training: object = None
        self._phases: AutoPhases | None = None
        self._own: Recording | None = None
        self._framework = self._version = ""
        self._trainings = 0
        self._updates = 0
        self._placed = 0
        self._has_own_steps = False
        self._has_number = False
        self._has_warned = False

    @property
    def run(self) -> Run:
        """The run of the newest recording.

        Raises:
            RecordingError: it has not stopped, or there is none.
        """
        if self.recording is None:
            raise RecordingError(
                f"{self._owner} has no run: it has not recorded a training in this process"
            )
        return self.recording.run

    def begin(
        self, training: object, framework: str, version: str, hook: Callable[[AutoPhases], None]
    ) -> None:
        """Begin to record, as a training begins.

        Args:
            training: an object of this training. One that has begun already, as the framework was
                given the callback twice, goes on.
            framework, version: what the run's environment says of it.
            hook: hooks functions of the framework for the automatic phases.
        """
        if DISABLED:  # an empty run, whose report says why
            self.recording = record(self._path, **self._options)
            with self.recording:
                return
        if self._is_on and training is self._training:
            return
        if self._is_on:  # the end of the one before was not reported
            self.end()
        self._is_on, self._training, self._has_number = True, training, False
        self._framework, self._version = framework, version
        try:
            self._begin(hook)
        except Exception as error:
            self._say(f"nothing is recorded: {error}")
            self._end(failed=True)

    def note_step_number(self, number: int) -> None:
        """Note how many steps were done before this training, by the checkpoint it resumes from."""
        recording = active()
        if self._is_on and not self._has_number and recording is not None:
            self._has_number = True
            recording.note_step_number(number)

    def note_update(self) -> None:
        """Note that the framework has counted a step: an iteration with steps of optimizers."""
        self._updates += 1

    def end(self, failed: bool = False) -> None:
        """End the recording, as the training is over. Calling it again does nothing.

        Args:
            failed: an exception has ended it.
        """
        if not self._is_on:
            return
        try:
            self._end(failed)
        except Exception as error:
            self._say(f"the recording ended with an error: {error!r}")

    def _begin(self, hook: Callable[[AutoPhases], None]) -> None:
        global _current
        self._updates = self._placed = 0
        self._has_own_steps = False
        other = active()
        if other is not None:
            self._warn_of(other)
        phases = auto.installed()
        if phases is None:
            phases = self._phases = AutoPhases(self._count_step, self._note_own_step)
            phases.install()
        hook(phases)
        if other is not None:
            return
        self._trainings += 1
        recording = record(self._path_of_training(), **self._options)
        recording._start()
        self.recording = self._own = recording
        _current = self

    def _end(self, failed: bool) -> None:
        global _current
        self._is_on, self._training = False, None
        phases, self._phases = self._phases, None
        recording, self._own = self._own, None
        if _current is self:
            _current = None
        placed = self._placed  # the last one may end only now
        if phases is not None:
            phases.remove()
            if recording is not None:
                recording.facts.update(phases.facts())
        if recording is not None:
            if self._counts_updates:
                recording.facts["framework_steps"] = self._updates
            recording.facts["framework"] = f"{self._framework} {self._version}"
            recording._finish_if_mine()
        if phases is not None:
            warn_of(*phases.problems())
        if recording is not None and self._reports and not launcher_number("RANK"):
            self._print_report(recording)
        is_told = recording is not None and phases is not None and self._counts_updates
        if not is_told or failed or self._has_own_steps:
            return
        if placed not in (self._updates, self._updates - 1):
            self._say(
                f"{self._framework} counted {self._updates} steps in which optimizers stepped, "
                f"and {self._placed} steps were recorded"
            )

    def _print_report(self, recording: Recording) -> None:
        """Print the report to standard error, if there is something to report."""
        file = None if recording.path is None else str(recording.path)
        try:
            run = recording.run
            if run.phases:
                print_error(f"\n{run.report(file=file)}")
        except Exception as error:
            self._say(f"no report: {error!r}")

    def _path_of_training(self) -> Path | None:
        if self._path is None:
            return None
        path = Path(self._path)
        if self._trainings == 1:
            return path
        return path.with_name(f"{path.stem}-{self._trainings}{path.suffix}")

    def _warn_of(self, other: Recording) -> None:
        """Say that no recording is started, unless the program's own is active."""
        if self._has_warned:
            return
        if other._give_way is not None:
            what = "`pyinstrument-gpu run` or PYINSTRUMENT_GPU_RECORD"
        elif _current is not None and _current._own is other:
            what = _current._owner
        else:
            return
        self._has_warned = True
        self._say(f"{what} records this program already, so this callback starts no recording")

    def _count_step(self) -> None:
        self._placed += 1

    def _note_own_step(self) -> None:
        self._has_own_steps = True

    def _say(self, sentence: str) -> None:
        warn_of(f"{self._owner}: {sentence}")


class RecordsTraining:
    """Methods by which a callback gives access to its recordings."""

    _training: TrainingRecording

    @property
    def recording(self) -> Recording | None:
        """The newest recording that was started here."""
        return self._training.recording

    @property
    def run(self) -> Run:
        """The run of the newest training. It is available when that is over."""
        return self._training.run


def import_framework(module: str, package: str, oldest: tuple[int, int]) -> Any:
    """Import a module of a framework.

    Args:
        module: its name, such as "lightning.pytorch".
        package: what is installed, such as "lightning".
        oldest: the first version that is supported.

    Raises:
        MissingDependencyError: it is not installed, or older. The message has the command.
    """
    needed = f"{package}>={oldest[0]}.{oldest[1]}"
    command = f"pip install -U '{needed}'"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and something else is missing
        raise MissingDependencyError(f"{package} is not installed: {command}") from error
    version = version_of(found)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    # One that can't be read is a build of the framework's developers.
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest:
        raise MissingDependencyError(
            f"{package} {version} is older than the first version that is supported, "
            f"{oldest[0]}.{oldest[1]}: {command}"
        )
    return found


def version_of(module: Any) -> str:
    """Return the version of the package that a module belongs to; empty where it has none."""
    package = sys.modules.get(str(module.__name__).partition(".")[0], module)
    return str(getattr(package, "__version__", getattr(module, "__version__", "")))
