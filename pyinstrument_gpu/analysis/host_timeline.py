# SPDX-License-Identifier: Apache-2.0
"""The host's timeline: where the thread of the steps was at each moment, and when it waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import longest_row, were_profiled
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class HostTimeline:
    """The phase boundaries of one thread in order, as columns of equal length, and its waits.

    Spans of no length have none: they enclose nothing.

    Attributes:
        thread: the one that opened most steps, as an index into `Run.threads`; -1 without steps.
        steps: its steps that are closed and with all spans kept, as rows of `Run.steps.array`. If
            some were profiled, the most in a row that were not.
        host_ns: when the boundary was passed.
        path: the innermost phase behind it; -1 none.
        span: an index into `Run.spans`.
        is_begin: whether it is the span's begin.
        waits: the syncs of the thread whose time is known (`SYNC_DTYPE`), by begin.
    """

    thread: int
    steps: NDArray[np.void]
    host_ns: NDArray[np.int64]
    path: NDArray[np.int64]
    span: NDArray[np.intp]
    is_begin: NDArray[np.bool_]
    waits: NDArray[np.void]

    @property
    def waits_ns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.waits["begin_ns"], self.waits["begin_ns"] + self.waits["duration_ns"]

    def path_at(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The innermost phase at each time; -1 none."""
        place = np.searchsorted(self.host_ns, times_ns, side="right")
        path: NDArray[np.int64] = np.append(-1, self.path)[place]
        return path


def host_timeline(run: Run, kept_steps: NDArray[np.void]) -> HostTimeline:
    threads, counts = np.unique(run.steps.array["thread"], return_counts=True)
    thread = int(threads[np.argmax(counts)]) if len(threads) else -1
    spans = run.spans
    chosen = np.flatnonzero(
        (spans["thread"] == thread) & (spans["host_end_ns"] > spans["host_begin_ns"])
    )
    spans, count = spans[chosen], len(chosen)
    host_ns = np.concatenate([spans["host_begin_ns"], spans["host_end_ns"]])
    is_begin = np.arange(2 * count) < count
    depth = spans["depth"].astype(np.int32)
    # At one moment: first what ends, from the inside out, then what begins, from the outside in.
    order = np.lexsort((np.concatenate([depth, -1 - depth]), host_ns))
    paths = spans["path"].astype(np.int64)
    behind = np.concatenate([paths, run.path_parents[paths]])
    waits = run.syncs.events
    waits = waits[(waits["duration_ns"] >= 0) & (waits["thread"] == thread)]
    steps = kept_steps[(kept_steps["end_ns"] >= 0) & (kept_steps["thread"] == thread)]
    profiled = were_profiled(run, steps["index"])
    return HostTimeline(
        thread=thread,
        steps=steps[longest_row(~profiled)],
        host_ns=host_ns[order],
        path=behind[order],
        span=np.tile(chosen, 2)[order],
        is_begin=is_begin[order],
        waits=waits[np.argsort(waits["begin_ns"], kind="stable")],
    )
