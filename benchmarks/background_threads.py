# SPDX-License-Identifier: Apache-2.0
"""What the threads that a tool runs beside training take.

`python -m benchmarks.background_threads [--seconds 60] [--results FILE]`

Each tool runs under each load in a process of its own (beside_training.py), and then once more
under strace, which counts the system calls: one that is traced takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import beside_training
from benchmarks.beside_training import WINDOW_BEGINS, WINDOW_ENDS, free_port
from benchmarks.gpu.figure import Figure, print_and_write

_STARTS_WITHIN_S = 120


@dataclass(frozen=True)
class Load:
    """How the loop goes.

    Attributes:
        goal_percent: what our thread should take at most, in percent of a core.
    """

    name: str
    steps_per_s: int
    goal_percent: float


IDLE = Load("no steps", 0, 0.1)
LOADS = (
    IDLE,
    Load("100 steps of 8 phases per second", 100, 0.1),
    Load("1,000 steps of 8 phases per second", 1000, 0.3),
)


def _python(folder: Path) -> list[str]:
    return [sys.executable, "-W", "ignore", beside_training.__file__]


def _traceml_run(folder: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("traceml"))
    options = ["--logs-dir", str(folder), "--aggregator-port", str(free_port())]
    return [program, "run", *options, beside_training.__file__, "--args"]


@dataclass(frozen=True)
class Tool:
    """What runs threads beside training.

    Attributes:
        name: as in `beside_training.RUN_WITH`.
        package: what must be installed.
        note: what its threads are, and what they do more or less than ours.
        command: what runs the program, whose arguments follow. It may write to a folder.
    """

    name: str
    package: str
    note: str
    command: Callable[[Path], list[str]] = _python
    loads: tuple[Load, ...] = LOADS


OURS = Tool("pyinstrument_gpu", "pyinstrument_gpu", "the harvester, which writes the run file")
TOOLS = (
    OURS,
    Tool(
        "TraceML",
        "traceml_ai",
        "the sampler and the exporter of `traceml run`, every 2 s; more: memory and CPU of the "
        "process; its server is another process, and not counted",
        _traceml_run,
    ),
    Tool(
        "nvidia-resiliency-ext",
        "nvidia_resiliency_ext",
        "the monitor and the watchdog of `inprocess.Wrapper`, every second; less: they record "
        "nothing, so there are no steps; its monitor process is not counted",
        loads=(IDLE,),
    ),
    Tool(
        "floor",
        "_wake_floor",
        "a thread that wakes as often as the harvester, asks for the file's size, writes 800 "
        "bytes, and does nothing else",
        loads=(IDLE,),
    ),
)


def thread_figures(tool: Tool, load: Load, seconds: float) -> Iterator[Figure]:
    """CPU time and system calls of a tool's threads, in windows of so many seconds.

    Raises:
        RuntimeError: the tool can't run here; the text says why.
    """
    if find_spec(tool.package) is None:
        raise RuntimeError(f"{tool.package} is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed = _run(tool, load, seconds, folder / "timed")
        note = f"{seconds:g} s, {len(timed['threads'])} thread(s): {tool.note}"
        not_counted = _why_not_traced()
        yield Figure(
            f"{tool.name}: CPU time",
            100 * timed["cpu_ns"] / timed["wall_ns"],
            "% of a core",
            goal=load.goal_percent if tool is OURS else None,
            note=f"{note}; system calls are not counted: {not_counted}" if not_counted else note,
        )
        if not_counted:
            return
        trace = folder / "trace"
        strace = ["strace", "-f", "-qq", "-o", str(trace)]
        traced = _run(tool, load, seconds, folder / "traced", strace)
        with trace.open(errors="replace") as lines:
            calls = count_calls(lines, set(traced["threads"]))
        calls_per_s = calls / (traced["wall_ns"] / 1e9)
        yield Figure(f"{tool.name}: system calls", calls_per_s, "per second")


def count_calls(lines: Iterable[str], threads: set[int]) -> int:
    """The system calls that threads made within the window, in what `strace -f` wrote."""
    calls, is_inside = 0, False
    for line in lines:
        is_inside = (is_inside or WINDOW_BEGINS in line) and WINDOW_ENDS not in line
        # Neither signals nor, a second time, calls that lines of other threads stand between.
        call = re.match(r"(\d+) +\w+\(", line)
        calls += is_inside and call is not None and int(call[1]) in threads
    return calls


def _why_not_traced() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-o", os.devnull, "true"], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else " ".join(tried.stderr.split())


def _run(
    tool: Tool, load: Load, seconds: float, folder: Path, before: Iterable[str] = ()
) -> dict[str, Any]:
    folder.mkdir()
    results = folder / "results.json"
    arguments = [tool.name, str(load.steps_per_s), str(seconds), str(results)]
    done = subprocess.run(
        [*before, *tool.command(folder / "logs"), *arguments],
        # Absolute: it runs in a folder of its own.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_STARTS_WITHIN_S + 10 * seconds,
    )
    if not results.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(said[-1] if said else f"its process ended with {done.returncode}")
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each window")
    parser.add_argument("--results", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args()

    def figures() -> Iterator[Figure]:
        for load in LOADS:
            for tool in TOOLS:
                if load not in tool.loads:
                    continue
                try:
                    for figure in thread_figures(tool, load, options.seconds):
                        yield replace(figure, name=f"{load.name}, {figure.name}")
                except RuntimeError as error:
                    print(f"Missing: {tool.name}: {error}", file=sys.stderr)

    print_and_write(figures(), options.results)


if __name__ == "__main__":
    main()
