# SPDX-License-Identifier: Apache-2.0
"""The job to look at, of those whose run files are there. Behind an attempt that has finished a new
job begins, unless the next one says that it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pyinstrument_gpu.core.clocks import SAME_BOOT_NS, booted_ns
from pyinstrument_gpu.core.file.attempts import (
    AttemptFiles,
    jobs_of,
    keys_of_job,
    known_runs,
    named,
)
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.parts.words import counted, time_text


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
    if first and not others:
        return f"by {first[0]} {first[1]}"
    keys = [
        {*keys_of_job(path, run)} for one in attempts for path, run in [*one.files.values()][:1]
    ]
    if all(not one.isdisjoint(later) for one, later in pairwise(keys)):
        return "by their command and folder"
    return "by their program and folder, and as a later one tells that it goes on"


def clock_notes(attempts: Sequence[AttemptFiles]) -> list[str]:
    """Return what is to be said of clocks that were set between attempts."""
    notes: dict[str, None] = {}
    booted: dict[str, list[tuple[int, bool]]] = {}
    for number, attempt in enumerate(attempts, 1):
        for facts in (run.environment for run in attempt.runs):
            host, its_ns = facts.get("host"), booted_ns(facts.get("anchor", {}))
            if "clock_set_ns" in facts:
                notes[
                    f"the clock of {host} was set by {time_text(abs(facts['clock_set_ns']))} after "
                    f"attempt {number} began: its times are by the monotonic clock"
                ] = None
            if host is None or its_ns is None:
                continue
            its_ns -= facts.get("asleep_ns", 0)
            before = booted.setdefault(host, [])
            if (
                before
                and abs(before[-1][0] - its_ns) >= SAME_BOOT_NS
                and not ("boot_id" in facts and before[-1][1])
            ):
                notes[
                    f"the clock of {host} was set, or {host} was started again, before attempt "
                    f"{number}: how long nothing ran before it is known by the wall clock alone"
                ] = None
            before.append((its_ns, "boot_id" in facts))
    return [*notes]


def _why_not(path: Path) -> str:
    try:
        run = Run.load(path)
    except (OSError, RunFileError) as error:
        return f": {str(error).removeprefix(f'{path}: ')}"
    if run.environment:
        return " does not say when it began"
    return ": it was cut short before it says what it is of"
