# SPDX-License-Identifier: Apache-2.0
"""The watch that has the native module note each collection while a recording goes on, which costs
some 0.1 us each, and asks Python how many there were."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

from pyinstrument_gpu.aspects.garbage_collection import DOCUMENT
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native


class GarbageCollectionWatch(Watcher):
    """The watch on the garbage collector during one recording."""

    name = DOCUMENT
    _is_whole = True
    _is_managed = False

    def begin(self, recording: ActiveRecording) -> None:
        """Note every collection from now on."""
        self._before, self._frozen = gc.get_stats(), gc.get_freeze_count()
        super().begin(recording)
        gc.callbacks.append(native.on_collection)

    def end(self) -> None:
        super().end()
        with contextlib.suppress(ValueError):  # a second call
            gc.callbacks.remove(native.on_collection)

    def document(self) -> dict[str, Any]:
        self._is_whole &= native.on_collection in gc.callbacks
        self._is_managed |= not gc.isenabled() or gc.get_freeze_count() > self._frozen
        generations = [
            {
                "count": now["collections"] - before["collections"],
                "objects": max(0, now["collected"] - before["collected"]),
            }
            for now, before in zip(gc.get_stats(), self._before, strict=True)
        ]
        return {
            "generations": generations,
            "is_whole": self._is_whole,
            "is_managed": self._is_managed,
        }


def watcher(options: object) -> Watcher:
    return GarbageCollectionWatch()
