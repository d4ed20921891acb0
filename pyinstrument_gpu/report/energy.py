# SPDX-License-Identifier: Apache-2.0
"""What a report says of energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from pyinstrument_gpu.analysis.energy import PhaseEnergy, energy_use
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import printable


def energy_section(run: RunData) -> Iterator[Text]:
    """Joules per step, per sample and per call of phases. Nothing if no energy was read."""
    for use in energy_use(run):
        joules = use.gpu.joules
        if joules is None:
            continue
        yield Text()
        yield Text(f"Energy of GPU {use.gpu.device}, by its own counter", "bold")
        text = f"{_joules(joules)} in {use.gpu.seconds:.1f} s"
        if use.gpu.seconds > 0:
            text += f", {joules / use.gpu.seconds:.0f} W on average"
        if use.joules_per_step is not None:
            text += f"; {_joules(use.joules_per_step)} per step, all between steps included"
        if use.joules_per_sample is not None:
            text += f"; {_joules(use.joules_per_sample)} per sample"
        yield Text(text)
        for path, phase in use.phases.items():
            yield Text(f"{printable(path)}: {_phase(phase)}")
        if not use.phases and run.phases:
            yield Text(
                "Energy of phases is unknown: it takes calls of a second, or phases that "
                "don't always come together",
                "dim",
            )


def energy_facts(run: RunData) -> list[dict[str, Any]]:
    """The same numbers, for JSON."""
    return [
        {
            "device": use.gpu.device,
            "uuid": use.gpu.uuid,
            "joules": use.gpu.joules,
            "seconds": use.gpu.seconds,
            "joules_per_step": use.joules_per_step,
            "joules_per_sample": use.joules_per_sample,
            "phases": [{"path": path, **asdict(phase)} for path, phase in use.phases.items()],
        }
        for use in energy_use(run)
    ]


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
