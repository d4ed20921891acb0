# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's energy counter while one recording goes on.

A daemon thread does it, ten times a second. Each time it needs the GIL for some microseconds, which
is more than a recording otherwise takes. So this has to be asked for.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

from pyinstrument_gpu.aspects.energy.nvml import EnergyCounter, NvmlError, counter_in_use
from pyinstrument_gpu.core.bounded_series import BoundedSeries
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native

INTERVAL_S = 0.1
MOST_SAMPLES = 2048
_WRITE_EVERY_S = 5.0
_STEPS_BETWEEN_LOOKS = 20
_PATIENCE_S = 1.0


class EnergyWatch(Watcher):
    """What is learnt of energy while one recording goes on.

    Args:
        find: a device and its counter, asked between two steps; None: not yet. It may raise
            NvmlError.
        interval_s: seconds between two readings.
    """

    def __init__(
        self,
        find: Callable[[], tuple[int, EnergyCounter] | None] = counter_in_use,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._find = find
        self._interval_s = interval_s
        self._device = -1
        self._counter: EnergyCounter | None = None
        self._samples = BoundedSeries[tuple[int, int]](MOST_SAMPLES)
        self._last: tuple[int, int] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, recording: ActiveRecording) -> None:
        """Read as soon as a GPU is in use, from the beginning of a step on."""
        super().begin(recording)
        native.call_before_step(self._look)

    def end(self) -> None:
        thread = self._thread
        if self._recording is None:
            return
        self._over.set()
        if thread is not None:
            thread.join(_PATIENCE_S)
            if not thread.is_alive():
                self._thread = None
                self.read()
        self.write()
        counter, self._counter = self._counter, None
        if counter is not None and self._thread is None:
            counter.close()
        self._recording = None

    def read(self) -> bool:
        """Read the counter. False where that can't be done any more."""
        counter = self._counter
        if counter is None:
            return False
        try:
            energy_mj = counter.read_mj()
        except NvmlError:
            return False
        self._last = time.monotonic_ns(), energy_mj
        self._samples.add(self._last)
        return True

    def write(self) -> None:
        recording, counter = self._recording, self._counter
        if recording is None or counter is None:
            return
        samples = [*self._samples.kept]
        if self._last is not None and self._last not in samples[-1:]:
            samples.append(self._last)
        gpu = {"device": self._device, "uuid": counter.uuid, "samples": samples}
        native.set_document(recording, "energy", json.dumps({"gpus": [gpu]}).encode())

    def _look(self) -> None:
        if not self.is_on:
            return
        with contextlib.suppress(Exception):  # it is in the middle of the program
            found = self._find()
            if found is None:
                native.call_before_step(self._look, after=_STEPS_BETWEEN_LOOKS)
                return
            self._device, self._counter = found
            self.read()
            self._thread = threading.Thread(
                target=self._run, name="pyinstrument_gpu energy", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        next_write_s = time.monotonic() + _WRITE_EVERY_S
        while not self._over.wait(self._interval_s):
            if not self.read():
                return
            if time.monotonic() >= next_write_s:
                self.write()
                next_write_s = time.monotonic() + _WRITE_EVERY_S


def watcher(options: object) -> Watcher:
    return EnergyWatch()
