# SPDX-License-Identifier: Apache-2.0
"""The two sides that a gate compares: functions of this process, or commands, of which each run is
a process of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import IO, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from pyinstrument_gpu.auto import auto_phases
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.native import OFF
from pyinstrument_gpu.recording.recording import record
from pyinstrument_gpu.recording.secrets import masked_words
from pyinstrument_gpu.recording.steps import gpu_step
from pyinstrument_gpu.report.no_steps import no_steps


class Side(Protocol):
    """Something that trains and can be recorded many times.

    Attributes:
        text: what it is, for people.
    """

    @property
    def text(self) -> str: ...

    def record(self, name: str, folder: Path) -> Run | Sequence[Run]:
        """Train once, and return the run, which is kept in the folder under that name; the runs of
        its ranks, by number, if there are several.

        Raises:
            GateError: it failed, or left no run.
        """


class CallSide:
    """A function that trains; each call of it is a run.

    Args:
        steps: None if the function has the loop, whose steps are its own (`gpu_steps`) or found as
            under `pyinstrument-gpu run`. A number if it is one step, to be called as often for a
            run.
    """

    def __init__(self, function: Callable[[], object], steps: int | None = None) -> None:
        self._function = function
        self._steps = steps

    @property
    def text(self) -> str:
        return getattr(self._function, "__qualname__", None) or repr(self._function)

    def record(self, name: str, folder: Path) -> Run:
        with record(folder / f"{name}.gpurun") as recording, auto_phases():
            if self._steps is None:
                self._function()
            else:
                for _ in range(self._steps):
                    with gpu_step():
                        self._function()
        return recording.run


_TAIL_LINES = 20
_TAIL_BYTES = 8192
_PATIENCE_S = 5.0
_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)


class CommandSide:
    """A command, run under `pyinstrument-gpu run`.

    Of several ranks on this machine, each writes a run, and all of them are one observation.

    Args:
        command: its words, or one string that is split as a shell does. Leading NAME=VALUE words
            set the environment.
        working_directory: None for that of this process.
        show_output: whether the command writes to standard error of this process instead of a file.

    Raises:
        GateError: it can't be seen which program is to be recorded.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        working_directory: Path | None = None,
        show_output: bool = False,
    ) -> None:
        words = _split(command) if isinstance(command, str) else [*command]
        self._environment: dict[str, str] = {}
        while words and _ASSIGNMENT.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            self._environment[name] = value
        self.command = RecordedCommand(words)
        self.working_directory = working_directory
        self._show_output = show_output

    @property
    def text(self) -> str:
        words = masked_words([f"{name}={value}" for name, value in self._environment.items()])
        named = [word.partition("=") for word in words]
        assignments = [f"{name}={shlex.quote(value)}" for name, _, value in named]
        command = " ".join([*assignments, self.command.text])
        place = self.working_directory
        return command if place is None else f"{command} (in {place})"

    def record(self, name: str, folder: Path) -> list[Run]:
        with self.begun(name, folder) as recorded:
            return recorded()

    @contextlib.contextmanager
    def begun(self, name: str, folder: Path) -> Iterator[Callable[[], list[Run]]]:
        """A run that has begun, as a function that waits for its end and returns what `record`
        does. Leaving by an exception ends it."""
        path = os.path.abspath(folder / f"{name}.gpurun")
        # Without a report, which would follow the program's own last words.
        options = ["-o", path, "--overwrite", "--no-report"]
        log = None if self._show_output else folder / f"{name}.log"
        with self.started(options, log, self.working_directory) as process:
            yield lambda: self._recorded(process.wait(), name, folder)

    @contextlib.contextmanager
    def started(
        self,
        options: Sequence[str],
        log: Path | None,
        working_directory: Path | None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The command, under `pyinstrument-gpu run` with these options, as a process to be waited
        for. Leaving by an exception ends it.

        Args:
            log: a file for what it writes; None for standard error of this process.
            variables: of its environment, beside those that stand in front of the command.
        """
        words = self.command.with_options(options)
        environment = {**os.environ, **variables, **self._environment}
        with contextlib.ExitStack() as leave:
            output = None if log is None else leave.enter_context(new_log(log))
            group = in_group(words, working_directory, environment, output, self.text)
            yield leave.enter_context(group)

    def _recorded(self, code: int, name: str, folder: Path) -> list[Run]:
        log = folder / f"{name}.log"
        if code:
            how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
            raise GateError(f"{name} {how}: {self.text}{self._tail(log)}")
        ranks = recorded_runs(name, folder)
        if ranks:
            return [self._checked(run, name, log) for run in ranks]
        why = (
            "PYINSTRUMENT_GPU in the environment turns recording off"
            if {**os.environ, **self._environment}.get("PYINSTRUMENT_GPU", "").lower() in OFF
            else "it wrote no run file; a program that records itself has to leave that out"
        )
        raise GateError(f"{name} was not recorded, {why}: {self.text}{self._tail(log)}")

    def _checked(self, run: Run, name: str, log: Path) -> Run:
        """Check a run; raise GateError without a step, or if the code is not the directory's."""
        if not run.steps.closed["complete"].any():
            raise GateError(
                f"{name} had no step, so there is nothing to compare: {no_steps(run)}. Steps that "
                "can't be found are named by gpu_steps or gpu_step, and a program that records "
                f"itself has to leave that out: {self.text}{self._tail(log)}"
            )
        folder = run.environment.get("program_folder")
        if self.working_directory is not None and folder is not None:
            place = os.path.realpath(self.working_directory)
            if not Path(os.path.realpath(folder)).is_relative_to(place):
                raise GateError(
                    f"the program that ran in {place} is that of {folder}, so it is not the code "
                    "of that directory. Give a command that runs the code there, the interpreter "
                    "of its environment for example, in place of the directory"
                )
        return run

    def _tail(self, log: Path) -> str:
        return "" if self._show_output else last_lines(log)


def recorded_runs(name: str, folder: Path) -> list[Run]:
    """Return the runs that a command has recorded under that name: its own or, under a launcher,
    those of its ranks, each with its number in the name."""
    path = folder / f"{name}.gpurun"
    if path.exists():
        return [Run.load(path)]
    pattern = re.compile(re.escape(name) + r"\.rank(\d+)\.gpurun")
    found = (pattern.fullmatch(file.name) for file in folder.iterdir())
    ranks = sorted(int(one[1]) for one in found if one is not None)
    return [Run.load(path.with_name(f"{name}.rank{rank}.gpurun")) for rank in ranks]


def new_log(path: Path) -> BinaryIO:
    """Open a file for what a command writes, in place of what an interrupted one has left."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def last_lines(log: Path) -> str:
    """The end of what a command wrote, as it follows a message."""
    with log.open("rb") as file:  # which may be far larger than memory
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        data = file.read(_TAIL_BYTES)
    lines = data.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    if not lines:
        return "\nIt has written nothing"
    return "\nThe last lines that it wrote:\n" + "\n".join(f"  {line}" for line in lines)


@contextlib.contextmanager
def in_group(
    words: Sequence[str],
    working_directory: Path | None,
    environment: Mapping[str, str],
    output: IO[bytes] | None,
    text: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs, to be waited for. It is a group of its own, which is ended as a whole
    where an exception, of a signal for example, ends the wait for it.

    Args:
        output: where it writes; None for standard error of this process.
        text: what it is, for an error.

    Raises:
        GateError: it can't be started.
    """
    # A signal to end comes when there is a process to stop, or before there is one.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
    try:
        process = subprocess.Popen(
            words,
            cwd=working_directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if output is None else output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group, which can be stopped as a whole
            preexec_fn=unblock,
        )
    except OSError as error:
        unblock()
        place = error.filename or words[0]
        raise GateError(f"can't run {text}: {place}: {error.strerror}") from error
    try:
        unblock()
        yield process
    except BaseException:
        _stop(process)
        raise


def command_sides(
    baseline: str | os.PathLike[str] | Sequence[str],
    command: str | Sequence[str],
    show_output: bool = False,
) -> tuple[CommandSide, CommandSide]:
    """The baseline and the candidate. The baseline is a directory in which the command runs other
    code, or a command.

    Raises:
        GateError: there is no such directory, or it can't be seen what is to be recorded.
    """
    candidate = CommandSide(command, show_output=show_output)
    if isinstance(baseline, str | os.PathLike):
        if not os.fspath(baseline).strip():  # a variable that is not set, which would pass as "."
            raise GateError("the baseline is empty: give a directory or a command")
        place = Path(baseline)
        if place.is_dir():
            is_here = place.samefile(".")
            return CommandSide(command, None if is_here else place, show_output), candidate
        text = os.fspath(baseline)
        if isinstance(baseline, os.PathLike) or _is_no_command(text):
            raise GateError(f"the baseline: there is no directory {text}")
        baseline = text
    return CommandSide(baseline, show_output=show_output), candidate


def _is_no_command(text: str) -> bool:
    """Return whether a text that is no directory must have been meant as one."""
    is_program = text.endswith((".py", ".pyz")) or shutil.which(text) is not None
    return len(text.split()) == 1 and (os.sep in text or not is_program)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise GateError(f"can't split {command!r} into words: {error}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started in its group."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
                break
    finally:  # what is left of it, also after a second Ctrl-C, or of those that it did not wait for
        kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and what it has started and left in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def editable_packages(folder: Path) -> list[str]:
    """The names of those of this environment whose code lies in the folder, by name."""
    names = []
    for distribution in metadata.distributions():
        place = _editable_place(distribution)
        if place is not None and place.resolve().is_relative_to(folder.resolve()):
            names.append(str(distribution.metadata["Name"]))
    return sorted(set(names))


def _editable_place(distribution: metadata.Distribution) -> Path | None:
    """Return where an editable installation comes from, by PEP 610; None if it is none."""
    text = distribution.read_text("direct_url.json")
    try:
        origin = json.loads(text or "{}")
        if not origin["dir_info"]["editable"]:
            return None
        return Path(unquote(urlsplit(origin["url"]).path))
    except (ValueError, KeyError, TypeError):
        return None


_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*t?")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)


class RecordedCommand:
    """A command line, and where its Python program is in it.

    Any of `train.py ...`, `-m package.train ...`, `python train.py ...`, the last behind other
    programs (`taskset -c 0 python train.py`), and a command that has `pyinstrument-gpu run` or
    `python -m pyinstrument_gpu run` in it already, as launchers of several processes need it.

    Attributes:
        words: the command as it was given.

    Raises:
        GateError: it can't be seen where the program is.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._place(list(words))

    @property
    def text(self) -> str:
        return shlex.join(masked_words(self.words))

    @property
    def program(self) -> str | None:
        """The script; None for a module, or what is no script."""
        found = next((word for word in self._after if not word.startswith("-")), "")
        return found if self._after[:1] != ["-m"] and found.endswith(".py") else None

    def with_options(self, options: Sequence[str]) -> list[str]:
        """The command under `pyinstrument-gpu run` with these options."""
        return [*self._before, *options, *self._after]

    def _place(self, words: list[str]) -> None:
        if not words:
            raise GateError("the command is empty: give the program that trains")
        if (end := _end_of_own_run(words)) is not None:
            self._before, self._after = words[:end], words[end:]
            return
        run = ["-m", "pyinstrument_gpu", "run"]
        if words[0] == "-m" or words[0].endswith((".py", ".pyz")):
            self._before, self._after = [sys.executable, *run], words
        else:
            begin = self._begin_of_program(words)
            self._before, self._after = [*words[:begin], *run], words[begin:]
        if self._after[0] == "-m" and self._after[1:2] and self._after[1] in _LAUNCHER_MODULES:
            raise self._error_of_launcher()

    def _begin_of_program(self, words: list[str]) -> int:
        """The index of a script or of `-m`, behind the options of the interpreter."""
        names = [os.path.basename(word) for word in words]
        if names[0] in _LAUNCHERS:
            raise self._error_of_launcher()
        found = [i for i, name in enumerate(names) if _INTERPRETER.fullmatch(name)]
        if not found:
            raise GateError(
                f"can't see which program of {self.text!r} is to be recorded: write "
                "`pyinstrument-gpu run` in front of it, or give `python PROGRAM`"
            )
        index = found[0] + 1
        while index < len(words) and words[index].startswith("-") and len(words[index]) > 1:
            word = words[index]
            if word.startswith("--"):
                index += 1 if "=" in word else 2
                continue
            flags = re.match(r"-([^WXcm]*)([WXcm]?)(.*)", word, re.S)
            assert flags is not None
            plain, with_value, value = flags.groups()
            if with_value == "c":
                raise GateError(f"can't record the code in {self.text!r}: put it into a file")
            if with_value == "m":
                words[index : index + 1] = [
                    *([f"-{plain}"] if plain else []),
                    *(["-m", value] if value else ["-m"]),
                ]
                return index + bool(plain)
            index += 1 if value or not with_value else 2
        if index >= len(words) or words[index] == "-":
            raise GateError(f"there is no program in {self.text!r}: give `python PROGRAM`")
        return index

    def _error_of_launcher(self) -> GateError:
        return GateError(
            f"can't see where the program begins in {self.text!r}: write `-m pyinstrument_gpu run` "
            "in front of it, as in `torchrun --nproc-per-node=2 -m pyinstrument_gpu run train.py`"
        )


def _end_of_own_run(words: Sequence[str]) -> int | None:
    for i, word in enumerate(words):
        if tuple(words[i : i + 3]) == ("-m", "pyinstrument_gpu", "run"):
            return i + 3
        if os.path.basename(word) == "pyinstrument-gpu" and words[i + 1 : i + 2] == ["run"]:
            return i + 2
    return None
