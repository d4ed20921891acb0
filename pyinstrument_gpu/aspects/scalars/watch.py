# SPDX-License-Identifier: Apache-2.0
"""The watch that has the metrics read that the program does not read itself.

A file of its own, as a recording loads no more of its aspect.
"""

from __future__ import annotations

import sys
from typing import Any

from pyinstrument_gpu.core.watcher import Watcher


class MetricWatch(Watcher):
    """Asks all accumulators for a reading, where somebody is about to look at the run."""

    def write(self) -> None:
        # Only a module that is loaded has metrics.
        accumulators: Any = sys.modules.get("pyinstrument_gpu.metrics.accumulator")
        if accumulators is not None:
            accumulators.record_readings()


def watcher(options: object) -> Watcher:
    return MetricWatch()
