# SPDX-License-Identifier: Apache-2.0
"""CPU contention as `watch` shows it. A file of its own, as other aspects have one for that."""

from __future__ import annotations

import numpy as np

from pyinstrument_gpu.analysis.contention import LARGE_SHARE, step_waits_ns, waited_for_processor
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.live import LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run


class LiveContention(LiveView[Run, dict[str, float | None]]):
    """The time for which the steps of the window waited for a processor."""

    key = "cpu_contention"
    place = 6

    def look(self, run: Run, window: LiveWindow) -> dict[str, float | None]:
        waits_ns = step_waits_ns(run, window.steps)
        is_known = ~np.isnan(waits_ns)
        times_ns = durations_ns_of(window.steps)[is_known]
        time_ns = float(times_ns.sum())
        return {"wait_share": float(waits_ns[is_known].sum()) / time_ns if time_ns else None}

    def heading(self, seen: dict[str, float | None]) -> tuple[str, str]:
        share = seen["wait_share"]
        if share is None or share < LARGE_SHARE:
            return "", ""
        return "", waited_for_processor(share)
