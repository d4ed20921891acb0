# SPDX-License-Identifier: Apache-2.0
"""Times Python's garbage collector while a recording goes on."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from typing import Any

from examples.aspect.collector.data import NAME
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native


class CollectorWatch(Watcher):
    """What is learnt of the garbage collector during one recording."""

    def __init__(self) -> None:
        self._begin_ns = 0
        self._count = self._total_ns = self._in_steps_ns = self._longest_ns = 0
        self._longest_step: int | None = None

    def begin(self, recording: ActiveRecording) -> None:
        """Time every collection from now on."""
        super().begin(recording)
        gc.callbacks.append(self._on_collection)

    def end(self) -> None:
        with contextlib.suppress(ValueError):  # a second call
            gc.callbacks.remove(self._on_collection)
        super().end()

    def write(self) -> None:
        document = {
            "count": self._count,
            "total_ns": self._total_ns,
            "in_steps_ns": self._in_steps_ns,
            "longest_ns": self._longest_ns,
            "longest_step": self._longest_step,
        }
        native.set_document(self._recording, NAME, json.dumps(document).encode())

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Python calls it at the beginning and at the end of each collection."""
        if phase == "start":
            self._begin_ns = time.monotonic_ns()
            return
        took_ns = time.monotonic_ns() - self._begin_ns
        step = native.open_place()[1]
        self._count += 1
        self._total_ns += took_ns
        if step >= 0:
            self._in_steps_ns += took_ns
        if took_ns > self._longest_ns:
            self._longest_ns, self._longest_step = took_ns, step if step >= 0 else None


def watcher(options: object) -> Watcher:
    return CollectorWatch()
