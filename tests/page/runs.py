# SPDX-License-Identifier: Apache-2.0
"""Runs made by hand for the page."""

from typing import Any

import numpy as np

from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, SyncTotals
from tests.helpers.made_runs import ANCHOR, STREAMS

US = 1_000
MS = 1_000_000
STEP_NS = 10 * MS
HOSTILE = "</script><script>alert(1)</script><!--\u202e'\"&\ud800"


def training(durations_ns: list[int] | None = None, on_device: bool = True, **parts: Any) -> Run:
    """Steps one behind the other, each with "forward" and in it "attention", then "backward", whose
    device work begins 2 ms after the host's, and a wait in "backward"."""
    durations_ns = [STEP_NS] * 20 if durations_ns is None else durations_ns
    spans, steps, waits, self_ns = [], [], [], []
    begin = 3 * MS
    for index, duration in enumerate(durations_ns):
        unit = duration // 10

        def span(path: int, depth: int, at: int, until: int) -> tuple[int, ...]:
            host = begin + at * unit, begin + until * unit  # noqa: B023
            device = tuple(ns + 2 * MS for ns in host) if on_device else (-1, -1)
            stream = (0, 0) if on_device else (-1, -1)
            return (path, path, index, depth, 0, *stream, *host, *device, -1, 1)  # noqa: B023

        spans += [span(1, 1, 1, 3), span(0, 0, 0, 4), span(2, 0, 4, 9)]
        self_ns += [2 * unit, 2 * unit, 5 * unit]
        waits.append((begin + 5 * unit, 3 * unit, 4, 0, 2, index, 0))
        steps.append((index, begin, begin + duration, 16, 1, True, 0))
        begin += duration
    site = SyncSite(
        "/nowhere/train.py",
        57,
        "train",
        SyncKind.ITEM,
        False,
        SyncTotals(len(waits), len(waits), sum(wait[1] for wait in waits), 4 * len(waits)),
    )
    made: dict[str, Any] = {
        "names": ["forward", "attention", "backward"],
        "path_parents": [-1, 0, -1],
        "path_names": [0, 1, 2],
        "threads": [Thread(11, "MainThread")],
        "streams": STREAMS,
        "spans": np.array(spans, SPAN_DTYPE),
        "span_self_ns": np.array(self_ns, np.int64),
        "steps": Steps(np.array(steps, STEP_DTYPE)),
        "syncs": Syncs((site,), np.array(waits, SYNC_DTYPE), ((0, begin),)),
        "duration_ns": begin + 5 * MS,
        "environment": {"host": "box", "command": ["train.py"], "anchor": ANCHOR},
    }
    return Run(**(made | parts))


def metrics(values: list[float]) -> dict[str, Any]:
    """Values of the metric "loss", one in each step."""
    rows = [(i + 1, i, i * MS, 0, value) for i, value in enumerate(values)]
    return {"metric_names": ["loss"], "metrics": np.array(rows, METRIC_DTYPE)}
