# SPDX-License-Identifier: Apache-2.0
"""Several runs in one output: which rank each is, and one time axis for all."""

from __future__ import annotations

from collections.abc import Sequence

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError


class NoStartTimeError(ExportError):
    """A run of several does not know when it began.

    Args:
        position: its place among the runs.
        name: what to call it.
    """

    def __init__(self, position: int, name: str | None = None) -> None:
        super().__init__(
            f"{name or f'run {position + 1}'} has no start time, so it cannot be placed on one "
            "time axis with the others: export it alone"
        )
        self.position = position


def ranks_of(runs: Sequence[Run]) -> list[int]:
    """The rank of each run. Where one has none, or two have the same, they are numbered as they
    come instead."""
    ranks = [run.environment.get("rank") for run in runs]
    known = [rank for rank in ranks if rank is not None]
    return known if len(set(known)) == len(runs) else list(range(len(runs)))


def offsets_ns_of(runs: Sequence[Run]) -> list[int]:
    """What to add to the times of each run so that all count from the begin of the earliest.

    The begin of a run is known by the wall clock of its machine, so ranks of one machine are
    aligned well, and those of several as well as their clocks agree.

    Raises:
        NoStartTimeError: there are several runs, and one does not know when it began.
    """
    if len(runs) == 1:
        return [0]
    begins_ns = []
    for position, run in enumerate(runs):
        begin_ns = run.began_realtime_ns
        if begin_ns is None:
            raise NoStartTimeError(position)
        begins_ns.append(begin_ns)
    return [begin_ns - min(begins_ns) for begin_ns in begins_ns]
