# SPDX-License-Identifier: Apache-2.0
"""What a report says of energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.aspects.energy.section import GpuEnergy, PhaseEnergy
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import printable


def energy_section(gpus: Sequence[GpuEnergy], has_phases: bool) -> Iterator[Sentence]:
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
        if not gpu.phases and has_phases:
            yield Sentence(
                "Energy of phases is unknown: it takes calls of a second, or phases that "
                "don't always come together",
                "note",
            )


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
