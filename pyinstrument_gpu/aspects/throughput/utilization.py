# SPDX-License-Identifier: Apache-2.0
"""The share of its peak that the device reaches: plain data of a run whose operations were counted.

The operations are those of the profiled steps and the times those of all others. Where both are
known by their tokens to be of different size, the operations count in proportion.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import (
    in_unfinished_steps,
    mean_per_step_ns,
    were_profiled,
)
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.flops import FlopCount, Flops
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.core.step_values import TOKENS, values_of_steps

_LEAST_DIFFERENCE = 0.001


@dataclass(frozen=True)
class FlopRow:
    """The floating-point operations per step of a phase, with those inside it.

    Attributes:
        forward, backward: those of the model, frozen weights without gradients.
        recompute: done again during backward passes: by activation checkpointing, and by fused
            attention.
        optimizer: by optimizers.
        per_second: all of these by the time of the phase, on the device if there is one.
        mfu, hfu: the share of the peak that forward and backward are, and that all of these are;
            unknown where that, or the time, is.
    """

    name: str | None
    forward: float
    backward: float
    recompute: float
    optimizer: float
    per_second: float | None
    mfu: float | None
    hfu: float | None

    @property
    def model_flops(self) -> float:
        return self.forward + self.backward

    @property
    def hardware_flops(self) -> float:
        return self.model_flops + self.recompute + self.optimizer


@dataclass(frozen=True)
class UnknownShare:
    """An operator without a formula.

    Attributes:
        share: of the time of the profiled steps.
    """

    name: str | None
    share: float


@dataclass(frozen=True)
class Utilization:
    """The share of its peak that a device reaches.

    Attributes:
        device: its name.
        first_step, last_step: where operations were counted.
        scale: what they were multiplied by, as other steps have more or fewer tokens.
        model_flops: of the model per step: forward and backward, each once.
        hardware_flops: with what is done again, and by optimizers.
        model_flops_per_second: by the mean time of a step.
        mfu: model FLOPs utilization: that as a share of the peak.
        mfu_at_most: if operators without a formula had reached the peak.
        hfu: hardware FLOPs utilization: the same with what is done again, and by optimizers.
        unknown_share: the time of operators without a formula, as a share of the profiled steps.
        unknown: those operators, the longest first.
        peaks: of the types of numbers that were computed with, in FLOP/s.
        sources: where these are from.
        why_unknown: why there is no utilization.
        phases: by phase on the steps' own thread.
    """

    device: str
    first_step: int | None
    last_step: int | None
    scale: float
    model_flops: float
    hardware_flops: float
    model_flops_per_second: float | None
    mfu: float | None
    mfu_at_most: float | None
    hfu: float | None
    unknown_share: float | None
    unknown: tuple[UnknownShare, ...]
    peaks: Mapping[str, float]
    sources: tuple[str, ...]
    why_unknown: str | None
    phases: tuple[FlopRow, ...]


def utilization(run: Run) -> Utilization | None:
    """Return the utilization; None if no operations were counted."""
    operations = run.operations
    flops = None if operations is None else operations.flops
    if operations is None or flops is None or not operations.steps:
        return None
    scale = _scale(run)
    per_step = scale / operations.steps
    model = [one for one in flops.counts if one.kind.is_of_model]
    steps = analysis.of(run).step_totals
    step_s = steps.duration.mean_ns / 1e9 if steps.count else 0.0
    ideal_s, model_ideal_s = flops.ideal_s(flops.counts), flops.ideal_s(model)
    dtypes = {one.dtype for one in flops.counts if one.flops}
    peaks = {one.dtype: one for one in flops.peaks if one.dtype in dtypes}
    window_ns = _window_ns(run)
    unknown_share = min(1.0, flops.unknown_ns / window_ns) if window_ns else None
    mfu = hfu = why = None
    if not step_s:
        why = "no step has ended"
    elif ideal_s is None or model_ideal_s is None:
        without = ", ".join(sorted(dtypes - set(peaks)))
        why = f"the peak of {flops.device} in {without} is not known (pyinstrument-gpu peak)"
    elif ideal_s * per_step > step_s:
        why = (
            f"steps do {ideal_s * per_step / step_s:.0%} of what should be the peak of "
            f"{flops.device}, so that is not its peak"
        )
    else:
        hfu, mfu = ideal_s * per_step / step_s, model_ideal_s * per_step / step_s
    model_flops = sum(one.flops for one in model) * per_step
    return Utilization(
        device=flops.device,
        first_step=operations.first_step,
        last_step=operations.last_step,
        scale=scale,
        model_flops=model_flops,
        hardware_flops=sum(one.flops for one in flops.counts) * per_step,
        model_flops_per_second=model_flops / step_s if step_s else None,
        mfu=mfu,
        mfu_at_most=None if mfu is None or unknown_share is None else min(1.0, mfu + unknown_share),
        hfu=hfu,
        unknown_share=unknown_share,
        unknown=tuple(
            UnknownShare(one.name, min(1.0, one.time_ns / window_ns))
            for one in flops.unknown
            if window_ns
        ),
        peaks={name: peak.flops_per_second for name, peak in peaks.items()},
        sources=tuple(dict.fromkeys(peak.source for peak in peaks.values())),
        why_unknown=why,
        phases=_rows(flops, _phases_s(run), per_step, why is None),
    )


def _scale(run: Run) -> float:
    """Return how many tokens steps have, by those of the profiled ones; 1 if unknown."""
    steps = run.steps.closed
    tokens = values_of_steps(run, TOKENS, steps)
    counted, others = _in_window(run), are_of_means(run, steps)
    if not counted.any() or not others.any() or np.isnan(tokens[counted | others]).any():
        return 1.0
    of_counted, of_others = float(tokens[counted].mean()), float(tokens[others].mean())
    ratio = of_others / of_counted if of_counted else 1.0
    return ratio if abs(ratio - 1) > _LEAST_DIFFERENCE else 1.0


def are_of_means(run: Run, steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return for each of these steps whether it was neither profiled nor cut short."""
    is_cut_short = np.isin(steps["index"], analysis.of(run).cut_short["index"])
    return ~(were_profiled(run, steps["index"]) | is_cut_short)


def _in_window(run: Run) -> NDArray[np.bool_]:
    """Return for each closed step whether its operations were counted."""
    index, operations = run.steps.closed["index"], run.operations
    if operations is None or operations.first_step is None or operations.last_step is None:
        return np.zeros(len(index), np.bool_)
    return (index >= operations.first_step) & (index <= operations.last_step)


def _window_ns(run: Run) -> int:
    """Return how long these steps took; 0 unknown."""
    steps = run.steps.closed[_in_window(run)]
    return int(durations_ns_of(steps).sum())


def _phases_s(run: Run) -> dict[str, float]:
    """The time of phases per step: on the device, if there is one."""
    about, found = analysis.of(run), {}
    unfinished = in_unfinished_steps(run, about.cut_short)
    for (path, scope), phase in run.statistics.items():
        still = unfinished.get((path, scope), PhaseStatistics())
        times = phase.host, still.host
        if run.device_timing is not None:
            times = phase.device, still.device
        calls = phase.count - still.count
        time_ns = mean_per_step_ns(about.step_totals.count, *times, calls)
        if scope == Scope.STEP and time_ns is not None:
            found[run.paths[path]] = time_ns / 1e9
    return found


def _rows(
    flops: Flops, times_s: Mapping[str, float], per_step: float, is_peak_known: bool
) -> tuple[FlopRow, ...]:
    """Return the rows, the largest first; phases hold those inside them."""
    by_path: defaultdict[str | None, list[FlopCount]] = defaultdict(list)
    for one in flops.counts:
        for path in _around(one.path):
            by_path[path].append(one)
    rows = []
    for path, counts in by_path.items():
        sums = Counter[str]()
        for one in counts:
            sums[one.kind.value] += one.flops
        time_s, ideal_s = times_s.get(path or ""), flops.ideal_s(counts)
        mfu = hfu = None
        if ideal_s is not None and time_s and is_peak_known and ideal_s * per_step <= time_s:
            hfu = ideal_s * per_step / time_s
            model_s = flops.ideal_s(one for one in counts if one.kind.is_of_model)
            mfu = None if model_s is None else model_s * per_step / time_s
        rows.append(
            FlopRow(
                name=path,
                forward=sums["forward"] * per_step,
                backward=sums["backward"] * per_step,
                recompute=sums["recompute"] * per_step,
                optimizer=sums["optimizer"] * per_step,
                per_second=sums.total() * per_step / time_s if time_s else None,
                mfu=mfu,
                hfu=hfu,
            )
        )
    rows.sort(key=lambda row: row.hardware_flops, reverse=True)
    return tuple(rows)


def _around(path: str | None) -> Iterator[str | None]:
    """Yield a phase and those around it."""
    yield path
    while path is not None and "/" in path:
        path = path.rpartition("/")[0]
        yield path
