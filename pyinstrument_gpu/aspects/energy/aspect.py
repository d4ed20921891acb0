# SPDX-License-Identifier: Apache-2.0
"""Energy as an aspect of a run: what steps and phases cost.

A GPU's counter moves some ten or hundred times a second and says what the whole GPU has used. So
the energy of one call is measured only if that takes a second or more.

For shorter ones it is a matter of regression: the run is cut into pieces of a second at least. The
energy of each is a power, times its length, plus, for each phase, an energy per call, times the
calls that began in it. These are found by ordinary least squares, with intervals of three standard
errors. That tells apart only what does not always happen together: where every step has the same
phases, nothing is known of them. An interval that reaches zero is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.energy.data import GpuEnergy, decode_energy
from pyinstrument_gpu.core.arrays import groups
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import printable

SHORTEST_MEASURED_NS = 1_000_000_000
_FEWEST_PIECES = 30
_MOST_PIECES = 2000
_MOST_PHASES = 50
_STANDARD_ERRORS = 3.0  # 99.5 % and more of Student's distribution from 30 degrees of freedom on


@dataclass(frozen=True)
class PhaseEnergy:
    """What a call of a phase uses.

    Attributes:
        joules: per call.
        low, high: an interval of that.
        is_measured: whether calls are long enough to be measured; otherwise it is a regression.
    """

    path: str
    joules: float
    low: float
    high: float
    is_measured: bool


@dataclass(frozen=True)
class GpuEnergyUse:
    """What the run used on one GPU, by the GPU's own counter.

    Attributes:
        seconds: between the first and the last reading.
        joules: in that time.
        joules_per_step, joules_per_sample: all between steps included.
        phases: joules per call.
    """

    device: int
    uuid: str | None
    seconds: float
    joules: float | None
    joules_per_step: float | None
    joules_per_sample: float | None
    phases: tuple[PhaseEnergy, ...]


class EnergyAspect(Aspect):
    """What GPUs have used, by their own counters."""

    name = "energy"
    section_type = tuple[GpuEnergyUse, ...]
    about = "by GPU."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"energy": tuple(given.get("energy", ()))}

    def read(self, found: Found) -> dict[str, Any]:
        energy = found.document(
            BlockType.ENERGY,
            "what was noted of energy",
            lambda data: decode_energy(data, found.anchor),
        )
        return {"energy": energy or ()}

    def section(self, run: Run) -> tuple[GpuEnergyUse, ...]:
        """What is known of each GPU whose energy was read. Steps count as far as the readings and
        the history reach."""
        return tuple(_use(run, gpu) for gpu in run.energy)

    def summary(self, gpus: tuple[GpuEnergyUse, ...], document: Any) -> Iterable[Part]:
        known = [gpu.joules for gpu in gpus if gpu.joules is not None]
        if known:
            of = "the GPU" if len(known) == 1 else f"{len(known)} GPUs"
            yield Sentence(f"Energy of {of}: {_joules(sum(known))}")

    def parts(self, gpus: tuple[GpuEnergyUse, ...], document: Any) -> Iterable[Part]:
        """Joules per step, per sample and per call of phases. Nothing if no energy was read."""
        for gpu in gpus:
            if gpu.joules is None:
                continue
            yield Sentence()
            yield Sentence(f"Energy of GPU {gpu.device}, by its own counter", "title")
            text = f"{_joules(gpu.joules)} in {gpu.seconds:.1f} s"
            if gpu.seconds > 0:
                text += f", {gpu.joules / gpu.seconds:.0f} W on average"
            if gpu.joules_per_step is not None:
                text += f"; {_joules(gpu.joules_per_step)} per step, all between steps included"
            if gpu.joules_per_sample is not None:
                text += f"; {_joules(gpu.joules_per_sample)} per sample"
            yield Sentence(text)
            for phase in gpu.phases:
                yield Sentence(f"{printable(phase.path)}: {_phase(phase)}")
            if not gpu.phases and document.has_phases:
                yield Sentence(
                    "Energy of phases is unknown: it takes calls of a second, or phases that "
                    "don't always come together",
                    "note",
                )


def _use(run: Run, gpu: GpuEnergy) -> GpuEnergyUse:
    steps = run.steps.closed
    at_begin, at_end = gpu.joules_until(steps["begin_ns"]), gpu.joules_until(steps["end_ns"])
    known = ~np.isnan(at_begin) & ~np.isnan(at_end)
    per_step = per_sample = None
    if known.any():
        joules = float(np.nanmax(at_end[known]) - np.nanmin(at_begin[known]))
        per_step = joules / int(known.sum())
        samples = float(steps["samples"][known].sum())  # NaN where one is unknown
        per_sample = joules / samples if samples > 0 else None
    measured = tuple(_measured(run, gpu))
    fitted = _fitted(run, gpu, {phase.path for phase in measured})
    phases = (*fitted, *measured)
    return GpuEnergyUse(gpu.device, gpu.uuid, gpu.seconds, gpu.joules, per_step, per_sample, phases)


def _measured(run: Run, gpu: GpuEnergy) -> Iterator[PhaseEnergy]:
    spans = run.spans
    is_long = spans["host_end_ns"] - spans["host_begin_ns"] >= SHORTEST_MEASURED_NS
    joules = gpu.joules_until(spans["host_end_ns"]) - gpu.joules_until(spans["host_begin_ns"])
    for path, places in groups(spans["path"]):
        # A mean of the long ones alone would be too high.
        if is_long[places].all() and not np.isnan(joules[places]).all():
            mean = float(np.nanmean(joules[places]))
            yield PhaseEnergy(run.paths[path], mean, mean, mean, is_measured=True)


def _fitted(run: Run, gpu: GpuEnergy, measured: set[str]) -> Iterator[PhaseEnergy]:
    edges_ns = _edges(gpu.samples["time_ns"])
    if len(edges_ns) <= _FEWEST_PIECES:
        return
    # Outermost phases alone: those within have their part of the energy of these.
    outermost = np.flatnonzero(run.path_parents < 0).tolist()
    begins_ns = run.spans["host_begin_ns"]
    calls = {}
    for path in outermost[:_MOST_PHASES]:
        counts = np.histogram(begins_ns[run.spans["path"] == path], edges_ns)[0]
        if counts.any() and run.paths[path] not in measured:
            calls[run.paths[path]] = counts
    freedom = len(edges_ns) - 1 - len(calls) - 1
    if not calls or freedom < _FEWEST_PIECES:
        return
    seconds = np.diff(edges_ns) / 1e9
    design = np.column_stack([seconds, *calls.values()]).astype(np.float64)
    joules = np.diff(gpu.joules_until(edges_ns))
    inverse = np.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ joules
    residual = joules - design @ solution
    errors = np.sqrt(np.diag(inverse) * float(residual @ residual) / freedom)
    # One that the others can stand in for is not determined.
    is_determined = np.abs(np.diag(inverse @ (design.T @ design)) - 1) < 1e-6
    for number, path in enumerate(calls, start=1):
        value, error = float(solution[number]), float(_STANDARD_ERRORS * errors[number])
        if is_determined[number] and value - error > 0:
            yield PhaseEnergy(path, value, value - error, value + error, is_measured=False)


def _edges(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the times that lie a second apart at least."""
    if len(times_ns) < 2:
        return times_ns
    whole_ns = int(times_ns[-1] - times_ns[0])
    piece_ns = max(SHORTEST_MEASURED_NS, whole_ns // _MOST_PIECES)
    numbers = (times_ns - times_ns[0]) // piece_ns
    edges_ns: NDArray[np.int64] = times_ns[np.append(True, np.diff(numbers) > 0)]
    return edges_ns


def _phase(phase: PhaseEnergy) -> str:
    if phase.is_measured:
        return f"{_joules(phase.joules)} per call"
    return (
        f"{_joules(phase.joules)} per call ({_joules(phase.low)} to {_joules(phase.high)}, "
        "by regression)"
    )


def _joules(joules: float) -> str:
    if joules >= 1e4:
        return f"{joules / 1e3:,.1f} kJ"
    return f"{joules:.1f} J" if joules >= 10 else f"{joules:.3g} J"


ASPECT = EnergyAspect()
