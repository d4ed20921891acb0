# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's energy counter while one recording goes on.

Ten times a second: that needs the GIL for more than a recording otherwise takes, so it has to be
asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyinstrument_gpu.core.bounded_series import BoundedSeries
from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.nvml import EnergyCounter, reader_in_use
from pyinstrument_gpu.core.watcher import Watcher

INTERVAL_S = 0.1
MOST_SAMPLES = 2048
_WRITE_EVERY_S = 5.0

_find = partial(reader_in_use, EnergyCounter)


class EnergyWatch(GpuPolling):
    """The watch on energy while one recording goes on. Arguments are those of `GpuPolling`."""

    def __init__(
        self,
        find: Callable[[], tuple[int, EnergyCounter] | None] = _find,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__("energy", find, interval_s)
        self._uuid = ""
        self._samples = BoundedSeries[tuple[float, ...]](MOST_SAMPLES)
        self._last: tuple[float, ...] = ()
        self._next_write_s = time.monotonic() + _WRITE_EVERY_S

    def took(self, uuid: str, values: Mapping[str, float]) -> None:
        self._uuid = uuid
        self._last = time.monotonic_ns(), *values.values()
        self._samples.add(self._last)
        if time.monotonic() >= self._next_write_s:
            self._next_write_s = time.monotonic() + _WRITE_EVERY_S
            self.write()

    def document(self) -> dict[str, Any] | None:
        samples = [*self._samples.kept]
        if not samples:
            return None
        if self._last not in samples[-1:]:
            samples.append(self._last)
        return {"gpus": [{"device": self.device, "uuid": self._uuid, "samples": samples}]}


def watcher(options: object) -> Watcher:
    return EnergyWatch()
