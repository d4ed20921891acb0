# SPDX-License-Identifier: Apache-2.0
"""Documents of jobs that ended, or hang: what `why` says."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.job.attempts import Attempt
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.ending_report import JobEnding, job_ending
from tests.helpers.job_endings import S, collectives, job, rank

_ALIVE = ProcessObservation(ProcessState.ALIVE, 50_000_000)
_GONE = ProcessObservation(ProcessState.GONE, 60 * S)


def _hanging() -> JobEnding:
    """Rank 0 has waited for rank 1, whose watchdog has seen that nothing happens."""
    progress = (GroupProgress("0", 40, None, None, "all_reduce"),)
    stacks = (("MainThread", 'File "train.py", line 3 in load'),)
    stall = Stall(
        since_ns=0,
        noticed_ns=30 * S,
        limit_ns=30 * S,
        step=41,
        paths=((0, "data"),),
        stacks=stacks,
        groups=progress,
    )
    asked = [(number, number * S // 10, "all_reduce") for number in range(41)]
    behind = rank(1, path="data", stuck_ns=31 * S, stalls=(stall,), collectives=collectives(*asked))
    waiting = rank(0, stuck_ns=31 * S)
    waiting = replace(waiting, collectives=collectives(*asked, (41, 42 * S // 10, "all_reduce")))
    return job_ending(job(waiting, behind), {0: _ALIVE, 1: _ALIVE})


def _killed() -> JobEnding:
    """Of three ranks one was killed, one failed and one is missing, in the second attempt."""
    failed = rank(0, complete=True, exception="ValueError", exit_code=1, host=None)
    missing = {2: "there is no run file of it"}
    of = job(failed, rank(1), world_size=3, job_id="7", missing=missing, notes=("a note",))
    before = Attempt(1, "Rank 3 stopped first.", 3, 1200, 600 * S, 41 * S, ("run.rank3.gpurun",))
    return job_ending(of, {0: _GONE, 1: _GONE}, [before])


ENDINGS: Mapping[str, Callable[[], JobEnding]] = {
    "hanging": _hanging,
    "killed": _killed,
    "running": lambda: job_ending(job(rank(0), rank(1)), {0: _ALIVE, 1: _ALIVE}),
    "alone": lambda: job_ending(job(rank(0, step=0, path=None))),
    "likely": lambda: job_ending(job(rank(0, stuck_ns=S), rank(1, step=40, path="forward"))),
}
