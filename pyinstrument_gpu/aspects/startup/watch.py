# SPDX-License-Identifier: Apache-2.0
"""Notes what a program does before its first step, for the first recording of a process."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from pyinstrument_gpu.aspects.startup import NAME
from pyinstrument_gpu.aspects.startup.log import StartupLog, process_began_ns
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import own_imports

_launched: LaunchWatch | None = None
_is_told = False
"""Whether a recording of this process has it: what comes before a later one is no start-up."""


class LaunchWatch:
    """The start-up of a program that this package starts, which is watched from its first line on,
    whenever its recording begins.

    Args:
        is_whole: whether the recording begins before the first step. What comes before a later one
            is no start-up.
    """

    def __init__(self, is_whole: bool) -> None:
        global _launched
        _launched = self
        self.log = StartupLog() if is_whole else None

    def begin(self) -> None:
        """Watch; the program is about to be loaded. Nothing is raised."""
        if self.log is not None:
            with contextlib.suppress(Exception):
                self.log.begin()

    def program_begins(self) -> None:
        """Note that the first line of the program is about to run."""
        if self.log is not None:
            self.log.program_ns = time.monotonic_ns()


class StartupWatch(Watcher):
    """The watch on a start-up for one recording."""

    name = NAME

    def __init__(self) -> None:
        self._log: StartupLog | None = None
        self._facts: dict[str, Any] = {}

    def first_facts(self) -> dict[str, Any]:
        if _launched is not None:
            has_begun_for_it = _launched.log is not None
        else:
            # In a notebook the process began whenever somebody opened it.
            is_program = hasattr(sys.modules.get("__main__"), "__file__")
            has_begun_for_it = is_program and "ipykernel" not in sys.modules
        if not _is_told and has_begun_for_it:
            self._facts = {"process_ns": process_began_ns()}
        return {name: ns for name, ns in self._facts.items() if ns is not None}

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        global _is_told
        if _is_told:
            return
        _is_told = True
        if _launched is not None:
            self._log = _launched.log
            self._facts["launched_ns"] = own_imports.IMPORTED_NS
        else:
            self._log = StartupLog()
            with contextlib.suppress(Exception):
                self._log.begin()
        self._write_early()

    def _write_early(self) -> None:
        """Write what a run has that is killed: what is known now, before the first step, and behind
        it."""
        self.write()
        native.call_before_step(self._first_step_begins)
        native.call_before_step(self.write, after=1)

    def _first_step_begins(self) -> None:
        self._facts["first_step_ns"] = time.monotonic_ns()
        self.write()

    def document(self) -> dict[str, Any]:
        return {} if self._log is None else {**self._log.facts(), **self._facts}

    def end(self) -> None:
        if self._log is not None:
            self._log.end()
        super().end()


def watcher(options: object) -> Watcher:
    return StartupWatch()
