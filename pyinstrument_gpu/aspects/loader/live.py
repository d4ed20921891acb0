# SPDX-License-Identifier: Apache-2.0
"""The loop's waits for batches, as `watch` shows them."""

from __future__ import annotations

from typing import Any

from pyinstrument_gpu.analysis.batches import BATCH_PHASE
from pyinstrument_gpu.aspects.loader.stages import LineTree, stages_of, tree_of_phase
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.live import LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import duration, printable, small_percent, time_text

_LEAST_SHARE = 0.05
_STUCK_NS = 2_000_000_000
"""While steps end, no worker is known to hang: what was written down may be long ago."""


class LiveLoader(LiveView[Run, dict[str, Any]]):
    """The share of the window for which the loop waits for batches; and in the whole run, as far as
    written, the longest stage of making a batch, the slowest worker, and workers that hang."""

    key = "loader"
    place = 7

    def look(self, run: Run, window: LiveWindow) -> dict[str, Any]:
        spans = run.spans[run.are_named((BATCH_PHASE,))[run.spans["path"]]]
        spans = spans[window.places_of(spans["step"]) >= 0]
        waits_ns = int(durations_ns_of(spans, "host_").sum())
        steps_ns = int(durations_ns_of(window.steps).sum())
        loaders: Any = () if run.loader is None else run.loader.loaders[:1]
        tree = tree_of_phase(run.stacks, BATCH_PHASE)
        for one in loaders:
            tree = LineTree(one.functions, one.places, one.nodes)
        times_ns = {stage.name: stage.time_ns for stage in stages_of(tree)}
        batch_ns = {
            row.worker: row.making_ns / row.batches
            for one in loaders
            for row in one.rows
            if row.batches
        }
        last_ns = int(run.steps.closed["end_ns"].max(initial=0))
        is_stuck = run.duration_ns - last_ns >= _STUCK_NS
        slowest = max(batch_ns, key=lambda worker: batch_ns[worker], default=None)
        stage = next(iter(times_ns), None)
        return {
            "wait_share": waits_ns / steps_ns if steps_ns else None,
            "stage": stage,
            "stage_share": None if stage is None else times_ns[stage] / sum(times_ns.values()),
            "worker": slowest,
            "worker_batch_ns": None if slowest is None else batch_ns[slowest],
            "hung": [
                {"worker": hung.worker, "for_ns": hung.for_ns}
                for one in loaders
                for hung in one.hung
                if is_stuck
            ],
        }

    def line(self, seen: dict[str, Any]) -> str:
        for one in seen["hung"]:
            return f"worker {one['worker']} of the loader hangs for {time_text(one['for_ns'])}"
        if (seen["wait_share"] or 0.0) < _LEAST_SHARE:
            return ""
        line = f"waits for batches {small_percent(seen['wait_share'], 1)} of the time"
        if seen["stage"] is not None:
            line += f", {small_percent(seen['stage_share'], 1)} of one is {seen['stage']}"
        if seen["worker"] is not None:
            line += f", worker {seen['worker']} is the slowest: {duration(seen['worker_batch_ns'])}"
        return printable(line)
