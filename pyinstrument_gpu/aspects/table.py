# SPDX-License-Identifier: Apache-2.0
"""The table of aspects. One more is a folder beside this file and a row here.

It imports none of them, as a recording loads only their watchers, and no numpy.
"""

from __future__ import annotations

from typing import NamedTuple


class AspectRow(NamedTuple):
    """An aspect.

    Attributes:
        package: its folder. Its `aspect.py` has the `ASPECT`.
        watch: the module in it whose function `watcher` makes, of the options of a recording, what
            learns it in Python; empty where nothing does.
        option: of `record` that asks for it; empty: every recording has it. Nothing of what nobody
            asked for is loaded.
    """

    package: str
    watch: str = ""
    option: str = ""


_HERE = "pyinstrument_gpu.aspects"

ASPECTS: tuple[AspectRow, ...] = (
    AspectRow(f"{_HERE}.startup", "watch"),
    AspectRow(f"{_HERE}.loader", "watch"),
    AspectRow(f"{_HERE}.modules", "watch"),
    AspectRow(f"{_HERE}.nonfinite", "watch", "nonfinite"),
    AspectRow(f"{_HERE}.graphs", "watch", "graph_phases"),
    AspectRow(f"{_HERE}.syncs"),
    AspectRow(f"{_HERE}.compilations", "watch"),
    AspectRow(f"{_HERE}.throughput"),
    AspectRow(f"{_HERE}.operations", "profile_steps"),
    AspectRow(f"{_HERE}.stacks", "watch"),
    AspectRow(f"{_HERE}.memory", "watch", "memory"),
    AspectRow(f"{_HERE}.energy", "watch", "energy"),
    AspectRow(f"{_HERE}.gpu_use", "watch"),
    AspectRow(f"{_HERE}.cpu_contention", "watch"),
    AspectRow(f"{_HERE}.garbage_collection", "watch"),
    AspectRow(f"{_HERE}.checkpoints_and_logging", "watch"),
    AspectRow(f"{_HERE}.slow_step_causes", "watch"),
    AspectRow(f"{_HERE}.setup_calls", "watch"),
    AspectRow(f"{_HERE}.scalars", "watch"),
    AspectRow(f"{_HERE}.collectives", "watch"),
    AspectRow(f"{_HERE}.stalls", "watch"),
    AspectRow(f"{_HERE}.loop"),
)
"""In the order in which a report shows them."""
