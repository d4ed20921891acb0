# SPDX-License-Identifier: Apache-2.0
"""The watch that has the native module sample the main thread's stack while a recording goes on,
and writes down the tree of what it has found."""

from __future__ import annotations

import os
import sys
import threading
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
        is_wanted: False where nothing is sampled.
    """

    name = NAME
    _is_sampled = False

    def __init__(self, by_itself: bool = True, is_wanted: bool = True) -> None:
        self._by_itself, self._is_wanted = by_itself, is_wanted

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        if self._is_wanted:
            main = threading.main_thread().ident or 0
            own = os.fsencode(OWN_FOLDER)
            self._is_sampled = native.start_stacks(main, own, self._by_itself)

    def end(self) -> None:
        is_on = self.is_on
        super().end()
        if is_on:
            native.stop_stacks()

    def document(self) -> dict[str, Any] | None:
        if not self._is_wanted:
            return None
        if not self._is_sampled:
            return {"is_sampled": False}
        found = native.stacks()
        functions, places = numbered_places(found["places"], _function)
        return {"is_sampled": True, **found, "places": places, "functions": functions}


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
    return StackWatch(is_wanted=options.stacks)
