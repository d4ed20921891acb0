# SPDX-License-Identifier: Apache-2.0
"""Reads something of a GPU again and again, while one recording goes on.

A daemon thread does it. Each time it needs the GIL for some microseconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.bounded_series import BoundedSeries
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native

if TYPE_CHECKING:  # it loads ctypes
    from pyinstrument_gpu.core.nvml import GpuReader

MOST_SAMPLES = 2048
_WRITE_EVERY_S = 5.0
_STEPS_BETWEEN_LOOKS = 20
_PATIENCE_S = 1.0


class GpuPolling(Watcher):
    """The readings of the GPU that is in use, in a document of the run file.

    Args:
        name: of the document.
        find: a device and its reader, or what makes that on the thread, as it may take long; asked
            between two steps; None: not yet. It may raise NvmlError.
        interval_s: seconds between two readings.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], tuple[int, GpuReader | Callable[[], GpuReader]] | None],
        interval_s: float,
    ) -> None:
        self.name = name
        self._find = find
        self._interval_s = interval_s
        self._device = -1
        self._reader: GpuReader | None = None
        self._samples = BoundedSeries[tuple[int, ...]](MOST_SAMPLES)
        self._last: tuple[int, ...] | None = None
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
        reader, self._reader = self._reader, None
        if reader is not None and self._thread is None:
            reader.close()
        self._recording = None

    def read(self) -> bool:
        """Read it once more. False where that can't be done any more."""
        reader = self._reader
        if reader is None:
            return False
        try:
            values = reader.read()
        except Exception:  # NvmlError
            return False
        self._last = time.monotonic_ns(), *values
        self._samples.add(self._last)
        return True

    def document(self) -> dict[str, Any] | None:
        reader = self._reader
        if reader is None:
            return None
        samples = [*self._samples.kept]
        if self._last is not None and self._last not in samples[-1:]:
            samples.append(self._last)
        return {"gpus": [{"device": self._device, "uuid": reader.uuid, "samples": samples}]}

    def _look(self) -> None:
        if not self.is_on:
            return
        with contextlib.suppress(Exception):  # it is in the middle of the program
            found = self._find()
            if found is None:
                native.call_before_step(self._look, after=_STEPS_BETWEEN_LOOKS)
                return
            self._device, reader = found
            if not callable(reader):
                self._reader = reader
                self.read()
            self._thread = threading.Thread(
                target=self._run, args=(reader,), name=f"pyinstrument_gpu {self.name}", daemon=True
            )
            self._thread.start()

    def _run(self, reader: GpuReader | Callable[[], GpuReader]) -> None:
        if callable(reader):
            try:
                self._reader = reader()
            except Exception:  # NvmlError
                return
            self.read()
        next_write_s = time.monotonic() + _WRITE_EVERY_S
        while not self._over.wait(self._interval_s):
            if not self.read():
                return
            if time.monotonic() >= next_write_s:
                self.write()
                next_write_s = time.monotonic() + _WRITE_EVERY_S
