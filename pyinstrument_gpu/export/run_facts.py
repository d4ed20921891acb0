# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself beside its data: for the metadata of exports, and as a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run

_ENVIRONMENT = (
    *("run_id", "host", "rank", "world_size", "pid", "started", "command"),
    *("version", "python", "torch", "cuda", "gpus"),
)

_IN_STATISTICS = (
    *("ring_full", "span_history", "step_history", "disk_error", "device_history"),
    "syncs",
)
"""What was dropped for these causes is missing in the history only."""


def run_facts(run: Run) -> dict[str, Any]:
    """Where the run was recorded, and what is missing, as values for JSON.

    `spans` are those that the run has, and `spans_recorded` those that ended. Where modules were
    watched, `passes` and `passes_recorded` are the same of passes through them.
    """
    passes = {"passes": len(run.module_spans), "passes_recorded": run.modules.passes}
    return {
        **{name: run.environment[name] for name in _ENVIRONMENT if name in run.environment},
        "duration_ns": run.duration_ns,
        "complete": run.complete,
        "spans": len(run.spans),
        "spans_recorded": run.phases_recorded,
        **(passes if run.modules else {}),
        "dropped": _dropped(run),
        "notes": list(run.notes),
    }


def json_text(value: Any) -> bytes:
    """The value as JSON in UTF-8."""
    # Not as ASCII: Perfetto shows the escapes of what is beyond it as they are.
    return without_surrogates(json.dumps(value, ensure_ascii=False)).encode()


def metadata(runs: Sequence[Run]) -> dict[str, Any]:
    """The facts of all runs, in their order, as one object."""
    return {"runs": [run_facts(run) for run in runs]}


def losses(run: Run, is_summary: bool = False) -> str | None:
    """In words what an export of the run lacks, of its history or of its statistics
    (`is_summary`); None if nothing."""
    found = [
        f"{recorded - there:,} of {recorded:,} {what} are missing"
        for what, there, recorded in _counts(run, is_summary)
        if recorded > there
    ]
    causes = {
        cause: count
        for cause, count in _dropped(run).items()
        if not (is_summary and cause in _IN_STATISTICS)
    }
    dropped = ", ".join(f"{cause} {count:,}" for cause, count in causes.items())
    if dropped:
        found.append(f"dropped: {dropped}")
    if not run.complete:
        found.append(f"the recording was not stopped, and ends at {run.duration_ns / 1e9:.3f} s")
    return "; ".join(found) or None


def _counts(run: Run, is_summary: bool) -> Iterator[tuple[str, int, int]]:
    """What can be exported: how many of each there are, and how many were recorded."""
    phases = run.statistics.values()
    if is_summary:
        yield "spans", sum(phase.count for phase in phases), run.phases_recorded
        return
    yield "spans", len(run.spans), run.phases_recorded
    steps = run.step_totals.count + run.profiled_totals.count
    yield "steps", len(run.steps.closed), steps
    device_times = sum(phase.device.count for phase in phases if phase.device is not None)
    yield "device times", int(np.count_nonzero(run.span_device_ns >= 0)), device_times
    yield "passes through modules", len(run.module_spans), run.modules.passes


def _dropped(run: Run) -> dict[str, int]:
    causes = {**run.dropped, "syncs": run.syncs.dropped}
    return {cause: count for cause, count in causes.items() if count}
