# SPDX-License-Identifier: Apache-2.0
"""Spans as plain tuples, to compare with what a test expects."""

from typing import NamedTuple

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag


class Span(NamedTuple):
    path: str
    begin_ns: int
    end_ns: int
    self_ns: int
    step: int
    depth: int
    thread: str
    on_step_thread: bool


def spans_of(run: Run) -> list[Span]:
    """The spans of a run, in its order."""
    columns = ("path", "host_begin_ns", "host_end_ns", "step", "depth", "thread", "flags")
    rows = zip(*(run.spans[column].tolist() for column in columns), strict=True)
    return [
        Span(
            path=run.paths[path],
            begin_ns=begin_ns,
            end_ns=end_ns,
            self_ns=self_ns,
            step=step,
            depth=depth,
            thread=run.threads[thread].name,
            on_step_thread=bool(flags & SpanFlag.STEP_THREAD),
        )
        for (path, begin_ns, end_ns, step, depth, thread, flags), self_ns in zip(
            rows, run.span_self_ns.tolist(), strict=True
        )
    ]


def times_of(run: Run) -> list[tuple[str, int, int]]:
    """Path, begin and end of each span, in the order in which they ended."""
    return [(span.path, span.begin_ns, span.end_ns) for span in spans_of(run)]


def dropped_of(run: Run) -> dict[str, int]:
    """What was dropped, without the causes that did not occur."""
    return {cause: count for cause, count in run.dropped.items() if count}
