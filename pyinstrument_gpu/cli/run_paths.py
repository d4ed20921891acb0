# SPDX-License-Identifier: Apache-2.0
"""The RUN arguments of commands: run files, and folders of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.job import SUFFIX
from pyinstrument_gpu.model.job import not_one_job
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.run import Run


def run_paths(given: Iterable[str]) -> list[str]:
    """The paths of the run files, in the order given; those in a folder by their names, in which
    numbers count as such: rank 2 comes before rank 10.

    Raises:
        OSError: a folder cannot be read.
        RunFileError: there is no run file in a folder.
    """
    found = []
    for argument in given:
        if not Path(argument).is_dir():
            found.append(argument)
            continue
        inside = [
            path for path in Path(argument).iterdir() if path.suffix == SUFFIX and not path.is_dir()
        ]
        if not inside:
            raise RunFileError(f"there is no run file ({SUFFIX}) in {argument}")
        found += map(str, sorted(inside, key=_natural))
    return found


def are_of_a_job(given: Sequence[str], paths: Sequence[str]) -> bool:
    """Whether what was given, and the run files that are that, are to be looked at as the ranks of
    a job: there are several, or a folder, and the first that can be read is of a rank.

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


def is_of_a_job(run: RunData) -> bool:
    """Whether the run is of a rank of a job of several."""
    return "rank" in run.environment and run.environment.get("world_size", 1) > 1


def by_job(runs: Sequence[Run], names: Sequence[str]) -> list[list[Run]]:
    """The runs as those of jobs: the ranks of one together, any other run by itself. A run goes to
    the first job of which it can be another rank."""
    jobs: list[tuple[list[Run], list[str]]] = []
    for run, name in zip(runs, names, strict=True):
        if is_of_a_job(run):
            for of_job, its_names in jobs:
                together = [*of_job, run], [*its_names, name]
                if is_of_a_job(of_job[0]) and not_one_job(*together) is None:
                    of_job.append(run)
                    its_names.append(name)
                    break
            else:
                jobs.append(([run], [name]))
        else:
            jobs.append(([run], [name]))
    return [of_job for of_job, _ in jobs]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)
    ]
