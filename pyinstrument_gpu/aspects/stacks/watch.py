# SPDX-License-Identifier: Apache-2.0
"""Has the native module sample the main thread's stack while a recording goes on, and writes down
the tree of what it has found."""

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
    """What is learnt of stacks while one recording goes on.

    Args:
        by_itself: whether samples are taken. Otherwise they are where `native.sample_stack` is
            called.
    """

    name = NAME
    _is_sampled = False

    def __init__(self, by_itself: bool = True) -> None:
        self._by_itself = by_itself

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        main = threading.main_thread().ident or 0
        self._is_sampled = native.start_stacks(main, os.fsencode(OWN_FOLDER), self._by_itself)

    def end(self) -> None:
        is_on = self.is_on
        super().end()
        if is_on:
            native.stop_stacks()

    def document(self) -> dict[str, Any]:
        if not self._is_sampled:
            return {"is_sampled": False}
        found = native.stacks()
        functions, places = numbered_places(found["places"], _function)
        return {"is_sampled": True, **found, "places": places, "functions": functions}


def _function(code: CodeType) -> tuple[str, str]:
    """Its file, as users know it, and its name."""
    file = code.co_filename
    # Without torch it can't tell what is the program.
    frames: Any = sys.modules.get("pyinstrument_gpu.patching.program_frames")
    if frames is not None:
        file = frames.cell_of(file) or file
    name: str = getattr(code, "co_qualname", code.co_name)
    return file[-MOST_TEXT:], name[:MOST_TEXT]


def watcher(options: object) -> Watcher:
    return StackWatch()
