# SPDX-License-Identifier: Apache-2.0
"""All that needs a GPU, in one command: build, tests, probes, benchmarks.

It needs nothing from a package registry, and no virtual environment: what is installed for the
Python that runs it must do, and what is missing is named. Each part runs in a process of its own,
and one that fails or takes too long does not keep the others from running. What was found is
written after each part, as JSON and as a table beside it, and what a part prints at once, to a log
of its own. A signal that ends the run, such as SIGTERM, ends the part under way; the table then
says what was not reached.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.gpu.build import ROOT, TEST_LIBRARIES
from benchmarks.gpu.figure import markdown_table
from benchmarks.gpu.part import GRACE_S, NOT_REACHED, Outcome, Part, Stop, run_part
from benchmarks.gpu.peers import PEERS

TOTAL_S = 530.0
"""Of the nine minutes that a group may take. Those of the first minutes have limits that fit."""
LONGEST = 1.5
"""As a multiple of its limit: what a part may take if earlier ones have left so much."""
OUTPUT = "{output}"
"""In a part's command: the folder of the results."""


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments)


def _pytest(*arguments: str) -> tuple[str, ...]:
    # Warnings of PyTorch's are not what these tests are about.
    options = ("-v", "--durations=10", "-p", "no:cacheprovider", "-W", "default")
    return (sys.executable, "-m", "pytest", *arguments, *options)


_REQUIRED = {"REQUIRE_GPU": "1"}
# A process group of one rank needs no network.
FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "64", "TORCH_NCCL_TRACE_BUFFER_SIZE": "64"}
FLIGHT_RECORDER |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
HAZARDS = "tests/gpu/test_hazards.py"

# The parts, in their order. A further benchmark is a module here that prints its figures
# (figure.py), and a line.
PARTS = (
    Part("Build", _module("build"), 60, group=""),
    Part("Machine", _module("about"), 15, group=""),
    # The first minutes on a GPU: what may harm a program, then what is true, then what it costs.
    Part("Programs with and without a recording", _module("captures"), 32, group="first"),
    # Before other tests, and apart from them: what these look for may hang a process.
    Part("Tests of hazards", _pytest(HAZARDS), 38, _REQUIRED, group="first"),
    Part("Tests", _pytest("tests/gpu", "--ignore", HAZARDS), 105, _REQUIRED, group="first"),
    Part("Phases inside a CUDA graph", _module("graph_cost"), 25, group="first"),
    Part("A step of more launches than the queue holds", _module("full_queue"), 15, group="first"),
    Part("What sharing boundaries rests on", _module("enqueue_cost"), 15, group="first"),
    # Every device time rests on these.
    Part("Limits of events", _module("event_limits"), 15, group="first"),
    Part("A stream of a green context", _module("green_context"), 12, group="first"),
    Part(
        "Captures while the flight recorder is read",
        _module("captures", "--while-read"),
        20,
        FLIGHT_RECORDER,
        group="first",
    ),
    Part("Savings, predicted and got", _module("savings_got"), 38, group="first"),
    Part(
        "Modules, values that are not finite, FLOPs",
        _module("module_cost", "--seconds", "12"),
        38,
        group="first",
    ),
    Part("What updates of the metrics cost", _module("metric_cost"), 48, group="first"),
    Part("A run and its page", _module("recorded_program", OUTPUT), 22, group="first"),
    Part("Limits of CUDA", _module("limits"), 90),
    Part("What a boundary costs the device", _module("boundary_cost"), 60),
    Part("What a phase costs the host", _module("phase_cost"), 80),
    Part("Eight phases in a step of 50 ms", _module("step_cost"), 80),
    Part("Phases inside compiled code", _module("compiled_cost"), 130, group="programs"),
    Part("Beside torch.profiler", _module("beside_profiler"), 120, group="programs"),
    Part("Identical runs, compared", _module("same_runs"), 170, group="programs"),
    # Last of its group: it takes what time is left.
    Part("Training, with and without", _module("training"), 205, fills_s=180, group="programs"),
)
GROUPS = ("first", "costs", "programs")


def parts_of(group: str, only: str = "") -> list[Part]:
    """The parts of a group with this in their names, and those that each group begins with."""
    return [part for part in PARTS if not part.group or (part.group == group and only in part.name)]


def missing() -> list[str]:
    """What has to be installed and is not."""
    modules = ("torch", "numpy", "msgspec", "rich", "click", "jinja2", "pytest", "hypothesis")
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    try:
        if int(version("pybind11").split(".")[0]) < 3:
            absent.append(f"pybind11 3 or newer (there is {version('pybind11')})")
    except PackageNotFoundError:
        absent.append("pybind11")
    absent += [name for name in ("cmake", "ninja") if shutil.which(name) is None]
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        absent.append("a C++ compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        absent.append("Python.h (Debian: python3-dev)")
    try:
        headers = [file for file in files("nvidia-nvtx") or [] if file.match("nvtx3/nvToolsExt.h")]
    except PackageNotFoundError:
        headers = []
    if not headers:
        absent.append("nvidia-nvtx (the NVTX headers)")
    return absent


def why_not() -> str | None:
    """Why nothing can be run here, or None."""
    absent = missing()
    if absent:
        return f"not installed for {sys.executable}: {', '.join(absent)}"
    import torch

    if not torch.cuda.is_available():
        return f"there is no GPU that PyTorch can use (torch {torch.__version__})"
    return None


def machine_of(outcomes: Sequence[Outcome], commit: str | None) -> dict[str, Any]:
    """What the part "Machine" has printed; empty where it failed."""
    machine: dict[str, Any] = {}
    for outcome in outcomes:
        if outcome.part.name == "Machine" and outcome.error is None:
            machine = json.loads(
                next(line for line in outcome.output.splitlines() if line.startswith("{"))
            )
    if commit is not None:
        machine["commit"] = commit
    return machine


def as_json(
    machine: Mapping[str, Any], outcomes: Sequence[Outcome], seconds: float
) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "machine": dict(machine),
        "seconds": round(seconds, 1),
        "parts": [
            {
                "name": outcome.part.name,
                "seconds": round(outcome.seconds, 1),
                "state": outcome.state,
                "error": outcome.error,
                "last_line": outcome.last_line,
                "figures": [
                    {**figure.to_dict(), "verdict": figure.verdict} for figure in outcome.figures
                ],
            }
            for outcome in outcomes
        ],
    }


def as_markdown(machine: Mapping[str, Any], outcomes: Sequence[Outcome], seconds: float) -> str:
    """Everything as a page."""
    lines = [f"# {machine.get('gpu', 'GPU')}, {machine.get('date', date.today().isoformat())}", ""]
    facts = {key: value for key, value in machine.items() if key not in PEERS}
    lines += [f"* {key}: {'unknown' if value is None else value}" for key, value in facts.items()]
    absent = [peer for peer in PEERS if machine.get(peer) is None]
    there = [f"{peer} {machine[peer]}" for peer in PEERS if machine.get(peer) is not None]
    lines += [
        f"* peers: {', '.join(there) or 'none'}; not installed: {', '.join(absent) or 'none'}",
        f"* the whole took {seconds:.0f} s",
        "",
        "| part | seconds | |",
        "|---|---:|---|",
    ]
    lines += [f"| {one.part.name} | {one.seconds:.0f} | {one.state} |" for one in outcomes]
    for outcome in outcomes:
        if not outcome.was_reached:
            continue
        state = "" if outcome.error is None else f", **failed: {outcome.error}**"
        lines += ["", f"## {outcome.part.name}", "", f"{outcome.seconds:.0f} s{state}"]
        if outcome.figures:
            lines += ["", markdown_table(outcome.figures)]
        elif outcome.part.name != "Machine":
            lines += ["", f"    {outcome.last_line}"]
    return "\n".join(lines) + "\n"


def failures(outcomes: Sequence[Outcome]) -> str:
    """All that the parts that failed have printed."""
    return "".join(
        f"===== {outcome.part.name}: {outcome.error}\n{outcome.output}\n"
        for outcome in outcomes
        if outcome.error is not None and outcome.was_reached
    )


def limit_of(parts: Sequence[Part], number: int, remaining_s: float) -> float:
    """How long a part may take: its own limit, and more of what earlier ones have left, as long as
    each later one still has its own."""
    part = parts[number]
    later_s = sum(each.limit_s + GRACE_S for each in parts[number + 1 :])
    most_s = part.limit_s if part.fills_s else LONGEST * part.limit_s
    spare_s = remaining_s - GRACE_S - later_s
    return min(remaining_s, max(part.limit_s, min(most_s, spare_s)))


def run_parts(
    parts: Sequence[Part],
    directory: Path,
    total_s: float,
    output: Path,
    write: Callable[[Sequence[Outcome]], object],
    stop: Stop,
) -> list[Outcome]:
    """Runs one after the other, whatever becomes of each, and writes after each what there is."""
    end_s = monotonic() + total_s
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    outcomes = [Outcome(part, 0, NOT_REACHED, [], "") for part in parts]
    for number, part in enumerate(parts):
        print(f"{part.name} ...", flush=True)
        command = tuple(str(output) if word == OUTPUT else word for word in part.command)
        limit_s = limit_of(parts, number, end_s - monotonic())
        log = logs / f"{number + 1:02}-{'-'.join(re.findall('[a-z0-9]+', part.name.lower()))}.log"
        outcome = run_part(replace(part, command=command), directory, limit_s, log, stop)
        print(f"    {outcome.seconds:.0f} s, {outcome.state}. {outcome.last_line}", flush=True)
        outcomes[number] = outcome
        if stop.reason:
            rest = parts[number + 1 :]
            error = f"{NOT_REACHED}: {stop.reason}"
            outcomes[number + 1 :] = [Outcome(part, 0, error, [], "") for part in rest]
        write(outcomes)
        if stop.reason:
            break
    return outcomes


def write(
    output: Path,
    group: str,
    machine: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    seconds: float,
) -> Path:
    """Writes the files, each of which is there whole or not at all, and returns the path of the
    table."""
    gpu = "".join(c if c.isalnum() else "-" for c in str(machine.get("gpu", "gpu"))).lower()
    stem = f"{date.today().isoformat()}-{gpu}-{group}"
    output.mkdir(parents=True, exist_ok=True)
    results = json.dumps(as_json(machine, outcomes, seconds), indent=1) + "\n"
    table = f"{stem}.md"
    texts = {f"{stem}.json": results, table: as_markdown(machine, outcomes, seconds)}
    for name, text in texts.items():
        part = output / f"{name}.part"
        part.write_text(text)
        part.replace(output / name)
    return output / table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.run", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIRECTORY"
    )
    parser.add_argument(
        "--commit",
        default=os.environ.get("COMMIT"),
        help="what is measured, where git can't tell; also from COMMIT in the environment",
    )
    parser.add_argument(
        "--group",
        choices=GROUPS,
        default=GROUPS[0],
        help="first: what is to be known first, in nine minutes; costs: limits, and what recording "
        "costs; programs: what it says of whole programs, and whether that is true",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="of the parts of the group those with it in the name",
    )
    parser.add_argument("--total", type=float, default=TOTAL_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    begin_s = monotonic()

    # Where pip puts programs, for a Python that is not on the path.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    paths = [str(ROOT), str(TEST_LIBRARIES), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    reason = why_not()
    if reason is not None:
        print(f"make gpu: {reason}", file=sys.stderr)
        return 1
    # A part that is stopped leaves no image of its memory behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    output: Path = options.output.resolve()
    written: list[Path] = []

    def keep(outcomes: Sequence[Outcome]) -> None:
        machine = machine_of(outcomes, options.commit)
        table = write(output, options.group, machine, outcomes, monotonic() - begin_s)
        for earlier in written:
            if earlier != table:  # from before the GPU's name was known
                earlier.unlink()
                earlier.with_suffix(".json").unlink()
        written[:] = [table]

    parts = parts_of(options.group, options.only)
    remaining_s = options.total - (monotonic() - begin_s)
    with Stop().at_signals() as stop:
        outcomes = run_parts(parts, ROOT, remaining_s, output, keep, stop)
    log = failures(outcomes)
    if log:
        print(log[-8000:])
    print(written[0].read_text())
    # Once more: of much output only the end may be seen.
    print("\n".join(f"{outcome.part.name}: {outcome.state}" for outcome in outcomes))
    print(f"{written[0]} and .json; {output / 'logs'}; {monotonic() - begin_s:.0f} s")
    return int(any(outcome.error is not None for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
