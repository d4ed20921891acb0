# SPDX-License-Identifier: Apache-2.0
"""What steps and phases cost in energy.

A GPU's counter moves some ten or hundred times a second and says what the whole GPU has used. So
the energy of one call is measured only if that takes a second or more.

For shorter ones it is a matter of regression: the run is cut into pieces of a second at least. The
energy of each is a power, times its length, plus, for each phase, an energy per call, times the
calls that began in it. These are found by ordinary least squares, with intervals of three standard
errors. That tells apart only what does not always happen together: where every step has the same
phases, nothing is known of them. An interval that reaches zero is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.energy import GpuEnergy
from pyinstrument_gpu.model.run_data import RunData

SHORTEST_MEASURED_NS = 1_000_000_000
_FEWEST_PIECES = 30
_MOST_PIECES = 2000
_MOST_PHASES = 50
_STANDARD_ERRORS = 3.0  # 99.5 % and more of Student's distribution from 30 degrees of freedom on


@dataclass(frozen=True)
class PhaseEnergy:
    """Joules per call of a phase; `low` and `high` are equal to it where it was measured."""

    joules: float
    low: float
    high: float
    is_measured: bool


@dataclass(frozen=True)
class EnergyUse:
    """What a run used on one GPU. What is not known is None.

    Attributes:
        joules_per_step: From the begin of the first step to the end of the last, as far as the
            readings and the history reach, by the number of steps.
        joules_per_sample: The same by the number of samples in these steps.
        phases: By path.
    """

    gpu: GpuEnergy
    joules_per_step: float | None
    joules_per_sample: float | None
    phases: Mapping[str, PhaseEnergy]


def energy_use(run: RunData) -> list[EnergyUse]:
    """What is known of each GPU whose energy was read."""
    return [_use(run, gpu) for gpu in run.energy]


def _use(run: RunData, gpu: GpuEnergy) -> EnergyUse:
    steps = run.steps.closed
    at_begin, at_end = gpu.joules_until(steps["begin_ns"]), gpu.joules_until(steps["end_ns"])
    known = ~np.isnan(at_begin) & ~np.isnan(at_end)
    per_step = per_sample = None
    if known.any():
        joules = float(np.nanmax(at_end[known]) - np.nanmin(at_begin[known]))
        per_step = joules / int(known.sum())
        samples = float(steps["samples"][known].sum())  # NaN where one is unknown
        per_sample = joules / samples if samples > 0 else None
    measured = dict(_measured(run, gpu))
    return EnergyUse(gpu, per_step, per_sample, {**_fitted(run, gpu, set(measured)), **measured})


def _measured(run: RunData, gpu: GpuEnergy) -> list[tuple[str, PhaseEnergy]]:
    spans = run.spans
    long = spans["host_end_ns"] - spans["host_begin_ns"] >= SHORTEST_MEASURED_NS
    joules = gpu.joules_until(spans["host_end_ns"]) - gpu.joules_until(spans["host_begin_ns"])
    found = []
    for path in np.unique(spans["path"]).tolist():
        calls = spans["path"] == path
        values = joules[calls]
        # A mean of the long ones alone would be too high.
        if long[calls].all() and not np.isnan(values).all():
            mean = float(np.nanmean(values))
            found.append((run.paths[path], PhaseEnergy(mean, mean, mean, True)))
    return found


def _fitted(run: RunData, gpu: GpuEnergy, measured: set[str]) -> dict[str, PhaseEnergy]:
    edges_ns = _edges(gpu)
    if len(edges_ns) <= _FEWEST_PIECES:
        return {}
    # Outermost phases alone: those within have their part of the energy of these.
    outermost = [path for path, parent in enumerate(run.path_parents.tolist()) if parent < 0]
    begins_ns = run.spans["host_begin_ns"]
    paths, columns = [], []
    for path in outermost[:_MOST_PHASES]:
        counts = np.histogram(begins_ns[run.spans["path"] == path], edges_ns)[0]
        if counts.any() and run.paths[path] not in measured:
            paths.append(path)
            columns.append(counts)
    freedom = len(edges_ns) - 1 - len(columns) - 1
    if not columns or freedom < _FEWEST_PIECES:
        return {}
    seconds = np.diff(edges_ns) / 1e9
    design = np.column_stack([seconds, *columns]).astype(np.float64)
    joules = np.diff(gpu.joules_until(edges_ns))
    inverse = np.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ joules
    residual = joules - design @ solution
    errors = np.sqrt(np.diag(inverse) * float(residual @ residual) / freedom)
    # One that the others can stand in for is not determined.
    is_determined = np.abs(np.diag(inverse @ (design.T @ design)) - 1) < 1e-6
    found = {}
    for number, path in enumerate(paths, start=1):
        value, error = float(solution[number]), float(_STANDARD_ERRORS * errors[number])
        if is_determined[number] and value - error > 0:
            phase = PhaseEnergy(value, value - error, value + error, is_measured=False)
            found[run.paths[path]] = phase
    return found


def _edges(gpu: GpuEnergy) -> NDArray[np.int64]:
    """Times of readings that lie a second apart at least."""
    times_ns = gpu.samples["time_ns"]
    if len(times_ns) < 2:
        return times_ns
    whole_ns = int(times_ns[-1] - times_ns[0])
    piece_ns = max(SHORTEST_MEASURED_NS, whole_ns // _MOST_PIECES)
    numbers = (times_ns - times_ns[0]) // piece_ns
    first = np.concatenate([[True], np.diff(numbers) > 0])
    edges: NDArray[np.int64] = times_ns[first]
    return edges
