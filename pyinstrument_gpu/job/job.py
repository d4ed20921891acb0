# SPDX-License-Identifier: Apache-2.0
"""The job that users hold: its ranks, and the files that they come from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyinstrument_gpu.core.file.run_files import (
    earlier_left_out,
    files_in,
    left_out,
    of_last_attempts,
)
from pyinstrument_gpu.core.run import Run, above
from pyinstrument_gpu.errors import JobError, RunFileError, RunFileVersionError
from pyinstrument_gpu.job.data import JobData, RankData
from pyinstrument_gpu.job.gather import job_of, rank_data

__all__ = ["Job"]

_RANK_IN_NAME = re.compile(r"rank[._-]?(\d+)")


class Job(JobData):
    # Users ask `help` of this class; what it holds is written down where it is made.
    __doc__ = JobData.__doc__

    @classmethod
    def load(cls, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Job:
        """Read the run files of a job's ranks, one after the other, and keep of each what is
        compared: 24 bytes per phase and step, 32 where the device was timed.

        A file that can't be read is left out, and `missing` or `notes` say so; so are runs in a
        folder that are of no rank, and runs of earlier attempts where a launcher has restarted the
        job: give their paths alone to read them.

        Args:
            paths: a run file or a folder, or several. Of a folder all files `*.gpurun` in it.

        Raises:
            OSError: a path does not exist, or a folder cannot be read.
            JobError: the runs are not ranks of one job, or none can be read; the message says
                which are, and what to do.
        """
        ranks: list[RankData] = []
        unknown: dict[str, str] = {}
        unreadable: dict[int, str] = {}
        notes: list[str] = []
        files = list(_files(paths))
        _, earlier = of_last_attempts([path for path, _ in files])
        if earlier:
            notes.append(earlier_left_out(earlier))
        for path, is_named in files:
            if path in earlier:
                continue
            found = _RANK_IN_NAME.search(path.name)
            try:
                run = Run.load(path)
            except FileNotFoundError:
                raise
            except (OSError, RunFileError) as error:
                # A reason that is the same for all is told once for all.
                is_format = isinstance(error, RunFileVersionError)
                reason = str(error).removeprefix(f"{path}: ") if is_format else str(error)
                if found is None:
                    unknown[str(path)] = reason
                else:
                    unreadable[int(found[1])] = reason
                continue
            if "rank" in run.environment and run.environment.get("world_size") != 1:
                ranks.append(rank_data(run, str(path)))
            elif is_named and run.environment:
                raise JobError(
                    f"{path} is not a rank of a job: it was recorded by a single process, or "
                    "outside of torchrun before its process group was made. Look at it by itself"
                )
            elif found is not None and not run.environment:
                unreadable[int(found[1])] = f"{path} was cut short before it says what it is of"
            else:
                notes.append(f"left out: {path} does not say of which rank it is")
        data = job_of(ranks, unreadable, [*left_out(unknown), *notes])
        return cls(data.ranks, data.world_size, data.job_id, data.missing, data.notes)

    def run(self, rank: int) -> Run:
        """The whole run of a rank, read again from its file; errors as in `Run.load`.

        Raises:
            KeyError: there is no run file of this rank.
        """
        for found in self.ranks:
            if found.rank == rank and found.file is not None:
                return Run.load(found.file)
        raise KeyError(f"no run file of rank {rank}: {self.missing.get(rank, 'no such rank')}")

    def report(self, *, width: int | None = None, color: bool | None = None) -> str:
        """The ranks together as tables for the terminal: who is waited for, and in which phase.

        Args:
            width: number of columns; None for the width of the terminal.
            color: whether to use colours; None if the terminal supports them.
        """
        document = above("document.job").job_document_of(self)
        text: str = above("report.job").job_report(document, width, color)
        return text

    def __repr__(self) -> str:
        return f"<Job of {self.world_size} ranks, {len(self.ranks)} of them here>"


def _files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Iterator[tuple[Path, bool]]:
    """The run files, and whether each was named itself."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise JobError("no run files were given")
    for path in map(Path, given):
        if not path.is_dir():
            yield path, True
            continue
        yield from ((one, False) for one in files_in(path))
