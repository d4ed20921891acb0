# SPDX-License-Identifier: Apache-2.0
"""The job to look at, of those whose run files are there. Behind an attempt that has finished a new
job begins, unless the next one says that it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyinstrument_gpu.core.file.attempts import (
    AttemptFiles,
    jobs_of,
    keys_of_job,
    known_runs,
    named,
)
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.parts.words import counted


def newest_job(paths: Sequence[Path]) -> tuple[list[AttemptFiles], list[str]]:
    """The attempts of the job whose last one began last, in their order, and notes on the files
    that are not of it.

    Raises:
        JobError: no file can be read, or two jobs of one command ran at one time and nothing tells
            which of their attempts belong together.
    """
    found, unknown = known_runs(paths)
    notes = [f"left out: {path}{_why_not(path)}" for path in unknown]
    if not found:
        raise JobError("\n    ".join(["there is no run that can be read", *notes]))
    jobs: list[list[AttemptFiles]] = []
    for together in jobs_of(found, keys_of_job):
        for number, attempt in enumerate(together):
            if not number or (together[number - 1].has_finished and not attempt.goes_on):
                jobs.append([])
            jobs[-1].append(attempt)
    newest = max(jobs, key=lambda job: job[-1].begin_ns)
    for number, attempt in enumerate(newest):
        same_time = [one for one in newest[:number] if one.overlaps(attempt)]
        if same_time and attempt.job is None:
            names = [named(one.paths) for one in (same_time[-1], attempt)]
            raise JobError(
                "two jobs of one command ran at the same time, and nothing tells whose the other "
                f"attempts are. Give the files of one job:\n    {names[0]}\n    {names[1]}"
            )
    others = [one for job in jobs if job is not newest for one in job]
    if others:
        count = counted(len(jobs) - 1, "other job")
        files = named([path for one in others for path in one.paths])
        notes.append(f"left out: {count}: {files}. Give their files to see one")
    return newest, notes


def joined_by(attempts: Sequence[AttemptFiles]) -> str:
    """Return how it is known that attempts are of one job."""
    first, *others = {one.job for one in attempts}
    return "by their command and folder" if others or not first else f"by {first[0]} {first[1]}"


def _why_not(path: Path) -> str:
    try:
        run = Run.load(path)
    except (OSError, RunFileError) as error:
        return f": {str(error).removeprefix(f'{path}: ')}"
    if run.environment:
        return " does not say when it began"
    return ": it was cut short before it says what it is of"
