# SPDX-License-Identifier: Apache-2.0
"""The phase that each thread was in at each moment of a window, and when its steps were open."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import SPAN_ITEM, STEP_ITEM
from pyinstrument_gpu.core.file.live_log import LiveLog


class PhaseSpan(NamedTuple):
    """A span of a phase on a thread, by the system's number of it. Times are by the run's clock;
    one that has not ended ends at infinity."""

    native_thread: int
    path: str
    depth: int
    begin_ns: int
    end_ns: float


class WindowLog(NamedTuple):
    """The part of a recording's log on a window.

    Attributes:
        phases: of spans that ended in the window, or were open at its end.
        steps: the begin and end of each step that began in the window, by the run's clock,
            ascending. One that has not ended ends at infinity.
        ended: of those that have ended the index, and the system's number of the thread.
        missed_spans: how many spans of the whole run are not here because there were too many.
    """

    phases: PhaseTimeline
    steps: list[tuple[float, float]]
    ended: list[tuple[int, int]]
    missed_spans: int

    def is_in_step(self, run_ns: float) -> bool:
        """Return whether one of the window's steps was open at a time."""
        place = bisect_right(self.steps, (run_ns, math.inf))
        return place > 0 and run_ns < self.steps[place - 1][1]


def read_window(before: bytes, since: bytes, first: int) -> WindowLog:
    """Read the log of a window: what it had at the begin, with the names so far, and at the end.

    Args:
        first: the index of its first step.

    Raises:
        RunFileDamagedError: it makes no sense.
    """
    log = LiveLog()
    log.take(before)
    spans_before = log.state.spans
    blocks = log.take(since)
    tables, threads = log.tables, [one.native_id for one in log.tables.threads]
    ended = blocks.records(BlockType.SPANS, SPAN_ITEM).items
    columns = ["thread", "path", "depth", "host_begin_ns", "host_end_ns"]
    rows = ended[columns][tables.is_phase[ended["path"]]].tolist()
    rows += [
        (one.thread, one.path, one.depth, one.begin_ns, math.inf)
        for one in log.state.open_phases
        if tables.is_phase[one.path]
    ]
    spans = [
        PhaseSpan(threads[thread], tables.paths[path], *place) for thread, path, *place in rows
    ]
    closed = blocks.records(BlockType.STEPS, STEP_ITEM).items
    # The record of the step before may be younger than the window.
    closed = closed[log.indices(closed["serial"]) >= first]
    steps: list[tuple[float, float]] = closed[["begin_ns", "end_ns"]].tolist()
    indices = log.indices(closed["serial"]).tolist()
    whole = [
        (index, threads[thread])
        for index, thread in zip(indices, closed["thread"].tolist(), strict=True)
    ]
    still = log.state.open_step
    if still is not None and log.indices(np.array([still.serial]))[0] >= first:
        # It may have ended, and its record waits for what follows.
        own = ended[(ended["thread"] == still.thread) & (ended["host_begin_ns"] >= still.begin_ns)]
        outside = own["host_begin_ns"][log.indices(own["step"]) < 0]
        steps.append((still.begin_ns, outside.min() if len(outside) else math.inf))
    missed = max(0, log.state.spans - spans_before - len(ended))
    return WindowLog(PhaseTimeline(spans), steps, whole, missed)


class PhaseTimeline:
    """The innermost phase of each thread at each moment."""

    def __init__(self, spans: Iterable[PhaseSpan]) -> None:
        by_thread: dict[int, list[PhaseSpan]] = defaultdict(list)
        for span in spans:
            if span.end_ns > span.begin_ns:
                by_thread[span.native_thread].append(span)
        self._threads = {thread: _changes(spans) for thread, spans in by_thread.items()}

    def path_at(self, native_thread: int, run_ns: float) -> str | None:
        """Return the path; None where the thread was in no phase."""
        times_ns, paths = self._threads.get(native_thread, ([], []))
        place = bisect_right(times_ns, run_ns)
        return paths[place - 1] if place else None


def _changes(spans: list[PhaseSpan]) -> tuple[list[float], list[str | None]]:
    """The times at which the innermost phase of a thread changes, and what it is from then on."""
    # What ends makes room before what begins at the same time. Spans need not be nested: those of
    # interleaved generators are not.
    changes = sorted(
        change
        for number, span in enumerate(spans)
        for change in ((span.begin_ns, 1, number), (span.end_ns, 0, number))
    )
    is_open: dict[int, PhaseSpan] = {}
    times_ns: list[float] = []
    paths: list[str | None] = []
    for time_ns, begins, number in changes:
        if begins:
            is_open[number] = spans[number]
        else:
            del is_open[number]
        innermost = max(is_open.values(), key=lambda span: span.depth, default=None)
        path = None if innermost is None else innermost.path
        if times_ns and times_ns[-1] == time_ns:
            paths[-1] = path
        else:
            times_ns.append(time_ns)
            paths.append(path)
    return times_ns, paths
