# SPDX-License-Identifier: Apache-2.0
"""Which run files are of the last attempt of a job, and which of those after which a launcher
started it again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyinstrument_gpu.errors import RunFileError

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

EARLIER = "left out: runs of"
_ATTEMPT = re.compile(r"\.(?:requeue|restart)\d+(?=\.)")
_MOST_NAMES = 8
_RANK = re.compile(r"rank[-_=.]?(\d+)", re.IGNORECASE)


def of_last_attempts(paths: Sequence[Path]) -> tuple[list[Path], list[list[Path]]]:
    """The files without those of attempts after which a job was started again; and these, by
    attempt, the earliest first.

    Attempts of one job have the names that recordings give them, "job.rank0.gpurun" and then
    "job.restart1.rank0.gpurun"; or they are ranks with one run id of torchrun, or of one command in
    one folder. The last one is that which began last, since files of an earlier job may still be
    there.
    """
    attempts = _by_name(paths)
    if len(attempts) == 1:  # no file need be read
        return list(paths), []
    jobs: list[list[_Attempt]] = []
    for attempt in sorted(attempts, key=lambda one: one.began_ns):
        of_job = next((job for job in jobs if any(map(attempt.is_of_job_of, job))), None)
        if of_job is None:
            jobs.append([attempt])
            continue
        same = next((one for one in of_job if attempt.may_be(one)), None)
        if same is None:
            of_job.append(attempt)
        else:
            same.add(attempt)
    last = {path for job in jobs for path in job[-1].paths}
    earlier = sorted((one for job in jobs for one in job[:-1]), key=lambda one: one.began_ns)
    return [path for path in paths if path in last], [one.paths for one in earlier]


@dataclass
class _Attempt:
    """Files that are named as of one attempt of a job.

    Attributes:
        names: each of the job, and what marks the attempt.
        ranks: as the names have them, or else the files.
        run: what the first of them that can be read is of.
    """

    names: set[tuple[str, tuple[str, ...]]]
    paths: list[Path]
    run: Run | None
    ranks: set[int]

    @property
    def began_ns(self) -> int:
        return -1 if self.run is None else self.run.began_realtime_ns or -1

    def add(self, other: _Attempt) -> None:
        self.names |= other.names
        self.paths += other.paths
        self.ranks |= other.ranks

    def is_of_job_of(self, other: _Attempt) -> bool:
        if {name for name, _ in self.names} & {name for name, _ in other.names}:
            return True
        if self.run is None or other.run is None:
            return False
        of_ranks = all(run.environment.get("world_size", 1) > 1 for run in (self.run, other.run))
        job, command = (
            [[run.environment.get(key) for key in keys] for run in (self.run, other.run)]
            for keys in (["job"], ["command", "cwd"])
        )
        return of_ranks and any(a == b and None not in a for a, b in (job, command))

    def may_be(self, other: _Attempt) -> bool:
        """Whether files of other names are of the same attempt."""
        if {name for name, _ in self.names} & {name for name, _ in other.names}:
            return False
        if self.run is None or other.run is None or self.ranks & other.ranks:
            return False
        from pyinstrument_gpu.core.job_membership import not_one_job  # needs numpy

        return not_one_job([self.run, other.run], ["", ""]) is None


def _by_name(paths: Sequence[Path]) -> list[_Attempt]:
    found: dict[tuple[str, tuple[str, ...]], dict[str, list[Path]]] = {}
    for path in paths:
        key = _RANK.sub("", _ATTEMPT.sub("", path.name)), tuple(_ATTEMPT.findall(path.name))
        found.setdefault(key, {}).setdefault(path.name, []).append(path)
    groups: list[tuple[tuple[str, tuple[str, ...]], list[Path]]] = []
    for key, by_name in found.items():
        if all(len(alike) == 1 for alike in by_name.values()):
            groups.append((key, [path for (path,) in by_name.values()]))
            continue
        # The same name in several folders: each has files of its own job.
        by_folder: dict[Path, list[Path]] = {}
        for path in (path for alike in by_name.values() for path in alike):
            by_folder.setdefault(path.parent, []).append(path)
        groups += [(key, files) for files in by_folder.values()]
    if len(groups) == 1:
        return [_Attempt({groups[0][0]}, groups[0][1], None, set())]
    return [_attempt(*group) for group in groups]


def _attempt(name: tuple[str, tuple[str, ...]], paths: list[Path]) -> _Attempt:
    run = next((run for run in map(identity, paths) if run is not None), None)
    ranks = {int(found[1]) for path in paths if (found := _RANK.search(path.name))}
    if not ranks and run is not None:
        ranks = {run.environment.get("rank", -1)}
    return _Attempt({name}, list(paths), run, ranks)


def identity(path: Path) -> Run | None:
    """What says which job a run is from, and no more of it: there may be thousands. None if it
    can't be read."""
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
    """What to say of files of earlier attempts."""
    files = [str(path) for paths in earlier for path in paths]
    more = len(files) - _MOST_NAMES
    names = " ".join(files[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    count = "an earlier attempt" if len(earlier) == 1 else f"{len(earlier)} earlier attempts"
    return f"{EARLIER} {count} of the job, whose ends `pyinstrument-gpu why` tells: {names}"
