# SPDX-License-Identifier: Apache-2.0
"""The spans of a run as a table: a row per span, in the order of `Run.spans`."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.ranges import RangeTable, range_tables_by_key
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import has_device_times

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


def step_times(
    run: RunData, steps: NDArray[np.void]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begins and ends of some steps of the run; one that is open ends where the run does, or where
    it began: that may be after the last sign of life."""
    begin_ns, end_ns = steps["begin_ns"], steps["end_ns"]
    return begin_ns, np.where(end_ns < 0, np.maximum(begin_ns, run.duration_ns), end_ns)


def stream_names(run: RunData) -> list[str]:
    """The names of streams by their number, and last, for -1, that of no stream."""
    return [*(stream.name for stream in run.streams), ""]


def of_threads(run: RunData) -> dict[int, RangeTable]:
    """For each thread that has spans, ascending, these by their times on the host. Their numbers
    are their places in `Run.spans`."""

    def threads(spans: NDArray[np.void]) -> NDArray[np.int64]:
        return spans["thread"].astype(np.int64)

    return dict(range_tables_by_key(run.spans, threads, itemgetter("host_begin_ns", "host_end_ns")))


def of_streams(run: RunData) -> Iterator[tuple[str, RangeTable]]:
    """For each device stream its name, and the spans that have times there, by these. Their numbers
    are their places in `Run.spans`."""
    names = stream_names(run)

    def places(spans: NDArray[np.void]) -> NDArray[np.int64]:
        place = spans["device"].astype(np.int64) << 32 | spans["stream"].astype(np.uint32)
        return np.where(has_device_times(spans), place, -1)

    times = itemgetter("device_begin_ns", "device_end_ns")
    for place, table in range_tables_by_key(run.spans, places, times):
        stream = np.int64(place).astype(np.int32)
        yield f"GPU {place >> 32} {names[stream]}".rstrip(), table
