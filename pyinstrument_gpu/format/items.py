# SPDX-License-Identifier: Apache-2.0
"""The items of logs whose items all have one size. See docs/run-file.md for what they mean."""

from __future__ import annotations

import numpy as np

NONE = 0xFFFFFFFF
"""No step, no parent."""

PATH_ITEM = np.dtype([("parent", "<u4"), ("name", "<u4")])
DROPPED_STEP_ITEM = np.dtype("<u4")
STEP_ITEM = np.dtype(
    [
        ("serial", "<u4"),
        ("thread", "<u4"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("samples", "<f8"),
        ("items", "<u4"),
        ("flags", "<u4"),
    ]
)
SPAN_ITEM = np.dtype(
    [
        ("host_begin_ns", "<i8"),
        ("host_end_ns", "<i8"),
        ("self_ns", "<i8"),
        ("step", "<u4"),
        ("path", "<u4"),
        ("thread", "<u4"),
        ("depth", "<u2"),
        ("flags", "<u2"),
    ]
)
METRIC_ITEM = np.dtype(
    [
        ("update", "<u8"),
        ("host_ns", "<i8"),
        ("value", "<f8"),
        ("name", "<u4"),
        ("step", "<u4"),
    ]
)
STEP_COMPLETE = 1
DEVICE_TIME_ITEM = np.dtype([("where", "<u8"), ("begin_ns", "<i8"), ("duration_ns", "<i8")])
SPAN_INDEX_BITS = 40
"""The lowest bits of `where` are a span's index; then come 16 bits of its stream, 8 of flags."""
NO_STREAM = 0xFFFF
TIME_UNFINISHED = 1
STREAM_ITEM = np.dtype([("handle", "<u8"), ("device", "<u4"), ("flags", "<u4")])
DEVICE_CLOCK_ITEM = np.dtype(
    [
        ("device", "<u4"),
        ("pad", "<u4"),
        ("device_ns", "<i8"),
        ("run_ns", "<i8"),
        ("uncertainty_ns", "<i8"),
    ]
)
SYNC_ITEM = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("bytes", "<u8"),
        ("site", "<u4"),
        ("path", "<u4"),
        ("step", "<u4"),
        ("thread", "<u4"),
    ]
)
