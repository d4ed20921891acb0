# SPDX-License-Identifier: Apache-2.0
"""The path of a run file."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.errors import RunPathError

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def path_of_attempt(path: Path) -> Path:
    """Return the path of the run if `path` was asked for, and a launcher may have started the
    program again: "train.restart1.gpurun" after torchrun's first restart, "train.requeue1.gpurun"
    after Slurm's. So no attempt finds its place taken by an earlier one of the same job."""
    requeues = launcher_number("SLURM_RESTART_COUNT") or 0
    restarts = launcher_number("TORCHELASTIC_RESTART_COUNT")

    def named(restarts: int) -> Path:
        counts = {"requeue": requeues, "restart": restarts}
        added = "".join(f".{word}{count}" for word, count in counts.items() if count)
        return path.with_name(f"{path.stem}{added}{path.suffix}")

    if restarts is None:
        return named(0)
    # torchrun does not count that it starts these ranks again because those of another machine
    # have failed, or machines have come or gone.
    while _is_of_earlier_attempt(path_of_rank(named(restarts))):
        restarts += 1
    return named(restarts)


def _is_of_earlier_attempt(path: Path) -> bool:
    """Return whether a file was last written after torchrun started, and before this process."""
    try:
        since_boot_s = os.lstat(path).st_mtime - time.time() + time.clock_gettime(_SINCE_BOOT)
        return begin_of_process_s(os.getppid()) <= since_boot_s < begin_of_process_s(os.getpid())
    except (OSError, ValueError, IndexError):  # there is no such file, or no /proc
        return False


def begin_of_process_s(pid: int) -> float:
    """Return when a process began, in seconds since the machine did.

    Raises:
        OSError, ValueError, IndexError: /proc does not say so.
    """
    # The name, in parentheses, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def path_of_rank(path: Path, rank: int | None = None) -> Path:
    """Return the path of a rank's run if `path` was asked for; of this process's rank if None.

    A name that has the rank already, as "train.rank3.gpurun" or "rank_03.gpurun" has that of rank
    3, is not given it again.
    """
    if rank is None:
        rank = launcher_number("RANK") or 0
    if "{rank}" in str(path):
        return Path(str(path).replace("{rank}", str(rank)))
    has_rank = re.search(rf"(?<![a-z])rank[-_=.]?0*{rank}(?!\d)", path.name, re.IGNORECASE)
    if (launcher_number("WORLD_SIZE") or 1) > 1 and not has_rank:
        return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    return path


def check_writable(path: Path) -> None:
    """Raise RunPathError, with the reason, where no run file can be."""
    if "\0" in str(path):
        raise RunPathError(f"a path cannot contain a null character: {str(path)!r}")
    # os.path, unlike pathlib, answers no for a path that can't be.
    if os.path.isdir(path):
        raise RunPathError(f"{path} is a directory: name a file in it")
    if not os.path.isdir(path.parent):
        raise RunPathError(f"{path.parent} is not a directory: create it first")


def is_free(path: Path, overwrite: bool) -> bool:
    """Return whether a run file can be made there. With `overwrite` it takes the place of
    another one, or of an empty file, as a recorder leaves it that was killed at once, and of
    nothing else."""
    if not overwrite or os.path.islink(path):
        return not os.path.lexists(path)
    if not os.path.isfile(path):  # pipes and devices are empty, too
        return not os.path.exists(path)
    return is_run_file(path) or os.stat(path).st_size == 0


def in_the_way(path: Path, overwrite: bool, option: str = "overwrite=True") -> str:
    """Return the text of the error where it is not free."""
    if not overwrite:
        return f"{path} already exists: choose another path or pass {option}"
    what = "a link" if os.path.islink(path) else "no run file"
    return f"{path} is {what}, and {option} replaces only run files: choose another path"
