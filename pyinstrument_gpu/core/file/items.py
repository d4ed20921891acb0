# SPDX-License-Identifier: Apache-2.0
"""The items of logs whose items all have one size. See docs/run-file.md for what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def item_dtype(**columns: str) -> np.dtype[Any]:
    """Return the dtype of items that follow each other in a file, in its byte order."""
    return np.dtype([(name, f"<{number}") for name, number in columns.items()])


NONE = 0xFFFFFFFF
"""No step, no parent."""

PATH_ITEM = item_dtype(parent="u4", name="u4")
DROPPED_STEP_ITEM = np.dtype("<u4")
STEP_ITEM = item_dtype(
    serial="u4", thread="u4", begin_ns="i8", end_ns="i8", samples="f8", items="u4", flags="u4"
)
STEP_COMPLETE = 1
STEP_SAMPLED = 2
"""Modules were timed in some steps; the upper bits say for how many steps this one stands."""
STEP_PROFILED = 4
STEP_WEIGHT_SHIFT = 8
SPAN_ITEM = item_dtype(
    host_begin_ns="i8",
    host_end_ns="i8",
    self_ns="i8",
    step="u4",
    path="u4",
    thread="u4",
    depth="u2",
    flags="u2",
)
METRIC_ITEM = item_dtype(update="u8", host_ns="i8", value="f8", name="u4", step="u4")
DEVICE_TIME_ITEM = item_dtype(where="u8", begin_ns="i8", duration_ns="i8")
SPAN_INDEX_BITS = 40
"""The lowest bits of `where` are a span's index; then come 16 bits of its stream, 8 of flags."""
NO_STREAM = 0xFFFF
TIME_UNFINISHED = 1
STREAM_ITEM = item_dtype(handle="u8", device="u4", flags="u4")
DEVICE_CLOCK_ITEM = item_dtype(
    device="u4", pad="u4", device_ns="i8", run_ns="i8", uncertainty_ns="i8"
)
SYNC_ITEM = item_dtype(
    begin_ns="i8", duration_ns="i8", bytes="u8", site="u4", path="u4", step="u4", thread="u4"
)

GRAPH_PHASE_ITEM = item_dtype(
    begin_ns="i8", duration_ns="i8", path="u4", step="u4", graph="u4", run="u4"
)

COLLECTIVE_ITEM = item_dtype(
    created_ns="i8",
    started_ns="i8",
    ended_ns="i8",
    duration_ns="i8",
    sequence="i8",
    bytes="i8",
    group="u4",
    operation="u2",
    flags="u2",
)
CAUSE_ITEM = item_dtype(begin_ns="i8", time_ns="i8", step="u4", thread="u4", kind="u4", note="u4")
COLLECTIVE_P2P = 1
COLLECTIVE_WAIT = 2
"""Not an operation, but a time in which the program waited for one."""


def columns(items: NDArray[Any], dtype: np.dtype[Any], **others: Any) -> NDArray[np.void]:
    """Items of a log as `dtype`, or what is `dtype` as items: the columns of the same name, and the
    others as they are given."""
    table = np.empty(len(items), dtype)
    for name in table.dtype.names or ():
        table[name] = others[name] if name in others else items[name]
    return table
