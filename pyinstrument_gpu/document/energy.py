# SPDX-License-Identifier: Apache-2.0
"""The section on energy."""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu.analysis.energy import energy_use
from pyinstrument_gpu.model.run_data import RunData


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
class GpuEnergy:
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


def energy(run: RunData) -> tuple[GpuEnergy, ...]:
    return tuple(
        GpuEnergy(
            use.gpu.device,
            use.gpu.uuid,
            use.gpu.seconds,
            use.gpu.joules,
            use.joules_per_step,
            use.joules_per_sample,
            tuple(
                PhaseEnergy(path, phase.joules, phase.low, phase.high, phase.is_measured)
                for path, phase in use.phases.items()
            ),
        )
        for use in energy_use(run)
    )
