# SPDX-License-Identifier: Apache-2.0
"""The spans of a run, as they ended on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Records, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.core.schema import SPAN_DTYPE

# Spans are converted in chunks whose input and output fit the processor's cache.
_CHUNK = 8192


def known_spans(
    records: Records,
    numbering: StepNumbering,
    path_names: NDArray[np.uint32],
    threads: int,
    state: State,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The spans up to the first that can't be true, and their self times; nothing of a device."""
    spans = np.empty(len(records.items), SPAN_DTYPE)
    self_ns = np.empty(len(spans), np.int64)
    for begin in range(0, len(spans), _CHUNK):
        items = records.items[begin : begin + _CHUNK]
        host_begin_ns = np.ascontiguousarray(items["host_begin_ns"])
        duration_ns = items["host_end_ns"] - host_begin_ns
        own_ns = np.ascontiguousarray(items["self_ns"])
        serials = np.ascontiguousarray(items["step"])
        good = true_prefix(
            numbering.is_certain(serials, state.spans - records.first - begin)
            & (items["path"] < len(path_names))
            & (items["thread"] < threads)
            & (host_begin_ns >= 0)
            & (duration_ns >= 0)
            & (items["host_end_ns"] < TIME_LIMIT_NS)
            & (own_ns >= -1)
            & (own_ns <= duration_ns)
        )
        items = items[:good]
        chunk = spans[begin : begin + good]
        for column in ("host_begin_ns", "host_end_ns", "path", "thread", "depth", "flags"):
            chunk[column] = items[column]
        chunk["phase"] = path_names[items["path"]]
        chunk["step"] = numbering.indices(serials[:good])
        for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
            chunk[column] = -1
        self_ns[begin : begin + good] = own_ns[:good]
        if good < len(serials):
            return spans[: begin + good], self_ns[: begin + good]
    return spans, self_ns
