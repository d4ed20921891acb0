# SPDX-License-Identifier: Apache-2.0
"""A run as one observation: its step times without the warm-up, and where they went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import span_scopes
from pyinstrument_gpu.model.statistics import Scope

UNATTRIBUTED = "unattributed"
_BATCH = 5


@dataclass(frozen=True)
class RunSample:
    """Some steps of a run, as means per step.

    Attributes:
        samples_per_step: None when not all are known.
        phase_ns: self time by path, on the step's own thread; what no phase accounts for is
            `UNATTRIBUTED`. They add up to `step_ns`.
    """

    steps: int
    step_ns: float
    samples_per_step: float | None
    phase_ns: Mapping[str, float]


def warmup_steps(durations_ns: NDArray[np.int64]) -> int:
    """How many of the first steps to leave out, by the rule MSER-5: as many as make the standard
    error of the mean of the rest the smallest, in units of five, at most half of the steps.

    White, Cobb, Spratt: A comparison of five steady-state truncation heuristics for simulation
    (2000).
    """
    batches = len(durations_ns) // _BATCH
    if batches < 4:
        return min(1, max(len(durations_ns) - 1, 0))
    means = durations_ns[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    errors = [means[cut:].var() / (batches - cut) for cut in range(batches // 2 + 1)]
    return _BATCH * int(np.argmin(errors))


def run_samples(runs: Sequence[RunData]) -> list[RunSample]:
    """The runs as observations over the same steps: what all of them have done from the end of the
    longest warm-up to the end of the shortest run. A drift that they share then cancels.

    Raises:
        ValueError: a run has no complete step.
    """
    steps = [run.steps.closed[run.steps.closed["complete"]] for run in runs]
    for number, of_run in enumerate(steps):
        if not len(of_run):
            raise ValueError(f"run {number + 1} of {len(runs)} has no complete step")
    count = min(map(len, steps))
    durations_ns = [(of_run["end_ns"] - of_run["begin_ns"])[:count] for of_run in steps]
    begin = max(map(warmup_steps, durations_ns))
    return [_sample(run, of_run[begin:count]) for run, of_run in zip(runs, steps, strict=True)]


def _sample(run: RunData, steps: NDArray[np.void]) -> RunSample:
    step_ns = float((steps["end_ns"] - steps["begin_ns"]).mean())
    samples = steps["samples"]
    return RunSample(
        steps=len(steps),
        step_ns=step_ns,
        samples_per_step=None if np.isnan(samples).any() else float(samples.mean()),
        phase_ns=_phase_ns(run, steps, step_ns),
    )


def _phase_ns(run: RunData, steps: NDArray[np.void], step_ns: float) -> dict[str, float]:
    chosen = (span_scopes(run.spans) == Scope.STEP) & (run.span_self_ns >= 0)
    chosen &= np.isin(run.spans["step"], steps["index"])
    sums_ns = np.bincount(
        run.spans["path"][chosen], run.span_self_ns[chosen], minlength=len(run.paths)
    )
    means_ns = {
        path: float(sum_ns) / len(steps)
        for path, sum_ns in zip(run.paths, sums_ns, strict=True)
        if sum_ns
    }
    means_ns[UNATTRIBUTED] = step_ns - sum(means_ns.values())
    return means_ns
