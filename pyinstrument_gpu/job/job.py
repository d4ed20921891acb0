# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job: what is kept of the run of each, and the job that users hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.aspects.memory.data import OutOfMemory
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.core.arrays import ArrayFields
from pyinstrument_gpu.core.run import Run, above
from pyinstrument_gpu.core.steps import Step

__all__ = ["Job", "RankData", "RunEnd"]


@dataclass(frozen=True)
class RunEnd:
    """The place of a run when its file was last written.

    Attributes:
        anchor: the last reading of the machine's clocks, as in `Run.anchor`.
        step: the step that was open, or else the last one that had closed; None if there was none.
        path: of the phase in which it was: the innermost open one of the step's thread, or of any
            thread where no step was open. Where the last step was cut short, the outermost phase
            that ended in it last. None if there was none.
        path_begin_ns: when that phase began, since the run began; -1 if there was none.
        last_steps: those that closed last, the oldest first.
        out_of_memory: the last time that a device had no memory left.
        error: why the file could not be written to its end.
        active_ns: when the program was last seen to do anything, as in `Run.active_ns`.
        left_step_ns: when an exception or a break left a step behind what is in the file, as its
            process had noted in shared memory; -1 if it is not known that one did.
    """

    anchor: Mapping[str, int] = field(default_factory=dict)
    step: Step | None = None
    path: str | None = None
    path_begin_ns: int = -1
    last_steps: tuple[Step, ...] = ()
    out_of_memory: OutOfMemory | None = None
    error: str | None = None
    active_ns: int = 0
    left_step_ns: int = -1

    @property
    def is_step_open(self) -> bool:
        return self.step is not None and self.step.end_ns < 0


@dataclass(frozen=True, eq=False)
class RankWaits(ArrayFields):
    """The waits of a rank's host for operations of torch.distributed, as far as the calls that wait
    were hooked. Arrays have a row for each of the rank's paths, and then for the time outside of
    phases and between steps.

    Attributes:
        since_ns: from when on it is known.
        total_ns: by row and step (int64); a wait counts for the phase in which it began.
        p2p_ns: by step, those for operations point to point (int64).
        collectives: by row, how many waits there were for others, in all.
    """

    since_ns: int
    total_ns: NDArray[np.int64]
    p2p_ns: NDArray[np.int64]
    collectives: NDArray[np.int64]


@dataclass(frozen=True)
class FunctionTime:
    """The time of a rank's main thread in a function of the program, by samples of its stack, with
    all that it calls in libraries.

    Attributes:
        path: the phase, or what it is called outside of phases.
        function: its file and name, alike on all ranks.
        name: the function and the line in it: "augment (train.py:44)".
        samples: how many there are.
        time_ns: their share of the samples in steps, of a mean step.
    """

    path: str
    function: tuple[str, str]
    name: str
    samples: int
    time_ns: float


@dataclass(frozen=True, eq=False)
class RankData(ArrayFields):
    """The data that are kept of one rank's run. Arrays have a column for each step in `steps`.

    Attributes:
        rank: its number.
        file: the run file; None for a run that was made in memory.
        environment: of the run.
        complete: whether the recording was stopped.
        notes: on what is missing or damaged.
        dropped: what was not kept, by cause.
        duration_ns: from the start of the run to its end or last heartbeat.
        began_realtime_ns: when the run began by the wall clock of its machine; None unknown. Not
            comparable between machines.
        steps: indices of the closed steps whose spans are all in the history, ascending (int64);
            without those that were profiled.
        steps_ended: how many steps ended in the whole run.
        step_begin_ns, step_ns: begin and duration of each step (int64).
        paths: the phases on the steps' own thread.
        first_begin_ns: by path and step, when the first call of the phase began (int64); -1 where
            the step has no such call.
        last_end_ns: by path and step, when the last call of the phase ended (int64); -1 as well.
        self_ns: by path and step the host time without nested phases (int64); 0 where the step has
            no such call.
        device_ns: by path and step the device time (int64), that of nested phases included; -1
            where the step has no such call, or not all of its calls were timed on the device.
        processor_wait_ns: by step, how long its thread waited for a processor (float64); NaN where
            that was not read. None if it never was.
        thread_wait_share: for which share of the run the thread that waited longest for a processor
            did; None unknown.
        collectives: its collective operations, without the waits for them.
        waits: these; None if they were not looked for.
        stalls: what its watchdog saw.
        end: where it was when its file was last written.
        functions: of the program, those with most time in each phase; none if its stack was not
            sampled.
    """

    rank: int
    file: str | None
    environment: Mapping[str, Any]
    complete: bool
    notes: tuple[str, ...]
    dropped: Mapping[str, int]
    duration_ns: int
    began_realtime_ns: int | None
    steps: NDArray[np.int64]
    steps_ended: int
    step_begin_ns: NDArray[np.int64]
    step_ns: NDArray[np.int64]
    paths: tuple[str, ...]
    first_begin_ns: NDArray[np.int64]
    last_end_ns: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]
    processor_wait_ns: NDArray[np.float64] | None = None
    thread_wait_share: float | None = None
    collectives: Collectives = field(default_factory=Collectives)
    waits: RankWaits | None = None
    stalls: tuple[Stall, ...] = ()
    end: RunEnd = field(default_factory=RunEnd)
    functions: tuple[FunctionTime, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Job:
    """The ranks of one job. Two are equal only if they are the same object.

    Attributes:
        ranks: those whose runs are there, by number.
        world_size: how many ranks the job had.
        job_id: the launcher's; None if it gave none.
        missing: the ranks of which there is no run, and why, in a sentence each.
        notes: on the job as a whole: ranks with other phases, other revisions, a world that shrank.
        earlier: the run files of attempts after which a launcher started the job again, by attempt;
            the earliest first.
    """

    ranks: tuple[RankData, ...]
    world_size: int
    job_id: str | None = None
    missing: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    earlier: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def load(cls, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Job:
        """Read the run files of a job's ranks, one after the other, and keep of each what is
        compared: 24 bytes per phase and step, 8 more where the device was timed, and 8 more where
        waits for other ranks were seen.

        A file that can't be read is left out, and `missing` or `notes` say so; so are runs in a
        folder that are of no rank, and runs of earlier attempts where a launcher has restarted the
        job: give their paths alone to read them.

        Args:
            paths: a run file or a folder, or several. Of a folder all files `*.gpurun` in it and in
                those below.

        Raises:
            OSError: a path does not exist, or a folder cannot be read.
            JobError: the runs are not ranks of one job, or none can be read; the message says
                which are, and what to do.
        """
        job: Job = above("job.gather").load_job(paths)
        return job

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
        report = above("job.report")
        text: str = report.job_report(report.job_document_of(self), width, color)
        return text

    def __repr__(self) -> str:
        return f"<Job of {self.world_size} ranks, {len(self.ranks)} of them here>"
