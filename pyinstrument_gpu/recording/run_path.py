# SPDX-License-Identifier: Apache-2.0
"""Where a run file goes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyinstrument_gpu.errors import RunPathError
from pyinstrument_gpu.recording.environment import launcher_number


def path_of_rank(path: Path, rank: int | None = None) -> Path:
    """Where a rank's run goes if `path` was asked for; this process's rank when None.

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
