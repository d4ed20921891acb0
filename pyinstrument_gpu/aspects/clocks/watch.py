# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's clock while one recording goes on, once a second, which costs nothing to speak
of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyinstrument_gpu.aspects.clocks.data import NAME
from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.nvml import ClockReader, GpuReader, reader_in_use
from pyinstrument_gpu.core.watcher import Watcher

INTERVAL_S = 1.0


def _find() -> tuple[int, Callable[[], GpuReader]] | None:
    """To load NVML takes tens of milliseconds, which no step should wait for."""
    return reader_in_use(lambda uuid: partial(ClockReader, uuid))


def watcher(options: object) -> Watcher:
    return GpuPolling(NAME, _find, INTERVAL_S)
