# SPDX-License-Identifier: Apache-2.0
"""Grouping run files into attempts of one job, after each of which it was started again.

Runs with one id of a launcher (torchrun's run id with one program, Slurm's job id with one command)
are of one job. So are runs of one command in one folder that follow each other, as where somebody
submits a job again. Options that say where to go on from are no part of a command, and where a run
itself tells that steps were done before it, no other option keeps it apart from the job that it
goes on with. Attempts also have the names that recordings give them, "job.rank0.gpurun" and then
"job.restart1.rank0.gpurun".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.clocks import SAME_BOOT_NS, began_ns
from pyinstrument_gpu.core.condition import ProgramEnd
from pyinstrument_gpu.core.job_membership import is_of_a_job, not_one_job, program_of
from pyinstrument_gpu.errors import JobError, RunFileError

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

EARLIER = "left out: runs of"
_ATTEMPT = re.compile(r"\.(?:requeue|restart)\d+(?=\.)")
_RANK = re.compile(r"rank[-_=.]?(\d+)", re.IGNORECASE)
_GO_ON = "resum|restart|continu|resto[re]"
_RESUME = re.compile(rf"-{{0,2}}[\w.-]*(?:{_GO_ON}|ckpt|checkpoint)[^=]*(=.*)?", re.I)
_FROM_RESUME = re.compile(rf"-{{0,2}}[\w.-]+=(?:{_GO_ON})\w*", re.I)
"""As `--init_from=resume`."""
_LATE_START_NS = 10**9
"""So long after the others of its machine have ended a rank may begin, and be of their attempt."""
_CLOCKS_APART_NS = 60 * 10**9
"""By so much the clocks of machines may differ before attempts of two are taken to overlap."""
_CLOCK_WAS_SET_NS = 10**8
"""By less than this a clock is not set, but brought to run faster or slower for a while, as is the
monotonic one then."""
_MOST_NAMES = 8


@dataclass
class AttemptFiles:
    """The run files of an attempt.

    Attributes:
        job: the launcher, the id that it gives the job, and the program; None without an id.
        files: by rank, 0 for a program alone, its file, and what says which job that is of; the
            earliest first.
        names: their folders and names, without the ranks.
        marks: by machine, how its launcher counts attempts, as its runs and their names have it.
        end_ns: the last heartbeat of all.
        parts: the files that are named alike, where it was joined of several such.
    """

    job: tuple[str, str, Hashable] | None
    files: dict[int, tuple[Path, Run]] = field(default_factory=dict)
    names: set[Hashable] = field(default_factory=set)
    marks: dict[str | None, Hashable] = field(default_factory=dict)
    end_ns: int = 0
    parts: list[AttemptFiles] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        return [run for _, run in self.files.values()]

    @property
    def paths(self) -> list[Path]:
        return [path for path, _ in self.files.values()]

    @property
    def begin_ns(self) -> int:
        return _begin_ns(next(iter(self.files.values()))[1])

    @property
    def has_finished(self) -> bool:
        """True if each of its runs has ended, and none by an error."""
        return all(
            run.complete and not ProgramEnd.of(run.environment).has_failed for run in self.runs
        )

    @property
    def goes_on(self) -> bool:
        """True if it says that steps had been done before it."""
        noted = [one for run in self.runs for one in run.environment.get("step_numbers", ())[:1]]
        return any(one["number"] > 0 for one in noted)

    def overlaps(self, later: AttemptFiles) -> bool:
        """Return whether both went on at one time, by more than clocks of machines differ."""
        slack_ns = 0 if len(self.marks.keys() | later.marks.keys()) == 1 else _CLOCKS_APART_NS
        return later.begin_ns + slack_ns < self.end_ns

    def add(self, path: Path, run: Run) -> None:
        self.files[_rank(run)] = path, run
        self.names.add(_without_rank(path))
        self.marks.setdefault(run.environment.get("host"), _mark(path, run))
        self.end_ns = max(self.end_ns, _begin_ns(run) + run.duration_ns)

    def join(self, others: AttemptFiles) -> None:
        """Add files that are named otherwise."""
        if not self.parts:
            self.parts.append(replace(self, files={**self.files}, marks={**self.marks}, parts=[]))
        self.parts.append(others)
        for path, run in others.files.values():
            self.add(path, run)

    def takes(self, others: AttemptFiles) -> bool:
        """Return whether runs that begin no earlier may be other ranks of it, by their name, or by
        when they began. The agents of two machines may count restarts apart from each other."""
        first, (path, run) = self.runs[0], next(iter(others.files.values()))
        host, mark = run.environment.get("host"), _mark(path, run)
        slack_ns = _LATE_START_NS if host in self.marks else _CLOCKS_APART_NS
        return (
            self.files.keys().isdisjoint(others.files)
            and self.job == others.job
            and first.environment.get("world_size") == run.environment.get("world_size")
            and not_one_job([first, run], ["", ""]) is None
            and (
                not self.names.isdisjoint(others.names)
                or (
                    self.marks.get(host, mark) == mark and others.begin_ns <= self.end_ns + slack_ns
                )
            )
        )


def of_last_attempts(paths: Sequence[Path]) -> tuple[list[Path], list[list[Path]]]:
    """The files without those of attempts after which a job was started again; and these, by
    attempt, the earliest first. Programs alone are of one job where their names say so. Errors as
    of `jobs_of`."""

    if len(paths) < 2:
        return list(paths), []
    found, unknown = known_runs(paths)
    earlier = [
        one
        for job in jobs_of(found, _keys_of_ranks)
        for number, one in enumerate(job[:-1], start=1)
        # Where neither a launcher nor names count attempts, what goes on at one time is two jobs.
        if one.job is not None
        or not any(one.overlaps(later) and one.marks == later.marks for later in job[number:])
    ]
    earlier.sort(key=lambda one: one.begin_ns)
    files = [one.paths for one in earlier]
    for path in unknown:
        for attempt, of_attempt in zip(earlier, files, strict=True):
            if _without_rank(path) in attempt.names:
                of_attempt.append(path)
    left_out = {path for of_attempt in files for path in of_attempt}
    return [path for path in paths if path not in left_out], files


def attempt_with(path: Path, found: Sequence[tuple[Path, Run]]) -> list[Path]:
    """The files of the attempt that has one of the runs, by rank; errors as of `jobs_of`."""
    attempts = (one for job in jobs_of(found, _keys_of_ranks) for one in job)
    attempt = next(one for one in attempts if path in one.paths)
    return [attempt.files[rank][0] for rank in sorted(attempt.files)]


def known_runs(paths: Iterable[Path]) -> tuple[list[tuple[Path, Run]], list[Path]]:
    """The runs that say which they are and when they began, each once and the earliest first, with
    the wall clock of a machine as if it had been set at no time since it was started; and the files
    of which nothing is known."""
    found: dict[str, tuple[Path, Run]] = {}
    unknown = []
    for path in paths:
        run = identity(path)
        if run is None or not run.environment or run.began_realtime_ns is None:
            unknown.append(path)
        else:
            found.setdefault(run.environment.get("run_id", str(path)), (path, run))
    _put_on_one_clock([run for _, run in found.values()])
    return sorted(found.values(), key=lambda one: _begin_ns(one[1])), unknown


def jobs_of(
    found: Sequence[tuple[Path, Run]], keys_of: Callable[[Path, Run], Sequence[Hashable]]
) -> list[list[AttemptFiles]]:
    """The attempts of each job, in the order in which they began.

    Args:
        found: runs, the earliest first.
        keys_of: what a run has in common with those of its job, the surest first.

    Raises:
        JobError: two jobs of one command ran at one time, and a rank may be of either.
    """
    jobs: list[list[AttemptFiles]] = []
    job_of: dict[Hashable, list[AttemptFiles]] = {}
    alike = [
        (files, [key for path, run in files.files.values() for key in keys_of(path, run)])
        for files in _named_alike(found)
    ]
    for files, keys in alike:
        job = next((job_of[key] for key in keys if key in job_of), [])
        if not job and files.goes_on and _command(files.runs[0]) in keys:
            job = _continued(files, jobs)
        attempt = next((one for one in reversed(job) if one.takes(files)), None)
        for other in job:
            may_be = other is not attempt and any(one.takes(files) for one in [other, *other.parts])
            if may_be and other.overlaps(files):
                either = [
                    one.parts[0] if one.parts else one
                    for one, its_keys in alike
                    if one is files
                    or (
                        not {*keys}.isdisjoint(its_keys)
                        and (one is other or (one.overlaps(files) and files.overlaps(one)))
                    )
                ]
                raise JobError(
                    "\n    ".join(
                        [
                            "two jobs of one command ran at the same time, and nothing tells which "
                            "of their ranks belong together:",
                            *(named(one.paths, " ") for one in either),
                        ]
                    )
                    + "\nGive the files of one job"
                )
        if attempt is not None:
            attempt.join(files)
        else:
            if not job or (job[-1].job != files.job and job[-1].overlaps(files)):
                job = []
                jobs.append(job)
            job.append(files)
        job_of |= dict.fromkeys(keys, job)
    return jobs


def _continued(files: AttemptFiles, jobs: Sequence[list[AttemptFiles]]) -> list[AttemptFiles]:
    """The job of the same program and folder with which an attempt goes on that tells so; empty if
    there is none, or several from which its options don't tell it."""
    own = {*(_command(files.runs[0]) or ())}

    def words_of(job: list[AttemptFiles]) -> set[str]:
        return {*(_command(job[-1].runs[0]) or ())}

    at_place = [
        job
        for job in jobs
        if _place(job[-1].runs[0]) == _place(files.runs[0]) and not job[-1].overlaps(files)
    ]
    # Those with more options or fewer, rather than with others.
    alike = [job for job in at_place if own <= words_of(job) or own >= words_of(job)] or at_place
    return alike[0] if len(alike) == 1 else []


def _named_alike(found: Sequence[tuple[Path, Run]]) -> list[AttemptFiles]:
    """The runs, the earliest first, together with those of other ranks whose files are named alike:
    ranks of two jobs that went on at one time are told apart by that."""
    all_files: list[AttemptFiles] = []
    by_name: dict[Hashable, list[AttemptFiles]] = {}
    for path, run in found:
        alone = AttemptFiles(_launcher_id(run))
        alone.add(path, run)
        of_name = by_name.setdefault(_without_rank(path), [])
        files = next((one for one in reversed(of_name) if one.takes(alone)), None)
        if files is None:
            of_name.append(alone)
            all_files.append(alone)
        else:
            files.add(path, run)
    return all_files


def _keys_of_ranks(path: Path, run: Run) -> list[Hashable]:
    """What ranks have in common; programs alone are of one job where their names say so."""
    name = path.parent, _ATTEMPT.sub("", _RANK.sub("", path.name))
    return [*(keys_of_job(path, run) if is_of_a_job(run) else ()), name]


def keys_of_job(path: Path, run: Run) -> list[Hashable]:
    """A launcher's id, and the command with its folder, as far as they are known."""
    return [key for key in (_launcher_id(run), _command(run)) if key is not None]


def identity(path: Path) -> Run | None:
    """Return what says which job a run is from, and no more of it: there may be thousands. None if
    it can't be read."""
    # Reading needs numpy, which whoever asks for a name alone need not have imported.
    from pyinstrument_gpu.core.file.blocks import BlockType
    from pyinstrument_gpu.core.file.environment import decode_environment
    from pyinstrument_gpu.core.file.follower import RunFollower
    from pyinstrument_gpu.core.file.state import State, decode_state
    from pyinstrument_gpu.core.run import Run

    with closing(RunFollower(path)) as follower, suppress(OSError, RunFileError):
        blocks = follower.look(most_blocks=0)
        environment, _ = blocks.document(BlockType.ENVIRONMENT, decode_environment) or ({}, ())
        state = blocks.document(BlockType.STATE, decode_state) or State()
        return Run(
            environment=environment,
            anchor=state.anchor,
            duration_ns=state.now_ns,
            complete=state.final,
        )
    return None


def earlier_left_out(earlier: Sequence[Sequence[Path]]) -> str:
    """Return a sentence on the files of earlier attempts."""
    count = "an earlier attempt" if len(earlier) == 1 else f"{len(earlier)} earlier attempts"
    names = named([path for paths in earlier for path in paths], " ")
    return f"{EARLIER} {count} of the job, whose ends `pyinstrument-gpu why` tells: {names}"


def named(paths: Sequence[Path], between: str = ", ") -> str:
    """The names of the first of some files."""
    more = f" and {len(paths) - _MOST_NAMES:,} more" if len(paths) > _MOST_NAMES else ""
    return between.join(map(str, paths[:_MOST_NAMES])) + more


def _begin_ns(run: Run) -> int:
    return run.began_realtime_ns or 0


def _put_on_one_clock(runs: Sequence[Run]) -> None:
    """Give runs of one start of a machine the wall clock that its last run had: the monotonic clock
    can't be set. How much that is, is in their environment as `clock_set_ns`."""
    by_boot: dict[tuple[Any, ...], list[tuple[int, int, Run]]] = {}
    for run in runs:
        facts = run.environment
        since_boot_ns = began_ns(facts.get("anchor", {}), "monotonic_ns")
        if since_boot_ns is None or "host" not in facts:
            continue
        since_boot_ns += facts.get("asleep_ns", 0)
        booted_ns = _begin_ns(run) - since_boot_ns
        key: tuple[Any, ...] = (facts["host"], facts.get("boot_id"))
        if "boot_id" not in facts:
            # One start, if the clock says nothing else.
            others = (
                other
                for other, ((_, its_ns, _), *_) in by_boot.items()
                if other[0] == facts["host"] and abs(its_ns - booted_ns) < SAME_BOOT_NS
            )
            key = next(others, (facts["host"], booted_ns))
        by_boot.setdefault(key, []).append((since_boot_ns, booted_ns, run))
    for of_boot in by_boot.values():
        _, last_ns, _ = max(of_boot, key=lambda one: one[0])
        for _, booted_ns, run in of_boot:
            set_ns = last_ns - booted_ns
            if abs(set_ns) >= _CLOCK_WAS_SET_NS:
                anchor = run.environment["anchor"]
                anchor = {**anchor, "realtime_ns": anchor["realtime_ns"] + set_ns}
                run.environment = {**run.environment, "anchor": anchor, "clock_set_ns": set_ns}


def _rank(run: Run) -> int:
    rank: int = run.environment.get("rank", 0)
    return rank


def _without_rank(path: Path) -> Hashable:
    return path.parent, _RANK.sub("", path.name)


def _mark(path: Path, run: Run) -> Hashable:
    return run.environment.get("restarts"), *_ATTEMPT.findall(path.name)


def _launcher_id(run: Run) -> tuple[str, str, Hashable] | None:
    facts = run.environment
    if "job" in facts:
        return "torchrun's run id", facts["job"], (facts.get("arguments") or [None])[0]
    if "slurm_job" in facts:
        return "Slurm's job id", facts["slurm_job"], _command(run)
    return None


def _place(run: Run) -> Hashable:
    """The program, and the folder in which it was started."""
    return program_of(run), run.environment.get("cwd")


def _command(run: Run) -> tuple[str, ...] | None:
    """The program's words, without those that say where to go on from, and its folder."""
    given = run.environment.get("arguments") or run.environment.get("command")
    if not given or "cwd" not in run.environment:
        return None
    words: list[str] = []
    is_value = False
    for word in given:
        if is_value and not word.startswith("-"):
            is_value = False
            continue
        if words and (
            _FROM_RESUME.fullmatch(word)
            or (_FROM_RESUME.fullmatch(f"{words[-1]}={word}") and words[-1].startswith("-"))
        ):
            words = words if "=" in word else words[:-1]
            continue
        option = _RESUME.fullmatch(word) if words else None  # the first is the program
        is_value = option is not None and option[1] is None and word.startswith("-")
        if option is None or not (word.startswith("-") or option[1]):
            words.append(word)
    return (*words, run.environment["cwd"])
