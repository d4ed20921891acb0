# SPDX-License-Identifier: Apache-2.0
"""Reads what the kernel counts of processors at the beginning and the end of a recording, and has
the native module read what the thread of each step waits."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyinstrument_gpu.aspects.cpu_contention import kernel_counts
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native

VARIABLE = "PYINSTRUMENT_GPU_PROC"
"""Names another place than `/proc`."""
_TOTALS = {
    "busy_ns": kernel_counts.busy_ns,
    "own_ns": kernel_counts.own_ns,
    "started_ns": kernel_counts.started_ns,
    "throttled_ns": kernel_counts.throttled_ns,
    "pressure_ns": kernel_counts.pressure_ns,
}


class CpuContentionWatch(Watcher):
    """The watch on processors while one recording goes on."""

    name = "processor"

    def begin(self, recording: ActiveRecording) -> None:
        self._proc = Path(os.environ.get(VARIABLE) or "/proc")
        groups = kernel_counts.known(kernel_counts.group_files, self._proc) or []
        native.watch_run_queue(
            os.fsencode(self._proc / "thread-self" / "schedstat"), [*map(os.fsencode, groups)]
        )
        self._first = self._read()
        super().begin(recording)

    def document(self) -> dict[str, Any]:
        first, last = self._first, self._read()
        document: dict[str, Any] = {"processors": len(os.sched_getaffinity(0))}
        document["elapsed_ns"] = last["now_ns"] - first["now_ns"]
        for name in _TOTALS:
            if first[name] is not None and last[name] is not None:
                document[name] = max(0, last[name] - first[name])
        before, waits = first["threads"] or {}, last["threads"] or {}
        grown = {
            number: (name, waited_ns - before.get(number, (name, 0))[1])
            for number, (name, waited_ns) in waits.items()
        }
        if grown:
            name, waited_ns = max(grown.values(), key=lambda one: one[1])
            document |= {"thread": name, "thread_wait_ns": max(0, waited_ns)}
        return document

    def _read(self) -> dict[str, Any]:
        proc = self._proc
        totals = {name: kernel_counts.known(read, proc) for name, read in _TOTALS.items()}
        threads = kernel_counts.known(kernel_counts.thread_waits, proc)
        return {"now_ns": time.monotonic_ns(), "threads": threads, **totals}


def watcher(options: object) -> Watcher:
    return CpuContentionWatch()
