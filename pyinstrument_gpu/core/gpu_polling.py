# SPDX-License-Identifier: Apache-2.0
"""Reads something of a GPU again and again, while one recording goes on.

A daemon thread does it, which nobody waits for longer than a second: a call of the driver may hang.
Without a GPU there is none, and nothing is looked for after the first step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native

if TYPE_CHECKING:  # it loads ctypes
    from pyinstrument_gpu.core.nvml import GpuReader

_STEPS_BETWEEN_LOOKS = 20
_PATIENCE_S = 1.0


class GpuPolling(Watcher):
    """The readings of the GPU that is in use. A subclass overrides `took`.

    Args:
        name: of its thread, and of its document if it has one.
        find: a device and its reader, or what makes that on the thread, as it may take long; asked
            between two steps; None: not yet. It raises NvmlError where there will be none.
        interval_s: seconds between two readings.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], tuple[int, GpuReader | Callable[[], GpuReader]] | None],
        interval_s: float,
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.device = -1
        self._find = find
        self._reader: GpuReader | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, recording: ActiveRecording) -> None:
        """Read as soon as a GPU is in use, from the beginning of a step on."""
        super().begin(recording)
        native.call_before_step(self._look)

    def end(self) -> None:
        """Have the thread read it once more, and end."""
        if self._recording is None:
            return
        self._over.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        super().end()

    def read(self) -> bool:
        """Read it once more. False where that can't be done any more."""
        reader = self._reader
        if reader is None:
            return False
        try:
            values = reader.read()
        except Exception:  # NvmlError
            return False
        if self.is_on:  # the driver may have kept it for longer than the recording
            self.took(reader.uuid, values)
        return True

    def took(self, uuid: str, values: Mapping[str, float]) -> None:
        """Take the current values of the GPU with this UUID."""
        raise NotImplementedError

    def _look(self) -> None:
        if not self.is_on:
            return
        with contextlib.suppress(Exception):  # it is in the middle of the program
            found = self._find()
            if found is None:
                native.call_before_step(self._look, after=_STEPS_BETWEEN_LOOKS)
                return
            self.device, reader = found
            if not callable(reader):
                self._reader = reader
                self.read()
            self._thread = threading.Thread(
                target=self._run, args=(reader,), name=f"pyinstrument_gpu {self.name}", daemon=True
            )
            self._thread.start()

    def _run(self, reader: GpuReader | Callable[[], GpuReader]) -> None:
        with contextlib.suppress(Exception):  # NvmlError: the GPU can't be read
            if callable(reader):
                self._reader = reader()
                self.read()
            is_over = False
            while not is_over:
                is_over = self._over.wait(self.interval_s)
                if not self.read():
                    break
        if self._reader is not None:
            self._reader.close()
