# SPDX-License-Identifier: Apache-2.0
"""The watch that has the native module sample the main thread's stack while a recording goes on,
and writes down the tree of what it has found."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from types import CodeType
from typing import Any

from pyinstrument_gpu.aspects.stacks import MOST_TEXT, NAME
from pyinstrument_gpu.core.record import numbered_places
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER


class StackWatch(Watcher):
    """The watch on stacks while one recording goes on.

    Args:
        by_itself: whether samples are taken. Otherwise they are where `native.sample_stack` is
            called.
        is_asked: whether they are taken in any case. Otherwise only in the phase "data", once it is
            known that the loop makes its batches itself.
    """

    name = NAME
    _is_sampled = False

    def __init__(self, by_itself: bool = True, is_asked: bool = True) -> None:
        self._by_itself, self._is_asked = by_itself, is_asked

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        if self._is_asked:
            self._start()

    def program_is(self, facts: Mapping[str, Any]) -> None:
        is_own_loader = not self._is_asked and facts.get("loader_workers") == 0
        if self.is_on and is_own_loader and not self._is_sampled:
            self._start(native.gpu_phase("data"))

    def _start(self, *phase: Any) -> None:
        main = threading.main_thread().ident or 0
        own = os.fsencode(OWN_FOLDER)
        self._is_sampled = native.start_stacks(main, own, self._by_itself, *phase)

    def end(self) -> None:
        is_on = self.is_on
        super().end()
        if is_on:
            native.stop_stacks()

    def document(self) -> dict[str, Any] | None:
        if not self._is_sampled:
            return {"is_sampled": False} if self._is_asked else None
        found = native.stacks()
        functions, places = numbered_places(found["places"], _function)
        known = {"is_sampled": True, "is_asked": self._is_asked}
        return {**known, **found, "places": places, "functions": functions}


def _function(code: CodeType) -> tuple[str, str]:
    """Return the function's file, as users know it, and its name."""
    file = code.co_filename
    # Without torch it can't tell what is the program.
    frames: Any = sys.modules.get("pyinstrument_gpu.patching.program_frames")
    if frames is not None:
        file = frames.cell_of(file) or file
    name: str = getattr(code, "co_qualname", code.co_name)
    return file[-MOST_TEXT:], name[:MOST_TEXT]


def watcher(options: Any) -> Watcher:
    return StackWatch(is_asked=options.stacks)
