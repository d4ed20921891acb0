# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a job's ranks beside their files: whether their processes are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyinstrument_gpu.core.process_state import ProcessState
from pyinstrument_gpu.job.condition import Sighting
from pyinstrument_gpu.job.data import JobData, RankData
from pyinstrument_gpu.watch.clocks import Clocks
from pyinstrument_gpu.watch.process import process_state

LookUp: TypeAlias = Callable[[int, int, Clocks], ProcessState]
"""What is known of a process: a function of its number, of when its recording began and of the
clocks."""


def sightings_of(
    job: JobData,
    clocks: Clocks,
    wait: Callable[[], None],
    process: LookUp = process_state,
) -> dict[int, Sighting]:
    """What can be seen of each rank.

    Whether a process of another machine lives can't be seen, but perhaps its file changes.

    Args:
        clocks: of this machine, read after the job was.
        wait: for longer than a recorder needs to write again; called if a rank that is not
            complete ran on another machine.
        process: looks a process up.
    """
    found = {}
    elsewhere = []
    for rank in job.ranks:
        if rank.complete:
            found[rank.rank] = Sighting()
            continue
        anchor = rank.end.anchor
        seen = sighting_of(rank.environment, anchor, rank.duration_ns, clocks, process)
        found[rank.rank] = seen
        if seen.silent_ns is None:
            elsewhere.append(rank)
    if elsewhere:
        before = [_written(rank) for rank in elsewhere]
        wait()
        for rank, written in zip(elsewhere, before, strict=True):
            found[rank.rank] = Sighting(is_writing=written != _written(rank))
    return found


def sighting_of(
    environment: Mapping[str, Any],
    anchor: Mapping[str, int],
    duration_ns: int,
    clocks: Clocks,
    process: LookUp = process_state,
) -> Sighting:
    """What can be seen of the process of a run; nothing if it is of another machine.

    Args:
        anchor: the last reading of its clocks.
        duration_ns: from its begin to its last sign of life.
    """
    if not clocks.are_of(environment, anchor):
        return Sighting()
    began_ns = anchor["monotonic_ns"] - anchor.get("run_ns", duration_ns)
    pid = environment.get("pid")
    state = ProcessState.UNKNOWN if pid is None else process(pid, began_ns, clocks)
    return Sighting(state, max(0, clocks.monotonic_ns - began_ns - duration_ns))


def _written(rank: RankData) -> tuple[int, int] | None:
    """When its file was written last, and its size."""
    try:
        status = os.stat(rank.file or "")
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
