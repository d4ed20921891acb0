# SPDX-License-Identifier: Apache-2.0
"""Runs a program and its healthy twin under `pyinstrument-gpu run`, and reads the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyinstrument_gpu as pig
from benchmarks.causes.scoring import headline, is_named, points, unmarked
from benchmarks.causes.table import PROGRAMS, Cause

WRITTEN_S = 1.0
"""About how long programs train at rest as they are written."""
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Outcome:
    """How a report did on a cause.

    Attributes:
        points: -2, 0, 1 or 2.
        is_falsely_named: whether the cause is named in the twin, where it isn't.
        elapsed_s, twin_s: from the end of the first step to that of the run.
    """

    name: str
    points: int
    is_falsely_named: bool
    elapsed_s: float
    twin_s: float
    headline: str
    twin_headline: str
    report: str

    @property
    def gain(self) -> float:
        """The share of the elapsed time that the edit saves."""
        return 1 - self.twin_s / self.elapsed_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"gain": self.gain}


def outcome(cause: Cause, seconds: float) -> Outcome:
    report, elapsed_s = _run(cause, seconds)
    twin, twin_s = _run(cause, seconds, "--fixed")
    truth = cause.truth
    is_false = is_named(truth, headline(twin))
    texts = headline(report), headline(twin), report
    return Outcome(cause.name, points(truth, report), is_false, elapsed_s, twin_s, *texts)


def reports(cause: Cause, seconds: float, times: int) -> list[str]:
    """Return the reports of so many runs of a program."""
    return [_run(cause, seconds)[0] for _ in range(times)]


def _run(cause: Cause, seconds: float, *options: str) -> tuple[str, float]:
    """The report of a run, and the time from the end of its first step to its own. The program has
    a name that says nothing, in a folder of its own."""
    environment = {
        **os.environ,
        "CAUSES_SCALE": str(seconds / WRITTEN_S),
        "COLUMNS": "100",
        "PYTHONPATH": str(Path(pig.__file__).parents[1]),
        **cause.environment,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(unmarked(cause.program))
        shutil.copy(PROGRAMS / "setting.py", folder)
        record = [*cause.before, sys.executable, "-m", "pyinstrument_gpu", "run", *cause.options]
        done = subprocess.run(
            [*record, "-o", "run.gpurun", "train.py", *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"{cause.name} {options}: {done.stderr[-2000:]}")
        run = pig.Run.load(Path(folder, "run.gpurun"))
        ends_ns = run.steps.closed["end_ns"]
        return done.stderr, (run.duration_ns - (int(ends_ns[0]) if len(ends_ns) else 0)) / 1e9


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """That many processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
