# SPDX-License-Identifier: Apache-2.0
"""The device times of spans, items of a log of their own, each of which names its span.

An item whose span or stream is missing is left out, and a time whose device has no clock point has
no place on the run's axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.blocks import true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import NO_STREAM, SPAN_INDEX_BITS, TIME_UNFINISHED
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.record import Stream
from pyinstrument_gpu.core.schema import SpanFlag

_STREAM_MASK = np.uint64(0xFFFF)
_STREAM_SHIFT = np.uint64(SPAN_INDEX_BITS)
_FLAGS_SHIFT = np.uint64(SPAN_INDEX_BITS + 16)
_SPAN_MASK = np.uint64((1 << SPAN_INDEX_BITS) - 1)


@dataclass(frozen=True)
class DeviceTimes:
    """The device times of the spans that are there.

    Attributes:
        kept: how many items of the log make sense, from its first on.
        orphans: how many of those were left out: their span or stream is missing.
        span: for each item that was not left out the position of its span.
        number: for the same items their position in the log.
        device_ns: for each span its device time, -1 unknown.
        device_clock_ns: for each span its begin by the device's clock, -1 unknown.
        unplaced: number of spans with a device time and no place on the run's axis.
    """

    kept: int
    orphans: int
    span: NDArray[np.int64]
    number: NDArray[np.intp]
    device_ns: NDArray[np.int64]
    device_clock_ns: NDArray[np.int64]
    unplaced: int


def apply_device_times(
    items: NDArray[np.void],
    spans: NDArray[np.void],
    first_span: int,
    streams: Sequence[Stream],
    clocks: Sequence[DeviceClock],
) -> DeviceTimes:
    """Fill the device columns and `flags` of spans from the items of a DEVICE_TIMES log.

    `first_span` is the index of the first of the spans in the whole run.
    """
    position = span_indices(items) - first_span
    stream = (items["where"] >> _STREAM_SHIFT & _STREAM_MASK).astype(np.int64)
    flags = items["where"] >> _FLAGS_SHIFT
    inside = (position >= 0) & (position < len(spans))
    timed = flags == 0
    possible = ~timed | (
        (items["begin_ns"] >= 0)
        & (items["duration_ns"] >= 0)
        & (items["begin_ns"] < TIME_LIMIT_NS)
        & (items["duration_ns"] < TIME_LIMIT_NS)
    )
    possible &= ~_seen_before(position, inside, len(spans))
    kept = true_prefix(possible)
    position, stream, flags, timed = (column[:kept] for column in (position, stream, flags, timed))
    named = (stream < len(streams)) | (~timed & (stream == NO_STREAM))
    used = inside[:kept] & named
    # An item of a span that made room for newer ones is history as it is, and no orphan.
    orphans = int(np.count_nonzero(~used & (position >= 0)))
    number = np.flatnonzero(used)
    position, stream, flags = position[used], stream[used], flags[used]

    device_ns = np.full(len(spans), -1, np.int64)
    device_clock_ns = np.full(len(spans), -1, np.int64)
    timed = flags == 0
    device_ns[position[timed]] = items["duration_ns"][number[timed]]
    device_clock_ns[position[timed]] = items["begin_ns"][number[timed]]
    unfinished = position[(flags & TIME_UNFINISHED) != 0]
    spans["flags"][unfinished] |= np.uint32(SpanFlag.DEVICE_UNFINISHED)
    on_stream = stream != NO_STREAM
    spans["stream"][position[on_stream]] = stream[on_stream]
    devices = np.array([one.device for one in streams], np.int64)
    spans["device"][position[on_stream]] = devices[stream[on_stream]]
    unplaced = _place(spans, device_ns, device_clock_ns, clocks)
    return DeviceTimes(kept, orphans, position, number, device_ns, device_clock_ns, unplaced)


def mark_unfinished(
    spans: NDArray[np.void], first_span: int, times: DeviceTimes, first_time: int, state: State
) -> None:
    """Mark the spans that STATE knows and of whose device time it can be shown that it was not
    known then: no time was dropped, lost or given up."""
    given_up = state.dropped.get("device_failed", 0)
    if first_time or times.orphans or given_up or times.kept < state.device_times:
        return
    known_to_state = spans[: max(0, state.spans - first_span)]
    waiting = (known_to_state["flags"] & SpanFlag.DEVICE) != 0
    waiting[times.span[times.span < len(waiting)]] = False
    known_to_state["flags"][waiting] |= np.uint32(SpanFlag.DEVICE_UNFINISHED)


def span_indices(items: NDArray[np.void]) -> NDArray[np.int64]:
    """The span that each item is of, as an index into all spans of the run."""
    indices: NDArray[np.int64] = (items["where"] & _SPAN_MASK).astype(np.int64)
    return indices


def _seen_before(
    position: NDArray[np.int64], inside: NDArray[np.bool_], spans: int
) -> NDArray[np.bool_]:
    """Return which items repeat the span of an earlier item."""
    repeated = np.zeros(len(position), np.bool_)
    if np.bincount(position[inside], minlength=1).max() > 1:
        _, firsts = np.unique(position[inside], return_index=True)
        repeated[inside] = True
        repeated[np.flatnonzero(inside)[firsts]] = False
    return repeated


def _place(
    spans: NDArray[np.void],
    device_ns: NDArray[np.int64],
    device_clock_ns: NDArray[np.int64],
    clocks: Sequence[DeviceClock],
) -> int:
    """Write when spans began and ended on their device; returns of how many that is not known."""
    timed = np.flatnonzero(device_ns >= 0)
    unplaced = len(timed)
    for clock in clocks:
        of_device = timed[spans["device"][timed] == clock.device]
        begin_ns = clock.on_run_axis(device_clock_ns[of_device])
        end_ns = clock.on_run_axis(device_clock_ns[of_device] + device_ns[of_device])
        known = (begin_ns >= 0) & (end_ns >= begin_ns)
        spans["device_begin_ns"][of_device[known]] = begin_ns[known]
        spans["device_end_ns"][of_device[known]] = end_ns[known]
        unplaced -= int(np.count_nonzero(known))
    return unplaced
