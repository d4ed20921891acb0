# SPDX-License-Identifier: Apache-2.0
"""Runs of attempts, made by hand and saved as files: steps of 10 ms, one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.goodput.division import Bucket
from pyinstrument_gpu.goodput.life import JobLife, job_life
from pyinstrument_gpu.job.condition import ProcessObservation
from tests.helpers.job_files import rank_run
from tests.helpers.run_writer import save

MS = 1_000_000
STEP_NS = 10 * MS
BEFORE_NS = 100 * MS
"""From the begin of the process to that of the recording."""
MONOTONIC_NS = 10**12
EPOCH_NS = 10**18
GONE = ProcessObservation(ProcessState.GONE)


def attempt(
    at_ms: int,
    steps: int,
    *,
    start: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    tail_ms: int = 5,
    is_killed: bool = True,
    phases: Mapping[str, Sequence[int]] | None = None,
    open_phase: str | None = None,
    clock_ms: int = 0,
    gap_ns: int = 0,
    parts: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Run:
    """A run.

    Args:
        at_ms: when its process began.
        steps: how many ended, before the one that is open if it was killed.
        start: what the program tells of where it goes on.
        tail_ms: from the end of the last step to that of the run.
        phases: instead of one that takes all of a step; a step in which one takes nothing lacks it.
        open_phase: what the open step is in.
        gap_ns: before each step.
        clock_ms: by how much the clock of the machine is ahead.
    """
    began_ns = BEFORE_NS + (at_ms + clock_ms) * MS
    environment = {
        "host": "box",
        "run_id": f"{at_ms * 64 + rank:016x}",
        "anchor": {
            "run_ns": 0,
            "monotonic_ns": MONOTONIC_NS + began_ns,
            "realtime_ns": EPOCH_NS + began_ns,
        },
        "process_ns": MONOTONIC_NS + began_ns - BEFORE_NS,
        "arguments": ["train.py", "--epochs", "3"],
        "cwd": "/home/me",
        "pid": 4000 + rank,
        **({"rank": rank, "world_size": ranks} if ranks > 1 else {}),
        **({} if start is None else {"step_numbers": [{"at_ns": 0, "number": start}]}),
        **facts,
    }
    made = {"forward": [STEP_NS] * steps} if phases is None else dict(phases)
    if open_phase is not None:
        made.setdefault(open_phase, [0] * steps)
    whole = rank_run(rank, made, gap_ns=gap_ns, environment=environment)
    ended_ns = whole.duration_ns
    is_there = whole.spans["host_end_ns"] > whole.spans["host_begin_ns"]
    end: dict[str, Any] = {
        "duration_ns": ended_ns + tail_ms * MS,
        "complete": not is_killed,
        "anchor": environment["anchor"],
        "spans": whole.spans[is_there],
        "span_self_ns": whole.span_self_ns[is_there],
    }
    if is_killed:
        is_open = Step(steps, ended_ns, -1, None, 1, False, 0)
        end["open_step"], end["steps"] = is_open, Steps.with_open(whole.steps.closed, is_open)
    if open_phase is not None:
        end["open_phases"] = (OpenPhase(open_phase, 0, ended_ns, steps, 0),)
    return rank_run(rank, made, gap_ns=gap_ns, environment=environment, **(end | dict(parts or {})))


def saved(folder: Path, *runs: Run) -> list[Path]:
    """Their files, in the order in which they are given."""
    paths = [folder / f"run-{number}.gpurun" for number in range(len(runs))]
    for run, path in zip(runs, paths, strict=True):
        save(run, path)
    return paths


def life_of(folder: Path, *runs: Run, seen: ProcessObservation = GONE) -> JobLife:
    """Their life, in which so much can be seen of the processes of the last attempt."""
    return job_life(saved(folder, *runs), lambda run, path: seen)


def ms_of(life: JobLife) -> dict[str, float]:
    """What the time went into, without what took none."""
    totals_ns = life.division.totals_ns
    return {bucket.name.lower(): totals_ns[bucket] / MS for bucket in Bucket if totals_ns[bucket]}
