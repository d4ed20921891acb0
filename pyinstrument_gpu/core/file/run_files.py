# SPDX-License-Identifier: Apache-2.0
"""Finding run files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.errors import ExportError, JobError

SUFFIX = ".gpurun"
_MOST_FOLDERS = 10_000
_MOST_NAMES = 8


def is_run_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a run file does.

    Raises:
        OSError: it cannot be read.
    """
    if not os.path.isfile(path):  # to read from a pipe would be to wait, or to take what is there
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to replace what cannot be made again: a run file, which may be the one that is being
    exported.

    Raises:
        ExportError: the path is one.
    """
    if is_run_file(path):
        raise ExportError(f"{os.fspath(path)!r} is a run file and would be replaced")


def files_in(folder: Path) -> list[Path]:
    """The run files in a folder and in those below it, as of one per machine, by their names, in
    which numbers count as such: rank 2 comes before rank 10. Hidden folders are left out.

    Raises:
        OSError: the folder cannot be read.
        JobError: there is none.
    """
    os.scandir(folder).close()  # below it, what can't be read is passed over
    inside = [path for path in below(folder) if not path.is_dir()]
    if not inside:
        raise JobError(f"there is no run file ({SUFFIX}) in {folder}")
    return sorted(inside, key=_natural)


def below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and those below it that are named as run files."""
    for count, (where, folders, files) in enumerate(os.walk(folder)):
        if count == _MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in files if name.endswith(SUFFIX))


def left_out(reasons: Mapping[str, str]) -> list[str]:
    """Return for each reason one sentence on the run files that can't be read.

    Args:
        reasons: by the file's name as it is to be shown, why it can't be read.
    """
    files: dict[str, list[str]] = {}
    for file, reason in reasons.items():
        files.setdefault(reason.removeprefix(f"{file}: "), []).append(file)
    sentences = []
    for reason, alike in files.items():
        more = f" and {len(alike) - _MOST_NAMES:,} more" if len(alike) > _MOST_NAMES else ""
        count = f"{len(alike):,} run files: " if len(alike) > 1 else ""
        sentences.append(f"left out: {count}{', '.join(alike[:_MOST_NAMES])}{more}: {reason}")
    return sentences


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)
    ]
