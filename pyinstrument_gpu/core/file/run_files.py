# SPDX-License-Identifier: Apache-2.0
"""Which files are runs, and which of them those of a job's last attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.errors import JobError, RunFileError

SUFFIX = ".gpurun"
_ATTEMPT = re.compile(r"\.(?:requeue|restart)\d+(?=\.)")
_MOST_NAMES = 8
_RANK = re.compile(r"rank[-_=.]?\d+", re.IGNORECASE)


def is_run_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a run file does.

    Raises:
        OSError: it cannot be read.
    """
    if not os.path.isfile(path):  # to read from a pipe would be to wait, or to take what is there
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


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


def of_last_attempts(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files without those of attempts after which a launcher started the job again, and these.

    Attempts are told by the names that recordings give them: "job.rank0.gpurun", then
    "job.restart1.rank0.gpurun". The last one is that which began last, since files of an earlier
    job may still be there.
    """
    jobs: dict[tuple[Path, str], dict[tuple[str, ...], list[Path]]] = {}
    for path in paths:
        job = path.parent, _RANK.sub("", _ATTEMPT.sub("", path.name))
        attempt = tuple(_ATTEMPT.findall(path.name))
        jobs.setdefault(job, {}).setdefault(attempt, []).append(path)
    last: set[Path] = set()
    for attempts in jobs.values():
        found = list(attempts.values())
        last.update(found[0] if len(found) == 1 else max(found, key=_began_ns))
    return [path for path in paths if path in last], [path for path in paths if path not in last]


def earlier_left_out(earlier: Sequence[Path]) -> str:
    """What to say of files of earlier attempts."""
    names = " ".join(str(path) for path in earlier[:_MOST_NAMES])
    more = len(earlier) - _MOST_NAMES
    names += f" and {more:,} more" if more > 0 else ""
    return f"left out: runs of earlier attempts of the job, to be read by themselves: {names}"


def _began_ns(attempt: Iterable[Path]) -> int:
    """By the first of its files that says so."""
    # Reading needs numpy, which whoever asks for a name alone need not have imported.
    from pyinstrument_gpu.core.file.follower import RunFollower
    from pyinstrument_gpu.core.run import Run

    for path in attempt:
        with suppress(OSError, RunFileError), closing(RunFollower(path)) as follower:
            began_ns = Run.from_blocks(follower.look()).began_realtime_ns
            if began_ns is not None:
                return began_ns
    return -1


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
        more = f" and {len(alike) - _MOST_NAMES:,} more" if len(alike) > _MOST_NAMES else ""
        count = f"{len(alike):,} run files: " if len(alike) > 1 else ""
        sentences.append(f"left out: {count}{', '.join(alike[:_MOST_NAMES])}{more}: {reason}")
    return sentences


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)
    ]
