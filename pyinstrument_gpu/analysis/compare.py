# SPDX-License-Identifier: Apache-2.0
"""Did a change make training faster, and did time only move from one phase to another?

Each run is one observation; docs/honest-time.md says why.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.final_values import FinalValue, final_values
from pyinstrument_gpu.analysis.run_sample import RunSample, run_samples
from pyinstrument_gpu.analysis.welch import t_quantile, welch
from pyinstrument_gpu.model.run_data import RunData

CONFIDENCE = 0.95
POWER = 0.8
DEFAULT_MARGIN_PERCENT = 1.0
_ENVIRONMENT = {
    "host": "host",
    "gpus": "GPUs",
    "torch": "torch version",
    "cuda": "CUDA version",
    "python": "Python version",
    "platform": "platform",
    "world_size": "number of ranks",
    "version": "pyinstrument_gpu version",
    "revision": "code revision",
}


class Verdict(enum.Enum):
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    """The difference is within the margin, with confidence."""
    AMBIGUOUS = "AMBIGUOUS"
    """They show neither a difference nor that there is none."""


@dataclass(frozen=True)
class PhaseChange:
    """The mean self time per step of one phase on both sides; 0 where it did not occur."""

    path: str
    before_ns: float
    after_ns: float

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns


@dataclass(frozen=True)
class Comparison:
    """Two sides of runs.

    Attributes:
        unit: what the change is of: time per "sample" where the samples are known, else per "step".
        change: relative change of that time; -0.06 is 6 % less.
        interval: of that change, at `CONFIDENCE`; None when it is not known.
        smallest_effect: the smallest relative change that such runs show in `POWER` of the cases;
            None when it is not known.
        margin: relative change up to which times are called the same.
        before_ns, after_ns: mean time per step of each run.
        before_rate, after_rate: mean samples per second; None when not known.
        steps: number of steps of each run that were compared.
        phases: the largest change first; the changes add up to that of the step.
        finals: the last values of the metrics that all runs have.
        warnings: sentences on why the sides may not be comparable.
    """

    verdict: Verdict
    unit: str
    change: float
    interval: tuple[float, float] | None
    smallest_effect: float | None
    margin: float
    before_ns: tuple[float, ...]
    after_ns: tuple[float, ...]
    before_rate: float | None
    after_rate: float | None
    steps: int
    phases: tuple[PhaseChange, ...]
    finals: tuple[FinalValue, ...]
    warnings: tuple[str, ...]

    @property
    def left_ns(self) -> float:
        """Time per step that went out of phases which became shorter."""
        return -sum(phase.change_ns for phase in self.phases if phase.change_ns < 0)

    @property
    def arrived_ns(self) -> float:
        """Time per step that came into phases which became longer."""
        return sum(phase.change_ns for phase in self.phases if phase.change_ns > 0)

    @property
    def moved_ns(self) -> float:
        """Time per step that only moved from one phase to another."""
        return min(self.left_ns, self.arrived_ns)


def compare(
    before: Sequence[RunData],
    after: Sequence[RunData],
    *,
    noise_percent: float | None = None,
    margin_percent: float = DEFAULT_MARGIN_PERCENT,
) -> Comparison:
    """Compare the runs without a change with those that have it.

    Args:
        noise_percent: a floor for the standard deviation between runs of one side; single runs need
            it for a verdict.
        margin_percent: change up to which times are called the same.

    Raises:
        ValueError: a side has no run, or a run has no complete step.
        MissingDependencyError: scipy is not installed.
    """
    if not before or not after:
        raise ValueError("a comparison needs at least one run on each side")
    samples = run_samples([*before, *after])
    sides = samples[: len(before)], samples[len(before) :]
    unit = "step" if any(s.samples_per_step is None for s in samples) else "sample"
    times = [np.array([_time(sample, unit) for sample in side]) for side in sides]
    change, error, freedom = _difference(times[0], times[1], noise_percent)
    interval = smallest = None
    if error is not None:
        quantile, power_quantile = (t_quantile(p, freedom) for p in ((1 + CONFIDENCE) / 2, POWER))
        interval = (change - quantile * error, change + quantile * error)
        smallest = (quantile + power_quantile) * error
    margin = margin_percent / 100
    rates = [_rate(side) for side in sides]
    finals = final_values(before, after)
    return Comparison(
        verdict=_verdict(interval, margin),
        unit=unit,
        change=change,
        interval=interval,
        smallest_effect=smallest,
        margin=margin,
        before_ns=tuple(sample.step_ns for sample in sides[0]),
        after_ns=tuple(sample.step_ns for sample in sides[1]),
        before_rate=rates[0],
        after_rate=rates[1],
        steps=samples[0].steps,
        phases=_phase_changes(*sides),
        finals=finals,
        warnings=(*_warnings(before, after, sides), *_differing(finals)),
    )


def _time(sample: RunSample, unit: str) -> float:
    return sample.step_ns / (sample.samples_per_step or 1 if unit == "sample" else 1)


def _rate(side: Sequence[RunSample]) -> float | None:
    rates = [s.samples_per_step / s.step_ns * 1e9 for s in side if s.samples_per_step is not None]
    return sum(rates) / len(rates) if len(rates) == len(side) else None


def _difference(
    before: NDArray[np.float64], after: NDArray[np.float64], noise_percent: float | None
) -> tuple[float, float | None, float]:
    """The relative change of the mean, its standard error (None: not known) and the degrees of
    freedom."""
    base = float(before.mean())
    ratio = float(after.mean()) / base
    error, freedom = welch(before, after)
    if error is not None:
        error /= base
    if noise_percent is not None:
        floor = noise_percent / 100 * math.sqrt(1 / len(before) + ratio**2 / len(after))
        if error is None or floor > error:
            error, freedom = floor, math.inf
    return ratio - 1, error, freedom


def _verdict(interval: tuple[float, float] | None, margin: float) -> Verdict:
    if interval is None:
        return Verdict.AMBIGUOUS
    low, high = interval
    if -margin <= low and high <= margin:
        return Verdict.SAME
    if high < 0:
        return Verdict.FASTER
    return Verdict.SLOWER if low > 0 else Verdict.AMBIGUOUS


def _phase_changes(
    before: Sequence[RunSample], after: Sequence[RunSample]
) -> tuple[PhaseChange, ...]:
    paths = dict.fromkeys(path for sample in (*before, *after) for path in sample.phase_ns)
    changes = [PhaseChange(path, _mean_ns(before, path), _mean_ns(after, path)) for path in paths]
    return tuple(sorted(changes, key=lambda change: -abs(change.change_ns)))


def _mean_ns(side: Sequence[RunSample], path: str) -> float:
    return sum(sample.phase_ns.get(path, 0.0) for sample in side) / len(side)


def _warnings(
    before: Sequence[RunData], after: Sequence[RunData], sides: Sequence[Sequence[RunSample]]
) -> list[str]:
    both = before, after
    facts: dict[str, list[set[Any]]] = {
        "samples per step differ": [{round(s.samples_per_step or 0, 3) for s in o} for o in sides],
        "numbers of steps differ": [{run.step_totals.count for run in runs} for runs in both],
    }
    for key, what in _ENVIRONMENT.items():
        facts[f"{what} differs"] = [
            {str(run.environment.get(key, "unknown")) for run in runs} for runs in both
        ]
    warnings = [
        f"{what}: {' and '.join(', '.join(map(str, sorted(values))) for values in found)}"
        for what, found in facts.items()
        if found[0] != found[1]
    ]
    if any(not run.complete for run in (*before, *after)):
        warnings.append("some runs were not recorded to their end")
    if any(len(run.spans) < run.phases_recorded for run in (*before, *after)):
        warnings.append("some history is missing: some time of phases counts as unattributed")
    return warnings


def _differing(finals: Sequence[FinalValue]) -> Iterator[str]:
    for final in finals:
        if final.differs:
            yield (
                f"final {final.name} differs beyond the noise between runs: "
                f"{final.before_mean:.6g} and {final.after_mean:.6g}"
            )
