# SPDX-License-Identifier: Apache-2.0
"""The spans of a run as a table: a row per span, in the order of `Run.spans`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.groups import groups

COLUMNS = (
    *("phase", "path", "step", "depth", "thread", "thread_name", "device", "stream"),
    *("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns", "blocked_ns", "flags"),
)
"""Those of `SPAN_DTYPE`, with the names of phases and paths for their numbers, and of threads
beside theirs."""

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns")


def numbers(spans: NDArray[np.void], column: str, offset_ns: int) -> NDArray[Any]:
    """A column of `SPAN_DTYPE`; times on the axis that begins `offset_ns` before the run."""
    values: NDArray[Any] = spans[column]
    if column in _TIMES and offset_ns:
        return np.where(values < 0, values, values + offset_ns)
    return values


def has_device_times(spans: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether it is known when each began and ended on its device."""
    begin_ns, end_ns = spans["device_begin_ns"], spans["device_end_ns"]
    known: NDArray[np.bool_] = (begin_ns >= 0) & (end_ns >= begin_ns)
    return known


def streams(spans: NDArray[np.void]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """For each device stream its name, and which spans have times there."""
    timed = np.flatnonzero(has_device_times(spans))
    place = spans["device"][timed].astype(np.int64) << 32 | spans["stream"][timed].astype(np.uint32)
    for _, members in groups(place):
        device, stream = spans[["device", "stream"]][timed[members[0]]].item()
        parts = (("GPU", device), ("stream", stream))
        name = " ".join(f"{what} {number}" for what, number in parts if number >= 0)
        yield name or "GPU", timed[members]
