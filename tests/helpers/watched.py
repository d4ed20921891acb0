# SPDX-License-Identifier: Apache-2.0
"""Runs that are being recorded, as `watch` sees them: made by hand, on clocks made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.record import OpenPhase, Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, SyncTotals
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.watch import WatchedRun
from tests.helpers.run_writer import save

MS = 1_000_000
S = 1000 * MS
BEGAN_NS = 500 * S
"""When the runs began, by the monotonic clock of their machine."""
BOOTED_NS = 1_700_000_000 * S

STEP_NS = 100 * MS


def clocks_at(run_ns: int, host: str = "box") -> MachineClocks:
    """The clocks of the machine when the run is so old."""
    monotonic_ns = BEGAN_NS + run_ns
    return MachineClocks(host, monotonic_ns, monotonic_ns, BOOTED_NS + monotonic_ns)


def anchor_at(run_ns: int) -> dict[str, int]:
    now = clocks_at(run_ns)
    return {
        "run_ns": run_ns,
        "monotonic_ns": now.monotonic_ns,
        "monotonic_raw_ns": now.monotonic_ns,
        "realtime_ns": now.realtime_ns,
    }


def running(count: int = 5, scale: float = 1.0, **changes: Any) -> Run:
    """A run with so many steps of 100 ms, and one that is open for 60 ms, in backward/allreduce.

    Each step has forward (30 ms; the last step's 60), backward (50 ms) and in it allreduce (20 ms),
    and before the first step there was load (40 ms). A line waits 10 ms in each step. There is a
    metric of which the last value is not a number.
    """
    begin_ns = 50 * MS
    begins_ns = [begin_ns + i * STEP_NS for i in range(count + 1)]
    step_rows = [(i, t, t + STEP_NS, 32, 1, True, 0) for i, t in enumerate(begins_ns[:-1])]
    spans = [(0, 0, -1, 0, 0, -1, -1, 5 * MS, 45 * MS, -1, -1, -1, 0)]
    waits = []
    for i, t in enumerate(begins_ns[:-1]):
        forward_ns = int((60 if i == count - 1 else 30) * MS * scale)
        for path, depth, begin, end in (
            (1, 0, 0, forward_ns),
            (3, 1, 70 * MS, 90 * MS),
            (2, 0, 45 * MS, 95 * MS),
        ):
            where = (path, path, i, depth, 0, -1, -1)
            spans.append((*where, t + begin, t + end, -1, -1, -1, 1))
        waits.append((t + 5 * MS, 10 * MS, 4, 0, 1, i, 0))
    now_ns = begins_ns[-1] + 60 * MS
    site = SyncSite("/w/train.py", 57, "train", SyncKind.ITEM, False)
    totals = SyncTotals(len(waits), len(waits), 10 * MS * len(waits), 4 * len(waits))
    metrics = [(i, i, t, 0, 2.5 - i / 10) for i, t in enumerate(begins_ns[:-1])]
    metrics.append((count, count, now_ns - MS, 0, float("nan")))
    made: dict[str, Any] = {
        "names": ["load", "forward", "backward", "allreduce"],
        "path_parents": [-1, -1, -1, 2],
        "path_names": [0, 1, 2, 3],
        "threads": [Thread(11, "MainThread")],
        "spans": np.array(spans, SPAN_DTYPE),
        "steps": Steps.with_open(
            np.array(step_rows, STEP_DTYPE), Step(count, begins_ns[-1], -1, 32.0, 1, False, 0)
        ),
        "open_step": Step(count, begins_ns[-1], -1, 32.0, 1, False, 0),
        "open_phases": (
            OpenPhase("backward", 0, begins_ns[-1] + 45 * MS, count, 0),
            OpenPhase("backward/allreduce", 0, begins_ns[-1] + 50 * MS, count, 1),
        ),
        "syncs": Syncs(
            (replace(site, totals=totals),), np.array(waits, SYNC_DTYPE), ((0, now_ns),)
        ),
        "metric_names": ["loss"],
        "metrics": np.array(metrics, METRIC_DTYPE),
        "environment": {
            "host": "box",
            "pid": 4242,
            "cwd": "/w",
            "command": ["python", "train.py"],
            "run_id": "00000000000000aa",
            "anchor": anchor_at(0),
        },
        "anchor": anchor_at(now_ns),
        "duration_ns": now_ns,
        "harvester_cpu_ns": now_ns // 100,
        "complete": False,
    }
    environment = made["environment"] | changes.pop("environment", {})
    return Run(**(made | changes | {"environment": environment}))


def finished(count: int = 5, **changes: Any) -> Run:
    """The same, when it has ended."""
    run = running(count)
    closed = {"steps": Steps(run.steps.closed), "open_step": None, "open_phases": ()}
    return running(count, **(closed | {"complete": True} | changes))


def replace_file(run: Run, path: Path) -> None:
    """Write what the run is by now. As another file: made-up ones don't grow."""
    path.unlink(missing_ok=True)
    save(run, path)


def watched(path: Path, state: ProcessState = ProcessState.ALIVE) -> WatchedRun:
    return WatchedRun(path, lambda pid, began_ns, clocks: state)


def live(
    run: Run,
    path: Path,
    later_ns: int = 0,
    state: ProcessState = ProcessState.ALIVE,
    host: str = "box",
) -> LiveRun:
    """What is seen of a run so long after its last heartbeat."""
    save(run, path)
    watching = watched(path, state)
    look = watching.look(clocks_at(run.duration_ns + later_ns, host))
    watching.close()
    assert isinstance(look, LiveRun)
    return look
