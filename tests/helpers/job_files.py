# SPDX-License-Identifier: Apache-2.0
"""Small runs of ranks, to be saved as the files of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.core.steps import Steps

ANCHOR = {"run_ns": 0, "monotonic_ns": 10**12, "realtime_ns": 10**18}


def rank_environment(rank: int, world_size: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "host": "box",
        "rank": rank,
        "world_size": world_size,
        "run_id": f"{rank:016x}",
        "anchor": ANCHOR,
        **facts,
    }


def rank_run(
    rank: int,
    times_ns: Mapping[str, Sequence[int]],
    *,
    gap_ns: int = 1_000,
    rest_ns: int = 0,
    environment: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Run:
    """A run of steps whose phases follow each other.

    Args:
        times_ns: of each phase in each step.
        gap_ns: between the end of a step and the next.
        rest_ns: of each step after its last phase.
    """
    paths = list(times_ns)
    table = np.array([times_ns[path] for path in paths], np.int64).T
    spans = np.zeros(table.size, SPAN_DTYPE)
    steps = np.zeros(len(table), STEP_DTYPE)
    steps["index"], steps["samples"], steps["items"] = np.arange(len(table)), math.nan, 1
    steps["complete"] = True
    lengths = np.concatenate([table, np.full((len(table), 1), rest_ns + gap_ns)], axis=1)
    ends_ns = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape) + gap_ns
    begins_ns = ends_ns - lengths
    steps["begin_ns"], steps["end_ns"] = begins_ns[:, 0], ends_ns[:, -1] - gap_ns
    spans["host_begin_ns"] = begins_ns[:, :-1].reshape(-1)
    spans["host_end_ns"] = ends_ns[:, :-1].reshape(-1)
    spans["path"] = spans["phase"] = np.tile(np.arange(len(paths)), len(table))
    spans["step"] = np.repeat(np.arange(len(table)), len(paths))
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        spans[column] = -1
    spans["flags"] = SpanFlag.STEP_THREAD
    made: dict[str, Any] = {
        "names": paths,
        "path_parents": [-1] * len(paths),
        "path_names": range(len(paths)),
        "threads": [Thread(11, "MainThread")],
        "spans": spans,
        "span_self_ns": durations_ns_of(spans, "host_"),
        "steps": Steps(steps),
        "environment": rank_environment(rank) if environment is None else environment,
        "duration_ns": int(ends_ns[-1, -1]) if len(table) else gap_ns,
    }
    return Run(**(made | parts))
