# SPDX-License-Identifier: Apache-2.0
"""What `pyinstrument-gpu run` costs a real training loop on the CPU, beside TraceML.

    python -m benchmarks.run_cost --results benchmarks/results/run.json

Three ways, from sharp to real:

* In one process, epochs with and without what `run` does (a recording, automatic phases, the sync
  watch) take turns, and a second kind without gives the floor.
* Single calls, in a loop that does nothing else and with cold caches.
* Whole processes: the program by `python`, by `python` again, by `pyinstrument-gpu run` and by
  `traceml run`, in turn. The program times its own steps, so that start and report are no part.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import nn

import pyinstrument_gpu as pig
from benchmarks.digits_loop import Training
from benchmarks.gpu.figure import Figure, print_and_write
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.machine import versions
from pyinstrument_gpu.aspects.syncs import watch

PROGRAM = Path(__file__).with_name("digits_loop.py")
_REPEATS = 20_000
_COLD_REPEATS = 100
_MEMORY = np.ones(6_000_000)  # 48 MB


def in_process(seconds: float) -> Iterator[Figure]:
    """The difference of epochs, and that of the floor."""
    training = Training()
    # Else nothing is watched on a build of torch without an accelerator.
    watch.can_wait = lambda: True

    def epoch() -> float:
        # The first after a hook came or went is slower: the interpreter has specialized its code
        # for the functions of before. In a real run none comes or goes.
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


def _differences(results: Any, names: dict[str, str]) -> Iterator[Figure]:
    for arm, name in names.items():
        share = relative_difference(results["off"], results[arm])
        values = (100 * share.value, "% of a step", 100 * share.low, 100 * share.high)
        yield Figure(name, *values)


def calls(rounds: int) -> Iterator[Figure]:
    """What single calls cost more, by a loop that does nothing else, and with cold caches."""
    watch.can_wait = lambda: True
    for name, goal_ns, call in _CALLS:
        states = [(False, "warm"), (True, "cold")]
        if call is _submodule:  # a single one can't be timed apart from the module around it
            states = states[:1]
        for is_cold, state in states:
            time = functools.partial(_cold_ns if is_cold else _warm_ns, call)
            results = interleaved(
                {"off": time, "off again": time, "on": functools.partial(_recorded, time)},
                rounds=rounds,
                warm_up=2,
            )
            without_ns = float(np.median(results["off"]))
            for arm, what in (("off again", "without, twice"), ("on", "with less without")):
                difference = relative_difference(results["off"], results[arm])
                yield Figure(
                    f"{name}, {state}: {what}",
                    difference.value * without_ns,
                    "ns",
                    difference.low * without_ns,
                    difference.high * without_ns,
                    goal_ns if arm == "on" and not is_cold else None,
                    f"on {without_ns:.0f} ns",
                )


def _recorded(time: Callable[[], float]) -> float:
    with pig.record(), pig.auto_phases(), pig.watch_syncs():
        return time()


def _warm_ns(repeat: Callable[[int], object]) -> float:
    best_ns = float("inf")
    for _ in range(7):
        begin_ns = perf_counter_ns()
        repeat(_REPEATS)
        best_ns = min(best_ns, (perf_counter_ns() - begin_ns) / _REPEATS)
    return best_ns


def _cold_ns(repeat: Callable[[int], object]) -> float:
    """The median of calls before each of which more memory was read than the caches hold."""
    times_ns = []
    repeat(1)
    for _ in range(_COLD_REPEATS):
        _MEMORY.sum()
        begin_ns = perf_counter_ns()
        repeat(1)
        times_ns.append(perf_counter_ns() - begin_ns)
    return float(np.median(times_ns))


class _Repeating(nn.Module):
    """Calls a submodule as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, count: int) -> None:
        inner = self.inner
        for _ in range(count):
            inner(0)


_submodule, _root, _tensor = _Repeating(), nn.Identity(), torch.rand(3)
_host_index, _scalar = torch.tensor([0, 2]), torch.tensor(1.0)


def _call_root(count: int) -> None:
    for _ in range(count):
        _root(0)


def _call_item(count: int) -> None:
    for _ in range(count):
        _scalar.item()


def _call_to(count: int) -> None:
    for _ in range(count):
        _tensor.to("cpu")


def _index(count: int) -> None:
    for _ in range(count):
        _tensor[1]


def _index_by_tensor(count: int) -> None:
    for _ in range(count):
        _tensor[_host_index]


_CALLS: tuple[tuple[str, float | None, Callable[[int], object]], ...] = (
    ("a submodule", 10.0, _submodule),
    (".item()", 25.0, _call_item),
    (".to()", 25.0, _call_to),
    ("[1]", 25.0, _index),
    ("[tensor]", 25.0, _index_by_tensor),
    ("a phase: a module called", None, _call_root),
)
"""Calls on the host, and what they may cost more."""


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
    parser.add_argument(
        "--rounds", type=int, default=15, help="of the single calls and of the processes"
    )
    parser.add_argument("--epochs", type=int, default=20, help="of each process")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    parts = (
        in_process(options.seconds),
        calls(options.rounds),
        processes(options.rounds, options.epochs),
    )
    print_and_write(chain.from_iterable(parts), options.results)


if __name__ == "__main__":
    main()
