# SPDX-License-Identifier: Apache-2.0
"""The spans of a run as a table: a row per span, in the order of `Run.spans`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


# The columns of text, and the column of `SPAN_DTYPE` that has their numbers; -1 is for no text.
_TEXT_NUMBERS = {"phase": "phase", "path": "path", "thread_name": "thread", "stream_name": "stream"}


def texts_of(run: RunData) -> dict[str, Sequence[str]]:
    """For each column of text what its numbers stand for."""
    return {
        "phase": run.names,
        "path": run.paths,
        "thread_name": [thread.name for thread in run.threads],
        "stream_name": [stream.name for stream in run.streams],
    }


def columns(run: RunData, rows: slice, offset_ns: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """The name and the numbers of each column, of some spans; below 0 is missing. Times are on the
    axis that begins `offset_ns` before the run."""
    for column in COLUMNS:
        if column == "device_ns":
            yield column, run.span_device_ns[rows]
            continue
        values = run.spans[_TEXT_NUMBERS.get(column, column)][rows]
        if column in _TIMES and offset_ns:
            values = np.where(values < 0, values, values + offset_ns)
        yield column, values
