# SPDX-License-Identifier: Apache-2.0
"""Memory as `watch` shows it. A file of its own, as other aspects have one for that."""

from __future__ import annotations

from typing import Any

from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE
from pyinstrument_gpu.core.live import SERIES, LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import UNKNOWN, counted, size


class LiveMemory(LiveView[Run, dict[str, Any]]):
    """Memory at the end of the last step that was read."""

    key = "memory"
    place = 4

    def look(self, run: Run, window: LiveWindow) -> dict[str, Any] | None:
        memory = run.memory
        if memory is None:
            return None
        last: dict[str, int | None] = dict.fromkeys(MEMORY_POINT_DTYPE.names or ())
        if len(memory.points):
            last = dict(zip(last, memory.points[-1].tolist(), strict=True))
        reserved = last["reserved_bytes"]
        return {
            "device": memory.device,
            "step": last["step"],
            "allocated_bytes": last["allocated_bytes"],
            "reserved_bytes": None if reserved is None or reserved < 0 else reserved,
            "peak_bytes": memory.peak_bytes,
            "out_of_memory": memory.out_of_memory_count,
            "series_bytes": tuple(memory.points["allocated_bytes"][-SERIES:].tolist()),
        }

    def heading(self, seen: dict[str, Any] | None) -> tuple[str, str]:
        if seen is None:
            return "", ""
        words = problem = ""
        if seen["allocated_bytes"] is not None:
            where = "process" if seen["device"] is None else f"cuda:{seen['device']}"
            peak = "" if seen["peak_bytes"] is None else f", peak {size(seen['peak_bytes'])}"
            words = f"{where} {size(seen['allocated_bytes'])}{peak}"
        if seen["out_of_memory"]:
            problem = f"out of memory {counted(seen['out_of_memory'], 'time')}"
        return words, problem

    def figure(self, seen: dict[str, Any] | None) -> str:
        allocated = None if seen is None else seen["allocated_bytes"]
        return UNKNOWN if allocated is None else size(allocated)
