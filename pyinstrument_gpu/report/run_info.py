# SPDX-License-Identifier: Apache-2.0
"""The section that says what was recorded: the program, its machine, and how long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import counted, duration, printable

_FACTS = ("run_id", "host", "rank", "world_size", "python", "torch")


@dataclass(frozen=True)
class RunInfo:
    """The recorded run.

    Attributes:
        run_id: tells the run from all others.
        host: the machine's name.
        python, torch: versions.
        command: the command line.
        arguments: the program and its arguments.
        rank, world_size: its place in a job of several processes.
        gpu_count: how many GPUs the process saw.
        gpus: their names.
        loader_workers: worker processes of the DataLoader.
        other_streams: whether the program used streams other than its device's default one.
        device_timing: whether the times of phases on the device were recorded.
        timed_every_steps: the device was timed in one of so many steps.
        syncs_watched: whether calls that make the host wait for a device were watched.
        is_preview: true: the program ran without a GPU as if it had one, so no time is its own.
        duration_ns: from the begin of the recording to its end, or its last heartbeat.
        is_complete: whether the recording was stopped. If not, the process died, or still runs.
    """

    command: tuple[str, ...] | None
    arguments: tuple[str, ...] | None
    run_id: str | None
    host: str | None
    rank: int | None
    world_size: int | None
    python: str | None
    torch: str | None
    gpu_count: int | None
    gpus: tuple[str, ...]
    loader_workers: int | None
    other_streams: bool | None
    device_timing: bool
    timed_every_steps: int | None
    syncs_watched: bool
    is_preview: bool | None
    duration_ns: int
    is_complete: bool


def run_info(run: Run) -> RunInfo:
    environment, program = run.environment, run.program_facts
    command, arguments = environment.get("command"), environment.get("arguments")
    gpus = environment.get("gpus")
    never_timed = all(phase.device is None for phase in run.phases.values())
    return RunInfo(
        command=None if command is None else tuple(command),
        arguments=None if arguments is None else tuple(arguments),
        **{name: environment.get(name) for name in _FACTS},
        gpu_count=None if gpus is None else len(gpus),
        gpus=tuple(gpus or ()),
        loader_workers=program.loader_workers,
        other_streams=program.other_streams,
        device_timing=run.device_timing is not None or not never_timed,
        timed_every_steps=None if run.device_timing is None else run.device_timing.every,
        syncs_watched=run.syncs.was_watched,
        is_preview=run.syncs.is_as_if or None,
        duration_ns=run.duration_ns,
        is_complete=run.complete,
    )


def place_facts(run: RunInfo) -> Iterator[str]:
    """Yield the run's place in a job and what it had to run on, as far as that is known."""
    if run.rank is not None:
        yield f"rank {run.rank}" + (f" of {run.world_size}" if run.world_size else "")
    if run.torch:
        yield f"torch {run.torch}"
    if run.gpu_count is not None:
        names = dict.fromkeys(run.gpus)
        yield from [f"{run.gpus.count(gpu)} x {gpu}" for gpu in names] or ["no GPU"]
    if run.loader_workers is not None:
        yield counted(run.loader_workers, "loader worker")


def heading(run: RunInfo, steps: str, verdict: str) -> Iterator[Sentence]:
    """Yield what was recorded, how many steps it had, and what it says."""
    if run.command:
        yield Sentence(printable(shlex.join(run.command)), "title")
    facts = []
    if run.host:
        facts.append(f"host {run.host}")
    facts += place_facts(run)
    if run.other_streams:
        facts.append("several streams")
    if not run.device_timing:
        facts.append("device timing off")
    yield Sentence(printable(", ".join(facts)))
    yield Sentence(
        f"{steps} in {duration(run.duration_ns)}, "
        + ("complete" if run.is_complete else "incomplete")
    )
    yield Sentence(printable(verdict), "title")
