# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a job's ranks beside their files: whether their processes are there."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyinstrument_gpu.analysis.job.condition import Sighting
from pyinstrument_gpu.model.job_data import JobData, RankData
from pyinstrument_gpu.model.process_state import ProcessState
from pyinstrument_gpu.watch.clocks import Clocks
from pyinstrument_gpu.watch.process import process_state


def sightings_of(
    job: JobData,
    clocks: Clocks,
    wait: Callable[[], None],
    process: Callable[[int, int, Clocks], ProcessState] = process_state,
) -> dict[int, Sighting]:
    """What can be seen of each rank.

    Whether a process of another machine lives can't be seen, but perhaps its file changes.

    Args:
        clocks: of this machine, read after the job was.
        wait: for longer than a recorder needs to write again; called if a rank that is not
            complete ran on another machine.
        process: what is known of a process: a function of its number, of when its recording began
            and of the clocks.
    """
    found = {}
    elsewhere = []
    for rank in job.ranks:
        anchor = rank.end.anchor
        if rank.complete or not clocks.are_of(rank.environment, anchor):
            found[rank.rank] = Sighting()
            if not rank.complete:
                elsewhere.append(rank)
            continue
        end_ns = anchor["monotonic_ns"] + rank.duration_ns - anchor.get("run_ns", rank.duration_ns)
        pid = rank.environment.get("pid")
        state = ProcessState.UNKNOWN
        if pid is not None:
            state = process(pid, end_ns - rank.duration_ns, clocks)
        found[rank.rank] = Sighting(state, max(0, clocks.monotonic_ns - end_ns))
    if elsewhere:
        before = [_written(rank) for rank in elsewhere]
        wait()
        for rank, written in zip(elsewhere, before, strict=True):
            found[rank.rank] = Sighting(is_writing=written != _written(rank))
    return found


def _written(rank: RankData) -> tuple[int, int] | None:
    """When its file was written last, and its size."""
    try:
        status = os.stat(rank.file or "")
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
