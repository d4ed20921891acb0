# SPDX-License-Identifier: Apache-2.0
"""Several runs in one output: which rank each is, what it is called, and one time axis for all."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import count

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError

_MAX_COMMAND_CHARACTERS = 200


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


def process_name(run: Run, rank: int | None = None) -> str:
    """Its rank, if it is one, and its command, without folders: "rank 3: python train.py".

    Args:
        rank: what its rank is called; None for that of the run itself.
    """
    program, *arguments = run.environment.get("command") or ["process"]
    name = shlex.join([os.path.basename(program), *arguments])[:_MAX_COMMAND_CHARACTERS]
    rank = run.environment.get("rank") if rank is None else rank
    return name if rank is None else f"rank {rank}: {name}"


class UniqueIds:
    """Numbers for processes and rows, from 1 to below a limit, each once: their own where these can
    be told apart by them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = {0}

    def assign(self, wanted: Sequence[int]) -> list[int]:
        """For each its wanted number, or a free one where that cannot be."""
        ids: list[int | None] = []
        for number in wanted:
            possible = 0 < number < self._limit and number not in self._taken
            ids.append(number if possible else None)
            if possible:
                self._taken.add(number)
        return [self.free() if number is None else number for number in ids]

    def free(self) -> int:
        """A number above all others where there is one: rows are shown in the order of theirs."""
        number = max(self._taken) + 1
        if number == self._limit:
            number = next(each for each in count(1) if each not in self._taken)
        self._taken.add(number)
        return number
