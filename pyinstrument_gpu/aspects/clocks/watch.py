# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's clock while one recording goes on, once a second, which costs nothing to speak
of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyinstrument_gpu.aspects.clocks import NAME
from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.watcher import Watcher
from pyinstrument_gpu.patching.import_hook import torch_with_cuda

if TYPE_CHECKING:
    from pyinstrument_gpu.core.nvml import GpuReader

INTERVAL_S = 1.0


def _find() -> tuple[int, Callable[[], GpuReader]] | None:
    """To load NVML takes tens of milliseconds, which no step should wait for."""
    if torch_with_cuda() is None:
        return None
    from pyinstrument_gpu.core.nvml import ClockReader, reader_in_use

    return reader_in_use(lambda uuid: partial(ClockReader, uuid))


def watcher(options: object) -> Watcher:
    return GpuPolling(NAME, _find, INTERVAL_S)
