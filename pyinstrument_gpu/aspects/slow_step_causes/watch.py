# SPDX-License-Identifier: Apache-2.0
"""The watch that has the native module see what holds the threads of steps up, once some steps have
shown what is usual: it costs some milliseconds, once, and then 0.02 % of the time of steps."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from pyinstrument_gpu.aspects.slow_step_causes import DOCUMENT, MOST_TEXT, MOST_THREADS
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native

VARIABLE = "PYINSTRUMENT_GPU_PROC"
"""Names another place than `/proc`."""
_FIRST_STEPS = 10
_TRIES = (10, 100, 1000, 10_000)
"""After so many more steps."""


class HindranceWatch(Watcher):
    """The watch on what holds steps up while one recording goes on."""

    name = DOCUMENT

    def __init__(self) -> None:
        self._proc = Path(os.environ.get(VARIABLE) or "/proc")
        self._seen: dict[str, bool] | None = None
        self._threads: dict[int, str] = {}
        self._targets: dict[int, tuple[str, int, str]] = {}

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        native.call_before_step(self._start, after=_FIRST_STEPS)

    def document(self) -> dict[str, Any] | None:
        if self._seen is None:
            return None
        self._note_threads()
        threads = [*self._threads.items()][-MOST_THREADS:]
        targets = [(one, *self._targets[one]) for one, _ in threads if one in self._targets]
        return {**self._seen, "threads": threads, "targets": targets}

    def _note_threads(self) -> None:
        """Note those of the program that there are now: some have ended when the run does."""
        for thread in threading.enumerate():
            if thread.native_id is None:
                continue
            self._threads[thread.native_id] = thread.name[:MOST_TEXT]
            # Nothing of the program's is asked for anything but whether it is a plain function.
            target = vars(thread).get("_target")
            function = target.__func__ if type(target) is MethodType else target
            self._targets.pop(thread.native_id, None)
            if type(function) is FunctionType:
                code = function.__code__
                place = code.co_filename[-MOST_TEXT:], code.co_firstlineno, code.co_name[:MOST_TEXT]
                self._targets[thread.native_id] = place

    def _start(self) -> None:
        if not self.is_on:
            return
        pressure = pressure_file(self._proc)
        native.watch_host(os.fsencode(pressure or ""))
        self._seen = {"is_gil_seen": False, "has_pressure": pressure is not None}
        self._look_for_gil(_TRIES)

    def _look_for_gil(self, tries: tuple[int, ...]) -> None:
        """Look for the GIL. On a busy machine it may not be found at once."""
        if not self.is_on or self._seen is None:
            return
        self._note_threads()
        self._seen["is_gil_seen"] = native.watch_gil(os.fsencode(self._proc / "self" / "task"))
        if tries and not self._seen["is_gil_seen"]:
            native.call_before_step(partial(self._look_for_gil, tries[1:]), after=tries[0])


def pressure_file(proc: Path, groups: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return where the kernel says for how long memory has made the programs of this process's
    control group wait, or else those of the whole machine; None if nowhere."""
    own = []
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        own = [groups / line[3:].lstrip("/") for line in lines if line.startswith("0::/")]
    except OSError:
        pass
    for path in (*(group / "memory.pressure" for group in own), proc / "pressure" / "memory"):
        try:
            if "total=" in path.read_text():
                return path
        except OSError:
            continue
    return None


def watcher(options: object) -> Watcher:
    return HindranceWatch()
