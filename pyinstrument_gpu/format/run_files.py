# SPDX-License-Identifier: Apache-2.0
"""The run files in a folder."""

from __future__ import annotations

import re
from pathlib import Path

from pyinstrument_gpu.errors import JobError

SUFFIX = ".gpurun"


def files_in(folder: Path) -> list[Path]:
    """The run files in a folder by their names, in which numbers count as such: rank 2 comes before
    rank 10.

    Raises:
        OSError: the folder cannot be read.
        JobError: there is none.
    """
    inside = [path for path in folder.iterdir() if path.suffix == SUFFIX and not path.is_dir()]
    if not inside:
        raise JobError(f"there is no run file ({SUFFIX}) in {folder}")
    return sorted(inside, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)
    ]
