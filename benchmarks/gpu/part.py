# SPDX-License-Identifier: Apache-2.0
"""One part of the GPU run: a command with a time limit, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from benchmarks.gpu.figure import Figure, read_figures

_LEAST_S = 5.0
_TRACEBACK_S = 2.0
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""With these a part that is stopped has printed all that it had to say, and where it was."""


@dataclass(frozen=True)
class Part:
    """Something to run in a process of its own.

    Attributes:
        name: its heading in the table.
        command: program and arguments.
        limit_s: when to stop it.
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
    def last_line(self) -> str:
        """Of what it printed for a person."""
        lines = [line for line in self.output.splitlines() if line and not line.startswith("{")]
        return lines[-1] if lines else ""


def run_part(part: Part, directory: Path, remaining_s: float) -> Outcome:
    """Runs a part in `directory`, for no longer than its own limit and what remains of the whole.
    It and all that it has started are ended then."""
    limit_s = min(part.limit_s, remaining_s)
    command = list(part.command)
    needed_s = _LEAST_S
    if part.fills_s:
        # What it takes besides, to start and to end.
        besides_s = part.limit_s - part.fills_s
        needed_s += besides_s
        command += ["--seconds", f"{limit_s - besides_s:.0f}"]
    if limit_s < needed_s:
        return Outcome(part, 0, "not run: no time was left", [], "")
    begin_s = monotonic()
    # A file, not a pipe: what a part has printed is there also when it is killed.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
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
        try:
            code = process.wait(limit_s)
            error_text = None if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            error_text = f"stopped after {limit_s:.0f} s"
            # Python then prints where all its threads are.
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TRACEBACK_S)
        finally:
            _end_group(process)
        output.seek(0)
        text = output.read()
    return Outcome(part, monotonic() - begin_s, error_text, read_figures(text), text)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # Also after a part that ended by itself: what it left behind would disturb the next.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
