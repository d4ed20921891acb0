# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's energy counter while one recording goes on.

Ten times a second: that needs the GIL for more than a recording otherwise takes, so it has to be
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.nvml import EnergyCounter, reader_in_use
from pyinstrument_gpu.core.watcher import Watcher

INTERVAL_S = 0.1


_find = partial(reader_in_use, EnergyCounter)


class EnergyWatch(GpuPolling):
    """What is learnt of energy while one recording goes on. Arguments are those of `GpuPolling`."""

    def __init__(
        self,
        find: Callable[[], tuple[int, EnergyCounter] | None] = _find,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__("energy", find, interval_s)


def watcher(options: object) -> Watcher:
    return EnergyWatch()
