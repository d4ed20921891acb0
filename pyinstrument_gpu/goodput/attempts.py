# SPDX-License-Identifier: Apache-2.0
"""Which run files are attempts of one job.

Runs with one id of a launcher (torchrun's run id with one program, Slurm's job id with one command)
are of one job. So are runs without an id of one command in one folder, and jobs with different ids
of one command in one folder that follow each other, as where somebody submits a job again. Options
that say where to go on from are no part of a command. Behind an attempt that has finished a new
job begins, unless the next one says that it goes on.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyinstrument_gpu.core.condition import ProgramEnd
from pyinstrument_gpu.core.file.attempts import identity
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.parts.words import counted

_RESUME = re.compile(
    r"-{0,2}[\w.-]*(?:resum|restart|continu|restor|ckpt|checkpoint)[^=]*(=.*)?", re.I
)
_LATE_START_NS = 10**9
"""So long after the others of its machine have ended a rank may begin, and be of their attempt."""
_CLOCKS_APART_NS = 60 * 10**9
"""By so much the clocks of machines may differ before attempts of two are taken to overlap."""
_MOST_NAMES = 8


@dataclass
class AttemptFiles:
    """The run files of an attempt.

    Attributes:
        files: by rank, 0 for a program alone, its file, and what says which job that is of.
    """

    files: dict[int, tuple[Path, Run]] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        return [run for _, run in self.files.values()]

    @property
    def begin_ns(self) -> int:
        return min(_begin_ns(run) for run in self.runs)

    @property
    def end_ns(self) -> int:
        return max(_begin_ns(run) + run.duration_ns for run in self.runs)

    @property
    def hosts(self) -> set[str]:
        return {str(run.environment.get("host")) for run in self.runs}

    @property
    def has_finished(self) -> bool:
        """Whether each of its runs has ended, and none by an error."""
        return all(
            run.complete and not ProgramEnd.of(run.environment).has_failed for run in self.runs
        )

    @property
    def goes_on(self) -> bool:
        """Whether it says that steps had been done before it."""
        noted = [one for run in self.runs for one in run.environment.get("step_numbers", ())[:1]]
        return any(one["number"] > 0 for one in noted)

    def takes(self, run: Run) -> bool:
        """Whether a run that begins no earlier may be another rank of it. The agents of two
        machines may count restarts apart from each other."""
        facts = run.environment
        beside = [
            one.environment for one in self.runs if one.environment.get("host") == facts.get("host")
        ]
        slack_ns = _LATE_START_NS if beside else _CLOCKS_APART_NS
        return (
            facts.get("world_size") == self.runs[0].environment.get("world_size")
            and all(facts.get("restarts") == one.get("restarts") for one in beside)
            and _rank(run) not in self.files
            and _begin_ns(run) <= self.end_ns + slack_ns
        )

    def overlaps(self, later: AttemptFiles) -> bool:
        """Whether both went on at one time, by more than clocks of different machines differ."""
        slack_ns = 0 if self.hosts & later.hosts else _CLOCKS_APART_NS
        return later.begin_ns + slack_ns < self.end_ns


@dataclass
class JobFiles:
    """The attempts of a job.

    Attributes:
        attempts: in the order in which they began.
        joined_by: how it is known that they are of one job.
    """

    attempts: list[AttemptFiles]
    joined_by: str

    @property
    def command(self) -> Hashable:
        return _command(self.attempts[0].runs[0])


def newest_job(paths: Sequence[Path]) -> tuple[JobFiles, list[str]]:
    """The job whose last attempt began last, and notes on the files that are not of it.

    Raises:
        JobError: no file can be read, or two jobs of one command ran at one time and nothing tells
            which of their attempts belong together.
    """
    found, notes = _identities(paths)
    by_key: dict[Hashable, list[AttemptFiles]] = {}
    words: dict[Hashable, str] = {}
    for path, run in found:
        key, words_of_key = _job_key(run)
        words[key] = words_of_key
        attempts = by_key.setdefault(key, [])
        of_run = next((one for one in reversed(attempts) if one.takes(run)), None)
        if of_run is None:
            of_run = AttemptFiles()
            attempts.append(of_run)
        of_run.files[_rank(run)] = path, run
    jobs: list[JobFiles] = []
    for key, attempts in by_key.items():
        jobs += _unfinished_together(JobFiles(attempts, words[key]))
    jobs = _following(sorted(jobs, key=lambda job: job.attempts[0].begin_ns))
    newest = max(jobs, key=lambda job: job.attempts[-1].begin_ns)
    for number, attempt in enumerate(newest.attempts):
        same_time = [one for one in newest.attempts[:number] if one.overlaps(attempt)]
        if same_time and not _has_id(attempt.runs[0]):
            names = [_named(one) for one in (same_time[-1], attempt)]
            raise JobError(
                "two jobs of one command ran at the same time, and nothing tells whose the other "
                f"attempts are. Give the files of one job:\n    {names[0]}\n    {names[1]}"
            )
    others = [attempt for job in jobs if job is not newest for attempt in job.attempts]
    if others:
        count = counted(len(jobs) - 1, "other job")
        names = [_named(one) for one in others[:_MOST_NAMES]]
        more = f" and {len(others) - _MOST_NAMES:,} more" if len(others) > _MOST_NAMES else ""
        notes.append(f"left out: {count}: {'; '.join(names)}{more}. Give their files to see one")
    return newest, notes


def _identities(paths: Sequence[Path]) -> tuple[list[tuple[Path, Run]], list[str]]:
    """The runs that say when they began and which they are, the earliest first."""
    found: dict[str, tuple[Path, Run]] = {}
    notes = []
    for path in paths:
        run = identity(path)
        if run is None or not run.environment:
            notes.append(f"left out: {path}: {_why_not(path)}")
        elif run.began_realtime_ns is None:
            notes.append(f"left out: {path} does not say when it began")
        else:
            found.setdefault(run.environment.get("run_id", str(path)), (path, run))
    if not found:
        raise JobError("\n    ".join(["there is no run that can be read", *notes]))
    return sorted(found.values(), key=lambda one: _begin_ns(one[1])), notes


def _why_not(path: Path) -> str:
    try:
        Run.load(path)
    except (OSError, RunFileError) as error:
        return str(error).removeprefix(f"{path}: ")
    return "it was cut short before it says what it is of"


def _unfinished_together(job: JobFiles) -> Iterator[JobFiles]:
    """The job, or several, of which each but the last has finished."""
    attempts: list[AttemptFiles] = []
    for attempt in job.attempts:
        if attempts and attempts[-1].has_finished and not attempt.goes_on:
            yield JobFiles(attempts, job.joined_by)
            attempts = []
        attempts.append(attempt)
    yield JobFiles(attempts, job.joined_by)


def _following(jobs: Sequence[JobFiles]) -> list[JobFiles]:
    """The jobs, those of one command that follow each other as one."""
    joined: list[JobFiles] = []
    for job in jobs:
        first = job.attempts[0]
        before = next((one for one in reversed(joined) if one.command == job.command), None)
        if (
            before is None
            or before.attempts[-1].overlaps(first)
            or (before.attempts[-1].has_finished and not first.goes_on)
        ):
            joined.append(job)
        else:
            before.attempts += job.attempts
            before.joined_by = "by their command and folder"
    return joined


def _begin_ns(run: Run) -> int:
    return run.began_realtime_ns or 0


def _rank(run: Run) -> int:
    rank: int = run.environment.get("rank", 0)
    return rank


def _has_id(run: Run) -> bool:
    return "job" in run.environment or "slurm_job" in run.environment


def _job_key(run: Run) -> tuple[Hashable, str]:
    """What runs of one job have in common, and that in words."""
    facts, command = run.environment, _command(run)
    if "job" in facts:
        program = (facts.get("arguments") or [None])[0]
        return ("torchrun", facts["job"], program), f"by torchrun's run id {facts['job']}"
    if "slurm_job" in facts:
        return ("slurm", facts["slurm_job"], command), f"by Slurm's job id {facts['slurm_job']}"
    return command, "by their command and folder"


def _command(run: Run) -> Hashable:
    """The program's words, without those that say where to go on from, and its folder."""
    words: list[str] = []
    is_value = False
    for word in run.environment.get("arguments") or run.environment.get("command") or ():
        if is_value and not word.startswith("-"):
            is_value = False
            continue
        option = _RESUME.fullmatch(word) if words else None  # the first is the program
        is_value = option is not None and option[1] is None and word.startswith("-")
        if option is None or not (word.startswith("-") or option[1]):
            words.append(word)
    return (*words, run.environment.get("cwd"))


def _named(attempt: AttemptFiles) -> str:
    names = [str(path) for path, _ in attempt.files.values()]
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
