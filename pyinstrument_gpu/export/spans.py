# SPDX-License-Identifier: Apache-2.0
"""The spans of a run as a table: a row per span, in the order of `Run.spans`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.run_data import RunData

COLUMNS = (
    *("phase", "path", "step", "depth", "thread", "thread_name", "device", "stream", "stream_name"),
    *("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns", "device_ns"),
    *("blocked_ns", "flags"),
)
"""Those of `SPAN_DTYPE`, with the names of phases and paths for their numbers, those of threads and
streams beside theirs, and the exact stream time."""

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns")


def numbers(run: RunData, rows: slice, column: str, offset_ns: int) -> NDArray[Any]:
    """A column of numbers of some spans; times on the axis that begins `offset_ns` before the
    run."""
    if column == "device_ns":
        return run.span_device_ns[rows]
    values: NDArray[Any] = run.spans[column][rows]
    if column in _TIMES and offset_ns:
        return np.where(values < 0, values, values + offset_ns)
    return values


def text_columns(run: RunData) -> dict[str, tuple[str, list[str]]]:
    """For each column of text the column of `SPAN_DTYPE` that has its numbers, and what they stand
    for; -1 stands for nothing."""
    return {
        "phase": ("phase", list(run.names)),
        "path": ("path", list(run.paths)),
        "thread_name": ("thread", [thread.name for thread in run.threads]),
        "stream_name": ("stream", [stream.name for stream in run.streams]),
    }
