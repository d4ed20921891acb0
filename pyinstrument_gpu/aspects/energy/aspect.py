# SPDX-License-Identifier: Apache-2.0
"""Energy as an aspect of a run: what all of it, a step and a sample cost.

Not what a phase costs: the power that a GPU reports lags behind its work, and its level changes
during a run, so that a phase which uses nothing would be given the energy of what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.aspects.energy.data import GpuEnergy, decode_energy
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence


@dataclass(frozen=True)
class GpuEnergyUse:
    """The energy that the run used on one GPU, by the GPU's own counter.

    Attributes:
        seconds: between the first and the last reading.
        joules: in that time.
        joules_per_step, joules_per_sample: all between steps included.
    """

    device: int
    uuid: str | None
    seconds: float
    joules: float | None
    joules_per_step: float | None
    joules_per_sample: float | None


class EnergyAspect(DocumentAspect[Run, tuple[GpuEnergyUse, ...]]):
    """The energy that GPUs have used, by their own counters."""

    name = noted = "energy"
    block = BlockType.ENERGY
    missing = ()
    comes_first = True
    section_type = tuple[GpuEnergyUse, ...]
    about = "by GPU."

    def decode(self, data: bytes, found: Found) -> tuple[GpuEnergy, ...]:
        return decode_energy(data, found.anchor)

    def section(self, run: Run) -> tuple[GpuEnergyUse, ...]:
        """Return what is known of each GPU whose energy was read. Steps count as far as the
        readings and the history reach."""
        return tuple(_use(run, gpu) for gpu in run.energy)

    def summary(self, gpus: tuple[GpuEnergyUse, ...], document: ReportedRun) -> Iterable[Part]:
        known = [gpu.joules for gpu in gpus if gpu.joules is not None]
        if known:
            of = "the GPU" if len(known) == 1 else f"{len(known)} GPUs"
            yield Sentence(f"Energy of {of}: {_joules(sum(known))}")

    def parts(self, gpus: tuple[GpuEnergyUse, ...], document: ReportedRun) -> Iterable[Part]:
        """Joules per step and per sample. Nothing if no energy was read."""
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
    return GpuEnergyUse(gpu.device, gpu.uuid, gpu.seconds, gpu.joules, per_step, per_sample)


def _joules(joules: float) -> str:
    if joules >= 1e4:
        return f"{joules / 1e3:,.1f} kJ"
    return f"{joules:.1f} J" if joules >= 10 else f"{joules:.3g} J"


ASPECT = EnergyAspect()
