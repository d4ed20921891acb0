# SPDX-License-Identifier: Apache-2.0
"""The run files in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pyinstrument_gpu.errors import JobError

SUFFIX = ".gpurun"
_MOST_FILES = 8


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


def left_out(reasons: Mapping[str, str]) -> list[str]:
    """One sentence on the run files that can't be read for each reason.

    Args:
        reasons: by the file's name as it is to be shown, why it can't be read.
    """
    files: dict[str, list[str]] = {}
    for file, reason in reasons.items():
        files.setdefault(reason.removeprefix(f"{file}: "), []).append(file)
    sentences = []
    for reason, alike in files.items():
        more = f" and {len(alike) - _MOST_FILES:,} more" if len(alike) > _MOST_FILES else ""
        count = f"{len(alike):,} run files: " if len(alike) > 1 else ""
        sentences.append(f"left out: {count}{', '.join(alike[:_MOST_FILES])}{more}: {reason}")
    return sentences


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)
    ]
