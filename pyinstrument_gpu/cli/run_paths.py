# SPDX-License-Identifier: Apache-2.0
"""The RUN arguments of commands: run files, and folders of them."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from pyinstrument_gpu.core.file.attempts import earlier_left_out, of_last_attempts
from pyinstrument_gpu.core.file.run_files import SUFFIX, files_in
from pyinstrument_gpu.core.job_membership import is_of_a_job, not_one_job
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.parts.words import printable


def found_runs(given: Iterable[str]) -> tuple[list[str], list[list[Path]]]:
    """The paths of the run files, in the order given, with those in folders, and by attempt the
    files of earlier ones of a job that are left out of these; errors as of `files_in`."""
    paths: list[str] = []
    left: list[list[Path]] = []
    for argument in given:
        path = Path(argument)
        if path.is_dir():
            last, earlier = of_last_attempts(files_in(path))
            paths += map(str, last)
            left += earlier
        else:
            paths.append(argument)
    return paths, left


def with_newest(given: Sequence[str]) -> tuple[str, ...]:
    """Return the paths given, with the newest run of the working directory if there are none, and
    the newest of a program in place of that program.

    Raises:
        click.ClickException: there is none.
    """
    return tuple(map(_newest_of, given)) if given else (_newest("*"),)


def _newest_of(argument: str) -> str:
    if not argument.endswith(".py"):
        return argument
    return _newest(f"{glob.escape(Path(argument).stem)}-*")


def _newest(pattern: str) -> str:
    found = [path for path in Path().glob(pattern + SUFFIX) if path.is_file()]
    if not found:
        what = "run file" if pattern == "*" else f"run of the program ({pattern}{SUFFIX})"
        raise click.ClickException(
            f"there is no {what} in {Path.cwd()}; record one with `pyinstrument-gpu run train.py`"
        )
    return str(max(found, key=lambda path: path.stat().st_mtime))


def say_what_is_left_out(earlier: Sequence[Sequence[Path]]) -> None:
    """Name files of earlier attempts, if there are any."""
    if earlier:
        click.echo(printable(earlier_left_out(earlier)), err=True)


def are_of_a_job(given: Sequence[str], paths: Sequence[str]) -> bool:
    """Return whether the arguments, and the run files that they stand for, are ranks of one job:
    there are several, or a folder, and the first that can be read is of a rank.

    Raises:
        OSError: a file cannot be opened.
    """
    if len(paths) < 2 and not any(Path(argument).is_dir() for argument in given):
        return False
    for path in paths:
        try:
            return is_of_a_job(Run.load(path))
        except RunFileError:
            continue
    return False


def by_job(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs as those of jobs: the ranks of one together, any other run by itself. A run goes to
    the first job of which it can be another rank."""
    jobs: list[list[Run]] = []
    for run in runs:
        for of_job in jobs:
            together = [*of_job, run]
            may_be_one = not_one_job(together, [""] * len(together)) is None
            if may_be_one and all(map(is_of_a_job, together)):
                of_job.append(run)
                break
        else:
            jobs.append([run])
    return jobs
