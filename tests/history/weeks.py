# SPDX-License-Identifier: Apache-2.0
"""Weeks of runs of a program, made by hand, of which the change is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pyinstrument_gpu.core.run import Run
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run, with_tokens

DAY_NS = 86_400 * 10**9
FIRST_NS = 1_793_491_200 * 10**9  # 1 November 2026
STEPS = 12
FORWARD_MS, BACKWARD_MS, REST_MS = 30.0, 60.0, 10.0


def run_of_day(
    number: int,
    *,
    backward: float = 1.0,
    noise: tuple[float, float] = (1.0, 1.0),
    day: float | None = None,
    **facts: Any,
) -> Run:
    """A run of equal steps, one a day.

    Args:
        number: of the run, which is its id.
        backward: times as long takes that phase.
        noise: likewise of both phases.
        day: when it began; None is that of its number.
    """
    times_ms = [FORWARD_MS * noise[0], BACKWARD_MS * backward * noise[1]]
    step_ms = sum(times_ms) + REST_MS
    began_ns = FIRST_NS + round((number if day is None else day) * DAY_NS)
    environment = {
        "host": "box",
        "gpus": [],
        "torch": "2.9.0",
        "driver": None,
        "revision": "a" * 40,
        "arguments": ["/home/me/train.py", "--lr", "0.1"],
        "run_id": f"{number:016x}",
        "anchor": {"run_ns": 0, "monotonic_ns": 1, "realtime_ns": began_ns},
        **facts,
    }
    known = {name: one for name, one in environment.items() if one is not ...}
    phases = dict(zip(("forward", "backward"), (ms / step_ms for ms in times_ms), strict=True))
    return with_tokens(made_run([step_ms * MS] * STEPS, phases, **known), 4096)


def weeks(
    runs: int,
    change: Callable[[int], dict[str, Any]] = lambda number: {},
    spread: float = 0.01,
    seed: int = 1,
) -> Iterator[Run]:
    """Runs with noise, each with what `change` gives for its number."""
    random = np.random.default_rng(seed)
    for number, noise in enumerate(np.exp(spread * random.standard_normal((runs, 2)))):
        yield run_of_day(number, noise=(float(noise[0]), float(noise[1])), **change(number))


def saved(folder: Path, runs: Iterator[Run]) -> Path:
    """Their files in a folder."""
    folder.mkdir(exist_ok=True)
    for run in runs:
        save(run, folder / f"{run.environment['run_id']}.gpurun")
    return folder
