# SPDX-License-Identifier: Apache-2.0
"""Reads how a GPU is used while one recording goes on, once a second: a dozen calls, each of which
needs the GIL, and some 0.3 ms of processor time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyinstrument_gpu.aspects.gpu_use import NAME
from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.gpu_readings import name_of
from pyinstrument_gpu.core.watcher import Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import can_use_cuda, torch_with_cuda
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.core.nvml import GpuReader

INTERVAL_S = 1.0
READINGS_PER_INTERVAL = 2048
"""After so many the interval doubles: half an hour at 1 s, an hour at 2 s, two at 4 s, and so on.
Ten days make 16,000 readings of at most a dozen values, 7 MB of a log that has room for 32."""

_Find = Callable[[], "tuple[int, GpuReader | Callable[[], GpuReader]] | None"]


def _find() -> tuple[int, Callable[[], GpuReader]] | None:
    """Return a way to load NVML, which takes tens of milliseconds that no step should wait for."""
    if not can_use_cuda():
        raise RuntimeError("there will be no GPU")
    if torch_with_cuda() is None:
        return None
    with OwnImports():
        from pyinstrument_gpu.core.nvml import UseReader, reader_in_use
    return reader_in_use(lambda uuid: partial(UseReader, uuid))


class UseWatch(GpuPolling):
    """The watch on a GPU's use while one recording goes on. Arguments are those of `GpuPolling`."""

    def __init__(self, find: _Find = _find, interval_s: float = INTERVAL_S) -> None:
        super().__init__(NAME, find, interval_s)
        self._count = 0

    def took(self, uuid: str, values: Mapping[str, float]) -> None:
        self._count += 1
        if self._count % READINGS_PER_INTERVAL == 0:
            self.interval_s *= 2
        # Its step is known by the time: no step waits for the thread, nor the other way round.
        native.append_reading(
            self._count,
            [(name_of(self.device, quantity), value, None) for quantity, value in values.items()],
        )


def watcher(options: object) -> Watcher:
    return UseWatch()
