# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu why`: what ended a job, or why it does not go on."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import click

from pyinstrument_gpu.cli.run_paths import found_runs
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import PyinstrumentGpuError
from pyinstrument_gpu.job.attempts import MOST_ATTEMPTS, Attempt, attempt_of, with_lost
from pyinstrument_gpu.job.condition import FRESH_NS, ProcessObservation
from pyinstrument_gpu.job.ending_report import ending_report, job_ending
from pyinstrument_gpu.job.gather import rank_data
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.watch.process import MachineClocks, observations_of

_WAIT_S = 1.0


@click.command()
@click.argument("paths", metavar="FOLDER|RUN...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, not text.")
def why(paths: tuple[str, ...], as_json: bool) -> None:
    """Say which rank of a job stopped first, or holds up the others.

    FOLDER has the run files of the job's ranks, and RUN is one of them, or the run of a program
    alone. They may have been killed, or hang: files are only read, and if they are of this machine,
    /proc says whether their processes live.
    """
    job, observations = look(paths)
    if any(
        one.process is ProcessState.GONE and one.silent_ns is not None and one.silent_ns < FRESH_NS
        for one in observations.values()
    ):
        # It was there when its file was read, and may have ended well since.
        job, observations = look(paths)
    document = job_ending(job, observations, _attempts(job))
    if as_json:
        print(json_text(document, most_rows=None))
    else:
        print(ending_report(document))


def _attempts(job: Job) -> list[Attempt]:
    """The attempts before that which a job is, each of them read by itself."""
    found: list[Attempt] = []
    following = job
    numbered = list(enumerate(job.earlier, start=1))[-MOST_ATTEMPTS:]
    for number, files in reversed(numbered):
        try:
            one, observations = look(files, wait=lambda: None)  # nothing writes into them any more
        except (OSError, PyinstrumentGpuError):
            continue
        ending = job_ending(one, observations)
        attempt = attempt_of(one, number, ending.verdict, ending.rank)
        found.append(with_lost(attempt, one, following))
        following = one
    return found[::-1]


def look(
    paths: Sequence[str], wait: Callable[[], None] = lambda: time.sleep(_WAIT_S)
) -> tuple[Job, dict[int, ProcessObservation]]:
    """The job whose files these are, and what can be seen of its ranks."""
    job = _job(paths)
    return job, observations_of(job, MachineClocks.now(), wait)


def _job(paths: Sequence[str]) -> Job:
    """The ranks, or a program alone as the only one."""
    files, earlier = found_runs(paths)
    if len(files) == 1:
        run = Run.load(files[0])
        if run.environment.get("world_size", 1) == 1:
            alone = copy.copy(run)
            alone.environment = {**run.environment, "rank": 0}
            rank = rank_data(alone, files[0])
            attempts = tuple(tuple(map(str, attempt)) for attempt in earlier)
            return Job(ranks=(rank,), world_size=1, notes=rank.notes, earlier=attempts)
    return Job.load(paths)
