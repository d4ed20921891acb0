# SPDX-License-Identifier: Apache-2.0
"""Samples of the main thread's stack as collapsed stacks: a line for each stack that was seen, its
frames joined by ";", with the microseconds that it was seen for. The outermost frame is the phase,
and of several runs the rank. FlameGraph, speedscope and inferno read this. A file of its own, as
each format is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from pyinstrument_gpu.aspects.stacks.tree import phase_trees
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.parts.words import printable


def write(
    runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None] = lambda spans: None
) -> None:
    """Write the stacks of runs.

    Raises:
        ExportError: no run has any.
    """
    if all(run.stacks is None or not run.stacks.nodes for run in runs):
        raise ExportError(
            "there are no stacks in this run: record it without --no-stacks or stacks=False"
        )
    for number, run in enumerate(runs):
        rank = [f"rank {run.environment.get('rank', number)}"] if len(runs) > 1 else []
        for line in _lines(run, rank):
            sink.write(line.encode("utf-8", "replace"))
        advance(len(run.spans))


def _lines(run: Run, outermost: list[str]) -> Iterator[str]:
    for tree in () if run.stacks is None else phase_trees(run.stacks):
        around = tree.path or ("outside steps" if tree.scope is Scope.OUTSIDE else "outside phases")
        for places, time_ns in tree.whole_stacks():
            lines = [tree.line(place) for place in places]
            calls = [f"{one.function} ({run.name_of_line(one)})" for one in lines]
            frames = [printable(one).replace(";", ",") for one in (*outermost, around, *calls)]
            yield f"{';'.join(frames)} {max(1, round(time_ns / 1e3))}\n"
