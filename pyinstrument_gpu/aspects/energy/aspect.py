# SPDX-License-Identifier: Apache-2.0
"""Energy as an aspect of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyinstrument_gpu.aspects.energy import section as sections
from pyinstrument_gpu.aspects.energy.data import decode_energy
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part


class EnergyAspect(Aspect):
    """What GPUs have used, by their own counters."""

    name = "energy"
    section_type = tuple[sections.GpuEnergy, ...]
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

    def section(self, run: Run) -> tuple[sections.GpuEnergy, ...]:
        return sections.energy(run)

    def parts(self, gpus: tuple[sections.GpuEnergy, ...], document: Any) -> Iterable[Part]:
        return sections.energy_section(gpus, document.has_phases)
