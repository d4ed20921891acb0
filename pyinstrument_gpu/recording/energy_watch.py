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
from typing import Protocol

from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.nvml import EnergyCounter, NvmlError, uuid_in_use

INTERVAL_S = 0.1
MOST_SAMPLES = 2048
_WRITE_EVERY_S = 5.0
_STEPS_BETWEEN_LOOKS = 20
_PATIENCE_S = 1.0


class Counter(Protocol):
    """What is read: `EnergyCounter`, or one that is simulated."""

    uuid: str

    def read_mj(self) -> int: ...

    def close(self) -> None: ...


def counter_in_use() -> tuple[int, Counter] | None:
    """The calling thread's current device and its counter; None while CUDA is not in use.

    Raises:
        NvmlError: it has none.
    """
    found = uuid_in_use()
    return None if found is None else (found[0], EnergyCounter(found[1]))


class EnergySeries:
    """Readings of a counter, of bounded length: when there are too many, every second one goes, and
    from then on half as many are kept.

    Args:
        device, uuid: of the GPU.
    """

    def __init__(self, device: int, uuid: str) -> None:
        self._device = device
        self._uuid = uuid
        self._samples: list[tuple[int, int]] = []
        self._every = 1
        self._count = 0

    def add(self, monotonic_ns: int, energy_mj: int) -> None:
        if self._count % self._every == 0:
            self._samples.append((monotonic_ns, energy_mj))
            if len(self._samples) > MOST_SAMPLES:
                del self._samples[1::2]
                self._every *= 2
        self._count += 1

    def facts(self, last: tuple[int, int] | None = None) -> dict[str, object]:
        """What the document says of it, with a last reading beside."""
        samples = [*self._samples]
        if last is not None and (not samples or samples[-1][0] < last[0]):
            samples.append(last)
        return {"gpus": [{"device": self._device, "uuid": self._uuid, "samples": samples}]}


class EnergyWatch:
    """What is learnt of energy while one recording goes on.

    Args:
        find: a device and its counter, asked between two steps; None: not yet. It may raise
            NvmlError.
        interval_s: seconds between two readings.
    """

    def __init__(
        self,
        find: Callable[[], tuple[int, Counter] | None] = counter_in_use,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._find = find
        self._interval_s = interval_s
        self._recording: object = None
        self._counter: Counter | None = None
        self._series: EnergySeries | None = None
        self._last: tuple[int, int] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, recording: object) -> None:
        """Read as soon as a GPU is in use, from the beginning of a step on. After
        `native.start`."""
        self._recording = recording
        native.call_before_step(self._look)

    def end(self) -> None:
        """Read a last time, and write what is known. Before `native.stop`. Again: nothing."""
        recording, thread = self._recording, self._thread
        if recording is None:
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
        counter, series = self._counter, self._series
        if counter is None or series is None:
            return False
        try:
            energy_mj = counter.read_mj()
        except NvmlError:
            return False
        self._last = time.monotonic_ns(), energy_mj
        series.add(*self._last)
        return True

    def write(self) -> None:
        """Bring the document up to date."""
        recording, series = self._recording, self._series
        if recording is not None and series is not None:
            facts = json.dumps(series.facts(self._last)).encode()
            native.set_document(recording, "energy", facts)

    def _look(self) -> None:
        if self._recording is None or self._recording is not native.owner():
            return  # it is over, or that of the process which this one is a fork of
        with contextlib.suppress(Exception):  # it is in the midst of the program
            found = self._find()
            if found is None:
                native.call_before_step(self._look, after=_STEPS_BETWEEN_LOOKS)
                return
            device, self._counter = found
            self._series = EnergySeries(device, self._counter.uuid)
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
