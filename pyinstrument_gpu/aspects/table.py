# SPDX-License-Identifier: Apache-2.0
"""The table of aspects. One more is a folder beside this file and a row here."""

from __future__ import annotations

from pyinstrument_gpu.aspects.collectives.aspect import CollectivesAspect
from pyinstrument_gpu.aspects.energy.aspect import EnergyAspect
from pyinstrument_gpu.aspects.memory.aspect import MemoryAspect
from pyinstrument_gpu.aspects.modules.aspect import ModulesAspect
from pyinstrument_gpu.aspects.operations.aspect import OperationsAspect
from pyinstrument_gpu.aspects.readings.aspect import ReadingsAspect
from pyinstrument_gpu.aspects.stalls.aspect import StallsAspect
from pyinstrument_gpu.aspects.syncs.aspect import SyncsAspect
from pyinstrument_gpu.core.aspect import Aspect

ASPECTS: tuple[Aspect, ...] = (
    ModulesAspect(),
    SyncsAspect(),
    OperationsAspect(),
    MemoryAspect(),
    EnergyAspect(),
    ReadingsAspect(),
    CollectivesAspect(),
    StallsAspect(),
)
"""In the order in which a report shows them."""
