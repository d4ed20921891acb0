# SPDX-License-Identifier: Apache-2.0
"""How often `compare` tells identical runs apart: one program, recorded again and again, each time
in a process of its own. Sides of a comparison are drawn from these runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from benchmarks.compare_pool import rate
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.recorded_program import record
from pyinstrument_gpu.analysis.compare import Verdict
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import MissingDependencyError

RUNS = 12
WARM_UP = 20
"""Steps that are not recorded: in the first ones PyTorch loads kernels and chooses among them."""
SIZES = (3, 5)
GOAL_PERCENT = 5


def step_ns(run: Run) -> float:
    """The mean time of a step, until host and device were done with the last. The program reads a
    value at its end, so the last wait is when the device was done."""
    steps, waits = run.steps.closed, run.syncs.events
    ends_ns = np.append(waits["begin_ns"] + np.maximum(waits["duration_ns"], 0), steps["end_ns"])
    return float(ends_ns.max() - steps["begin_ns"][0]) / len(steps)


def of_runs(runs: Sequence[Run], *, draws: int = 1000) -> Iterator[Figure]:
    """What `compare` says of sides of these runs."""
    pool = list(runs)  # one object: no run is then on both sides
    times_ns = np.array([step_ns(run) for run in pool])
    spread = 100 * float(times_ns.std(ddof=1) / times_ns.mean())
    yield Figure(
        "a step", float(times_ns.mean()) / 1e3, "us", note=f"{len(runs)} runs, SD {spread:.2f} %"
    )
    for size in SIZES:
        # Some runs have to be left out of each draw: the interval comes from those without a run.
        if 2 * size >= len(runs):
            print(f"{len(runs)} runs are too few for {size} against {size}", flush=True)
            continue
        shares, (low, high) = rate(pool, pool, (size, size), draws, seed=1)
        apart = shares[Verdict.FASTER] + shares[Verdict.SLOWER]
        yield Figure(
            f"{size} against {size} of these, called FASTER or SLOWER",
            *(100 * apart, "%", 100 * low, 100 * high),
            goal=GOAL_PERCENT,
            note=f"SAME {100 * shares[Verdict.SAME]:.1f} %",
        )


def figures(
    *arguments: str, runs: int = RUNS, seconds: float = 140, draws: int = 1000
) -> Iterator[Figure]:
    """All that this part measures. The arguments go to the program."""
    recorded: list[Run] = []
    end_s = monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        while len(recorded) < runs and (len(recorded) < 2 or monotonic() < end_s):
            recorded.append(record(Path(name), "gpt", *arguments, warmup=WARM_UP))
    try:
        yield from of_runs(recorded, draws=draws)
    except MissingDependencyError as error:
        print(f"identical runs are not compared: {error}", flush=True)


def main() -> None:
    print_figures(figures())


if __name__ == "__main__":
    main()
