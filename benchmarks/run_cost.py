# SPDX-License-Identifier: Apache-2.0
"""What `pyinstrument-gpu run` costs a real training loop on the CPU, beside TraceML.

    python -m benchmarks.run_cost --results benchmarks/results/run.json

Three ways, from sharp to real:

* In one process, epochs with and without what `run` does (a recording, automatic phases, the sync
  watch) take turns, and a second kind without gives the floor.
* The calls that come on top, counted, times what one costs, measured in a loop.
* Whole processes: the program by `python`, by `python` again, by `pyinstrument-gpu run` and by
  `traceml run`, in turn. The program times its own steps, so that start and report are no part.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any

import numpy as np
from torch import nn

import pyinstrument_gpu as pig
from benchmarks.digits_loop import Training
from benchmarks.gpu.figure import Figure, print_and_write
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.machine import versions
from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.auto.timed_calls import timed
from pyinstrument_gpu.native import native
from pyinstrument_gpu.syncs import watch

PROGRAM = Path(__file__).with_name("digits_loop.py")
_OURS = os.path.dirname(pig.__file__) + os.sep
_CALLS = 20_000


def in_process(seconds: float) -> Iterator[Figure]:
    """The difference of epochs, and that of the floor."""
    training = Training()
    # Else nothing is watched on a build of torch without an accelerator.
    watch.can_wait = lambda: True

    def epoch() -> float:
        # The first after a patch came or went is slower: the interpreter has specialized its code
        # for what stood there before. In a real run none comes or goes.
        training.epoch()
        begin_ns = perf_counter_ns()
        training.epoch()
        return (perf_counter_ns() - begin_ns) / training.batches

    def recorded_epoch() -> float:
        with pig.record(), pig.auto_phases(), pig.watch_syncs():
            return epoch()

    results = interleaved(
        {"off": epoch, "off again": epoch, "on": recorded_epoch},
        rounds=10_000,
        seconds=seconds,
        warm_up=3,
    )
    step_ns = float(np.median(results["off"]))
    yield Figure("a step without", step_ns / 1e3, "us", note=f"{len(results['off'])} rounds")
    yield from _differences(results, {"off again": "without, twice", "on": "with less without"})
    yield from _counted(training, step_ns)


def _differences(results: Any, names: dict[str, str]) -> Iterator[Figure]:
    for arm, name in names.items():
        share = relative_difference(results["off"], results[arm])
        values = (100 * share.value, "% of a step", 100 * share.low, 100 * share.high)
        yield Figure(name, *values)


def _counted(training: Training, step_ns: float) -> Iterator[Figure]:
    """The calls that come on top, and what they cost by themselves."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            caller = frame.f_back
            calls += caller is None or not caller.f_code.co_filename.startswith(_OURS)

    phases = AutoPhases()
    submodule = nn.Identity()
    without_ns = _per_call(lambda: submodule(0))
    with pig.record() as recording:
        phases.install()
        assert phases.session is not None
        phase_ns, pass_ns = _costs(phases.session)
        native.set_in_activity(True)
        submodule_ns = _per_call(lambda: submodule(0)) - without_ns
        native.set_in_activity(False)
        before = recording.snapshot().phases_recorded
        with pig.watch_syncs():
            sys.setprofile(count)
            training.epoch()
            sys.setprofile(None)
        spans = recording.snapshot().phases_recorded - before
        phases.remove()
    phases_per_step = spans / training.batches
    passes_per_step = max(0, calls - spans) / training.batches
    cost_ns = phases_per_step * phase_ns + passes_per_step * pass_ns
    yield Figure("phases per step", phases_per_step, "")
    yield Figure("further calls of ours per step", passes_per_step, "")
    yield Figure("a phase costs", phase_ns, "ns")
    yield Figure("a call that passes by costs", pass_ns, "ns")
    yield Figure("a call of a submodule costs", submodule_ns, "ns", note=f"on {without_ns:.0f} ns")
    yield Figure("calls times cost", 100 * cost_ns / step_ns, "% of a step")


def _costs(session: Session) -> tuple[float, float]:
    """Of the wrapper that most functions have, less the function in it: what it costs where it is
    a phase, and where it passes by, inside of another one."""
    wrapped = timed(session, "cost", _nothing)
    alone_ns = _per_call(_nothing)
    phase_ns = _per_call(wrapped) - alone_ns
    native.set_in_activity(True)
    pass_ns = _per_call(wrapped) - alone_ns
    native.set_in_activity(False)
    return phase_ns, pass_ns


def _nothing() -> None:
    pass


def _per_call(function: Callable[[], object]) -> float:
    best_ns = float("inf")
    for _ in range(7):
        begin_ns = perf_counter_ns()
        for _ in range(_CALLS):
            function()
        best_ns = min(best_ns, (perf_counter_ns() - begin_ns) / _CALLS)
    return best_ns


def processes(rounds: int, epochs: int) -> Iterator[Figure]:
    """The differences between whole programs."""
    with tempfile.TemporaryDirectory() as folder:
        program = [str(PROGRAM), "--epochs", str(epochs)]
        run = [*("-m", "pyinstrument_gpu", "run", "-o", f"{folder}/run.gpurun", "--overwrite")]
        commands = {
            "off": [sys.executable, *program],
            "off again": [sys.executable, *program],
            "run": [sys.executable, *run, *program],
        }
        names = {"off again": "python, twice", "run": "pyinstrument-gpu run less python"}
        traceml = _traceml(folder, program)
        note = f"{rounds} rounds"
        if traceml is None:
            note += "; TraceML is not installed"
        else:
            commands["traceml"] = traceml
            release = versions(["traceml-ai"])["traceml-ai"]
            names["traceml"] = f"traceml run less python (traceml-ai {release})"
        results = interleaved(
            {name: _process(command, folder) for name, command in commands.items()}, rounds=rounds
        )
        step_us = float(np.median(results["off"]))
        yield Figure("a step of a process without", step_us, "us", note=note)
        yield from _differences(results, names)


def _traceml(folder: str, program: list[str]) -> list[str] | None:
    """The command, in its mode without a live display; None where it is not installed."""
    if importlib.util.find_spec("traceml") is None:
        return None
    script, *arguments = program
    options = ["--mode", "summary", "--logs-dir", f"{folder}/traceml"]
    command = str(Path(sys.executable).with_name("traceml"))
    return [command, "run", script, *options, "--args", *arguments]


def _process(command: list[str], folder: str) -> Callable[[], float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1])])}

    def measure() -> float:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return next(float(line) for line in done.stdout.splitlines() if _is_number(line))

    return measure


def _is_number(line: str) -> bool:
    return line.strip().replace(".", "", 1).isdigit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the first part")
    parser.add_argument("--rounds", type=int, default=15, help="of the processes")
    parser.add_argument("--epochs", type=int, default=20, help="of each process")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    parts = in_process(options.seconds), processes(options.rounds, options.epochs)
    print_and_write(chain.from_iterable(parts), options.results)


if __name__ == "__main__":
    main()
