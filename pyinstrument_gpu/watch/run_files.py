# SPDX-License-Identifier: Apache-2.0
"""Finding the run files to watch: of a file, a folder, a process, or whatever is recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from pyinstrument_gpu.core.file.attempts import attempt_with, identity, known_runs
from pyinstrument_gpu.core.file.follower import RunFollower
from pyinstrument_gpu.core.file.run_files import SUFFIX, below
from pyinstrument_gpu.core.job_membership import is_of_a_job
from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.watch import process

HOW_TO_BEGIN = (
    "To record a program:\n"
    "    pyinstrument-gpu run train.py\n"
    "or, if it imports pyinstrument_gpu and names its phases and steps itself:\n"
    "    PYINSTRUMENT_GPU_RECORD=train.gpurun python train.py"
)
_NUMBER = re.compile(r"\d+")


def run_files(target: str | None, proc: Path = Path("/proc")) -> Callable[[], list[Path]]:
    """A function that says which files to watch, by rank. They may become more: ranks of a job
    begin one after the other.

    Args:
        target: a run file, a folder, the number of a process, or None.

    Raises:
        RunFileError: there is none; the message says what to do.
        JobError: a rank may be of two jobs; the function raises this as well.
    """
    path = Path.cwd() if target is None else Path(target)
    if path.is_dir():
        newest = _newest(below(path))
        if newest is None:
            raise RunFileError(f"there is no run file ({SUFFIX}) in {path}. {HOW_TO_BEGIN}")
        find = _of_job(newest, path if target else newest.parent)
        find()
        return find
    target = str(target)
    if not path.exists() and target.isascii() and target.isdecimal():
        found = _of_process(int(target), proc)
        return lambda: found
    if not path.exists():
        raise RunFileError(f"there is no file {path}. {HOW_TO_BEGIN}")
    _check(path)
    return lambda: [path]


def _check(path: Path) -> None:
    with closing(RunFollower(path)) as follower:
        try:
            follower.look()
        except RunFileError as error:
            raise type(error)(f"{path}: {error}") from None


def _of_process(pid: int, proc: Path) -> list[Path]:
    try:
        found, in_memory = process.recorded_files(pid, proc)
    except FileNotFoundError:
        raise RunFileError(f"there is no process {pid}, and no file of that name") from None
    except PermissionError:
        raise RunFileError(
            f"the files of process {pid} can't be seen: it belongs to another user. Give the path "
            "of its run file, if you may read that"
        ) from None
    if found:
        return found
    for child in process.children(pid, proc):
        try:
            found += process.recorded_files(child, proc)[0]
        except OSError:
            continue
    if found:
        return found
    if in_memory:
        raise RunFileError(
            f"process {pid} records in memory, where nobody else can look: give record() a path"
        )
    raise RunFileError(f"process {pid} records nothing. {HOW_TO_BEGIN}")


def _newest(paths: Iterable[Path]) -> Path | None:
    """The file that was written last, of those that are run files. If none is, any."""
    written: list[tuple[float, Path]] = []
    for path in paths:
        try:
            written.append((path.stat().st_mtime, path))
        except OSError:
            continue
    newest_first = [path for _, path in sorted(written, reverse=True)]
    readable = (path for path in newest_first if identity(path) is not None)
    return next(readable, newest_first[0] if newest_first else None)


def run_files_beside(path: Path) -> list[Path]:
    """The run files in the folder of one that are of ranks of its job, and itself, by rank."""
    return _of_job(path, path.parent)()


def _of_job(newest: Path, folder: Path) -> Callable[[], list[Path]]:
    """The run files in a folder, of all ranks of the job of which this is one, as far as they are
    there; errors as of `attempt_with`."""
    run = identity(newest)
    if run is None or not is_of_a_job(run):
        return lambda: [newest]
    rank = run.environment["rank"]
    known = {newest}
    of_job = [newest]

    def find() -> list[Path]:
        nonlocal of_job
        unknown = set(_named_alike(newest, rank, folder)) - known
        new = {path for path in unknown if identity(path) is not None}  # others may become one
        if new:
            known.update(new)
            found, _ = known_runs(sorted(known))  # again, as those of before have gone on
            found = [(path, run) for path, run in found if is_of_a_job(run)]
            if any(path == newest for path, _ in found):
                of_job = attempt_with(newest, found)
        return of_job

    return find


def _named_alike(path: Path, rank: int, folder: Path) -> list[Path]:
    """The files in a folder whose names differ from that of one by the number of the rank."""
    patterns = []
    for place in _NUMBER.finditer(path.name):
        if int(place[0]) == rank:
            before, after = path.name[: place.start()], path.name[place.end() :]
            patterns.append(re.compile(rf"{re.escape(before)}\d+{re.escape(after)}"))
    return [
        other
        for other in below(folder)
        if other != path and any(one.fullmatch(other.name) for one in patterns)
    ]
