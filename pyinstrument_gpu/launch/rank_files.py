# SPDX-License-Identifier: Apache-2.0
"""The run files of the ranks of one job, found by one of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyinstrument_gpu.errors import RunFileError

if TYPE_CHECKING:
    from pyinstrument_gpu.run import Run

_POLL_S = 0.05


def start_of_job() -> time.struct_time:
    """A moment on which the ranks of one host agree: the start of torchrun, or now without it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            return time.localtime(_start_of_process(os.getppid()))
        except (OSError, ValueError, StopIteration):
            pass  # no /proc here: the ranks may then name their files differently
    return time.localtime()


def _start_of_process(pid: int) -> float:
    """Seconds since the epoch, from what the kernel counts from its boot."""
    # The name, in parentheses, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    lines = Path("/proc/stat").read_text().splitlines()
    boot_s = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot_s + since_boot_s


def complete_runs(paths: Mapping[int, Path], deadline_s: float) -> tuple[dict[int, Run], list[str]]:
    """The runs of the ranks whose files are complete, or become so before the deadline; and a
    sentence for each of the others."""
    from pyinstrument_gpu.model.job import not_one_job
    from pyinstrument_gpu.run import Run

    until_s = time.monotonic() + deadline_s
    runs: dict[int, Run] = {}
    missing = []
    for rank, path in paths.items():
        while not _is_finished(path) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        try:
            if not path.exists():
                missing.append(f"rank {rank}: {path} does not exist")
            elif not _is_finished(path):
                missing.append(f"rank {rank}: still recording into {path}")
            else:
                run = Run.load(path)
                names = [*(f"rank {earlier}" for earlier in runs), str(path)]
                wrong = not_one_job([*runs.values(), run], names)
                if wrong is None:
                    runs[rank] = run
                else:  # of an earlier job: it was in the way of the file of this one
                    missing.append(f"rank {rank}: {wrong}")
        except (OSError, RunFileError) as error:
            missing.append(f"rank {rank}: {error}")
    return runs, missing


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
