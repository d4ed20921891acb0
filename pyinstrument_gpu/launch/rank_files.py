# SPDX-License-Identifier: Apache-2.0
"""The run files of the ranks of one job, found by one of them."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyinstrument_gpu.core.file.run_path import begin_of_process_s
from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.errors import RunFileError

if TYPE_CHECKING:
    from pyinstrument_gpu.job.job import Job, RankData

_POLL_S = 0.05


def start_of_job() -> time.struct_time:
    """A moment on which the ranks of one host agree: the start of torchrun, or now without it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            return time.localtime(_start_of_process(os.getppid()))
        except (OSError, ValueError, IndexError, StopIteration):
            pass  # no /proc here: the ranks may then name their files differently
    return time.localtime()


def _start_of_process(pid: int) -> float:
    """Seconds since the epoch, from what the kernel counts from its boot."""
    lines = Path("/proc/stat").read_text().splitlines()
    boot_s = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot_s + begin_of_process_s(pid)


def finished_job(paths: Mapping[int, Path], deadline_s: float) -> Job:
    """The job of the ranks whose files are complete, or become so before the deadline; of the
    others it says why they are missing. Files are read for as long again at most.

    The first of the paths is that of this process, whose recording is over.

    Raises:
        JobError: nothing can be said of the ranks together.
        OSError, RunFileError: the first file can't be read.
    """
    from pyinstrument_gpu.core.job_membership import not_one_job
    from pyinstrument_gpu.core.run import Run
    from pyinstrument_gpu.job.gather import job_of, rank_data

    until_s = time.monotonic() + deadline_s
    found: list[RankData] = []
    missing: dict[int, str] = {}
    for rank, path in paths.items():
        names = [f"rank {next(iter(paths))}", str(path)]
        while not path.exists() and is_local(rank) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        if not path.exists():
            missing[rank] = f"{path} does not exist"
            if not is_local(rank):
                missing[rank] += ": it ran on another machine. `report` takes the files of all"
            continue
        while not _is_finished(path) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        try:
            if not _is_finished(path):
                missing[rank] = f"still recording into {path}"
            elif found and time.monotonic() >= until_s + deadline_s:
                missing[rank] = f"there was no time left to read {path}. `report` takes all"
            else:
                of_rank = rank_data(Run.load(path), str(path))
                # Files of an earlier job may be where those of this one were to be.
                own = found[0] if found else of_rank
                wrong = None if own is of_rank else not_one_job([own, of_rank], names)
                if wrong is None:
                    found.append(of_rank)
                else:
                    missing[rank] = wrong
        except (OSError, RunFileError, ValueError) as error:
            if not found:
                raise
            missing[rank] = str(error)
    return job_of(found, missing)


def is_local(rank: int) -> bool:
    """Return whether a rank runs on this machine, or may do so: torchrun numbers the ranks of a
    machine in a row."""
    own, place, count = map(launcher_number, ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if own is None or place is None or count is None:
        return True
    return own - place <= rank < own - place + count


def pattern_of_ranks(first: Path, second: Path) -> str | None:
    """Return a shell pattern for the files of all ranks, given those of ranks 0 and 1. None if
    their names differ by more than that number."""
    for place in re.finditer("0", str(first)):
        before, behind = str(first)[: place.start()], str(first)[place.end() :]
        if f"{before}1{behind}" == str(second):
            return f"{shlex.quote(before)}*{shlex.quote(behind) if behind else ''}"
    return None


def _is_finished(path: Path) -> bool:
    # A recording holds a lock on its file.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
