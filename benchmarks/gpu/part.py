# SPDX-License-Identifier: Apache-2.0
"""One part of the GPU run: a command with a time limit, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType

from benchmarks.gpu.figure import Figure, read_figures

GRACE_S = 2.0
"""What a part that takes too long has besides: half of it to say where it is, half to end. One that
hangs in the driver may not end at all."""
NOT_REACHED = "not reached"
_LEAST_S = 5.0
_ENDS_A_RUN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""With these a part that is stopped has printed all that it had to say, and where it was."""


@dataclass(frozen=True)
class Part:
    """Something to run in a process of its own.

    Attributes:
        name: its heading in the table.
        command: program and arguments.
        limit_s: when to stop it, if the parts after it need the time.
        environment: variables to set besides.
        fills_s: it takes as long as it is told by `--seconds`: at most so long. 0: it is not told.
        group: the parts that run together; "" is part of every group.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    fills_s: float = 0
    group: str = "costs"


@dataclass(frozen=True)
class Outcome:
    """What came of a part.

    Attributes:
        seconds: how long it ran.
        error: what went wrong, or None. Figures that it printed before are kept.
        figures: what it measured.
        output: all that it printed.
    """

    part: Part
    seconds: float
    error: str | None
    figures: list[Figure]
    output: str

    @property
    def was_reached(self) -> bool:
        return self.error is None or not self.error.startswith(NOT_REACHED)

    @property
    def state(self) -> str:
        """In a word: whether it passed, and if not, why."""
        missed = sum(figure.verdict.startswith("not met") for figure in self.figures)
        if self.error is None:
            return f"{missed} goals missed" if missed else "passed"
        return self.error + (f", {missed} goals missed" if missed else "")

    @property
    def last_line(self) -> str:
        """Of what it printed for a person."""
        lines = [line for line in self.output.splitlines() if line and not line.startswith("{")]
        return lines[-1] if lines else ""


class Stop:
    """What a signal that ends a run does: it ends the part under way, and no more. What there is of
    results can still be written.

    Attributes:
        reason: the name of the signal; empty as long as there was none.
        process: the part under way.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def at_signals(self) -> Iterator[Stop]:
        """Takes the signals in the block."""
        handlers = {number: signal.signal(number, self._end) for number in _ENDS_A_RUN}
        try:
            yield self
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        if self.process is not None:
            _kill_group(self.process)


def run_part(part: Part, directory: Path, limit_s: float, log: Path, stop: Stop) -> Outcome:
    """Runs a part in `directory`. It and all that it has started are ended after `limit_s`, and
    when a signal asks for that. What it prints goes to `log` at once."""
    command = list(part.command)
    needed_s = _LEAST_S
    if part.fills_s:
        # What it takes besides, to start and to end.
        besides_s = part.limit_s - part.fills_s
        needed_s += besides_s
        command += ["--seconds", f"{limit_s - besides_s:.0f}"]
    if limit_s < needed_s:
        return Outcome(part, 0, f"{NOT_REACHED}: no time was left", [], "")
    begin_s = monotonic()
    # A file, not a pipe: what a part has printed is there also when it, or this process, is killed.
    with log.open("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **_ENVIRONMENT, **part.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(part, 0, f"could not be started: {error}", [], "")
        stop.process = process
        try:
            # A signal from before it was known.
            code = -signal.SIGKILL if stop.reason else process.wait(limit_s)
            error_text = None if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            error_text = f"stopped after {limit_s:.0f} s"
            # Python then prints where all its threads are.
            process.send_signal(signal.SIGABRT)
            _wait_a_moment(process)
        finally:
            stop.process = None
            # Also after a part that ended by itself: what it left behind would disturb the next.
            _kill_group(process)
            _wait_a_moment(process)
        if stop.reason:
            error_text = f"ended by {stop.reason}"
        output.seek(0)
        text = output.read()
    return Outcome(part, monotonic() - begin_s, error_text, read_figures(text), text)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait_a_moment(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S / 2)
