# SPDX-License-Identifier: Apache-2.0
"""What removing a sync was predicted to save, beside what it saved.

The programs run as they are and without one of their syncs, in turn, each time in a process of its
own and recorded. The runs as they are predict; the others are what came of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.program import SYNCS
from benchmarks.gpu.recorded_program import record
from benchmarks.interleave import interleaved, relative_difference
from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.savings import Change, ReplayedSaving
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind

ROUNDS = 5
WARM_UP = 20
"""Steps that are not recorded: in the first ones PyTorch loads kernels and chooses among them."""

Recorder: TypeAlias = Callable[..., Run]
"""Records the program with these arguments."""


def step_ns(run: Run) -> float:
    """The mean time of a step, until host and device were done with the last. The program reads a
    value at its end, so the last wait is when the device was done."""
    steps, waits = run.steps.closed, run.syncs.events
    ends_ns = np.append(waits["begin_ns"] + np.maximum(waits["duration_ns"], 0), steps["end_ns"])
    return float(ends_ns.max() - steps["begin_ns"][0]) / len(steps)


def prediction(run: Run, sync: str) -> ReplayedSaving | None:
    """Of the run's savings the one of this sync of the program, if it has one."""

    def is_of_sync(saving: ReplayedSaving) -> bool:
        if sync == "copy":
            return saving.change is Change.COPIES
        return saving.change is Change.SYNC and run.syncs.sites[saving.site].kind is SyncKind.ITEM

    rows = filter(is_of_sync, analysis.of(run).savings.rows)
    return max(rows, key=lambda saving: saving.calls, default=None)


def of_model(model: str, recorder: Recorder, rounds: int, seconds: float) -> Iterator[Figure]:
    """The figures of one program."""
    plain: list[Run] = []

    def as_it_is() -> float:
        plain.append(recorder(model))
        return step_ns(plain[-1])

    def without(sync: str) -> Callable[[], float]:
        return lambda: step_ns(recorder(model, "--without", sync))

    arms = {"as it is": as_it_is, **{sync: without(sync) for sync in SYNCS[model]}}
    times_ns = interleaved(arms, rounds=rounds, seconds=seconds, warm_up=0)
    base_ns = times_ns["as it is"]
    yield Figure(
        f"{model}: a step as it is", base_ns.mean() / 1e3, "us", note=f"{len(base_ns)} runs"
    )
    for sync in SYNCS[model]:
        found = [prediction(run, sync) for run in plain]
        savings = [saving for saving in found if saving is not None]
        if not savings:
            print(f"{model}: no {sync} made the host wait for a device", flush=True)
            continue
        yield from _of_sync(f"{model}, {sync}", savings, base_ns, times_ns[sync])


def _of_sync(
    name: str, savings: Sequence[ReplayedSaving], before_ns: np.ndarray, after_ns: np.ndarray
) -> Iterator[Figure]:
    likely_us, predicted_low_us, predicted_high_us, at_most_us = (
        float(np.median([getattr(saving, column) for saving in savings])) / 1e3
        for column in ("likely_ns", "low_ns", "high_ns", "at_most_ns")
    )
    told = sum(saving.is_told for saving in savings)
    change = relative_difference(before_ns, after_ns)
    step_us = float(np.median(before_ns)) / 1e3
    got_us, low_us, high_us = (-step_us * x for x in (change.value, change.high, change.low))
    yield Figure(
        f"{name}: predicted as likely",
        likely_us,
        "us a step",
        low=predicted_low_us,
        high=predicted_high_us,
        note=f"the range is what was predicted; likely is shown in {told} of {len(savings)} runs",
    )
    yield Figure(
        f"{name}: got",
        got_us,
        "us a step",
        low=low_us,
        high=high_us,
        goal=at_most_us,
        note="the goal is what was predicted at most",
    )
    if 2 * told < len(savings):
        # No reader sees what was likely.
        return
    yield Figure(
        f"{name}: got less what was likely",
        100 * (got_us - likely_us) / step_us,
        "% of the step",
        low=100 * (low_us - likely_us) / step_us,
        high=100 * (high_us - likely_us) / step_us,
    )


def figures(
    *arguments: str, rounds: int = ROUNDS, seconds: float = 190, models: Sequence[str] = (*SYNCS,)
) -> Iterator[Figure]:
    """All that this part measures. The arguments go to the program."""
    arms = {model: 1 + len(SYNCS[model]) for model in models}
    with tempfile.TemporaryDirectory() as name:
        for model in models:
            share_s = seconds * arms[model] / sum(arms.values())
            yield from of_model(
                model,
                lambda *own: record(Path(name), *own, *arguments, warmup=WARM_UP),
                rounds,
                share_s,
            )


def main() -> None:
    print_figures(figures())


if __name__ == "__main__":
    main()
