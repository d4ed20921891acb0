# SPDX-License-Identifier: Apache-2.0
"""The table of watchers. One more is a file in the folder of its aspect and a row here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.aspects.collectives.watch import CollectiveWatch
from pyinstrument_gpu.aspects.memory.watch import MemoryWatch
from pyinstrument_gpu.aspects.modules.watch import ModuleNotes
from pyinstrument_gpu.aspects.operations.profile_steps import ProfiledRecording
from pyinstrument_gpu.aspects.stalls.watch import StallWatch
from pyinstrument_gpu.core.watcher import Watcher
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.recording.options import RecordingOptions


class _Readings(Watcher):
    """Has the metrics read that the program does not read itself."""

    def write(self) -> None:
        # Only a module that is loaded has metrics.
        accumulators: Any = sys.modules.get("pyinstrument_gpu.metrics.accumulator")
        if accumulators is not None:
            accumulators.record_readings()


def _memory(options: RecordingOptions) -> Watcher | None:
    return MemoryWatch(exact=options.memory == "exact") if options.memory else None


def _energy(options: RecordingOptions) -> Watcher | None:
    if not options.energy:
        return None
    with OwnImports():  # here, as it loads ctypes
        from pyinstrument_gpu.aspects.energy.watch import EnergyWatch

    return EnergyWatch()


WATCHERS: Mapping[str, Callable[[RecordingOptions], Watcher | None]] = {
    "modules": lambda options: ModuleNotes(),
    "operations": lambda options: ProfiledRecording(),
    "readings": lambda options: _Readings(),
    "collectives": lambda options: CollectiveWatch(),
    "memory": _memory,
    "energy": _energy,
    "stalls": lambda options: StallWatch(),
}
"""By name, in the order in which they begin, write and end."""
