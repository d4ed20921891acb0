# SPDX-License-Identifier: Apache-2.0
"""How a job ended, or why it does not go on, as a document: what `why` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyinstrument_gpu.core.condition import Condition, ProgramEnd
from pyinstrument_gpu.document.ending_words import EndingWords, place_of
from pyinstrument_gpu.document.job_ranks import MissingRank, missing_ranks
from pyinstrument_gpu.document.plain import rounded
from pyinstrument_gpu.job import ending as analysis
from pyinstrument_gpu.job.condition import (
    Sighting,
    machines_of,
    monotonic_end_ns,
    open_stall,
    stuck_ns,
)
from pyinstrument_gpu.job.data import JobData, RankData
from pyinstrument_gpu.job.waits import last_collectives

_SAID_OTHERWISE = "the recording was not stopped"
ENDING_VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""


@dataclass(frozen=True)
class LastStep:
    """A step that had ended.

    Attributes:
        step: its index.
        duration_ns: from its begin to its end.
        is_complete: whether it ran to its end, not left by an exception or break.
    """

    step: int
    duration_ns: int
    is_complete: bool


@dataclass(frozen=True)
class LastCollective:
    """How far a rank was in a process group.

    Attributes:
        group: what the program calls it.
        sequence: number of the last operation that it had asked for; -1: of none.
        operation: such as "all_reduce".
        age_ns: how long before its last sign of life it had asked for it.
        completed: number of the last one that was seen to end; missing if that can't be told.
    """

    group: str
    sequence: int
    operation: str | None
    age_ns: int | None
    completed: int | None


@dataclass(frozen=True)
class Stack:
    """The Python stack of a thread, as the watchdog saw it.

    Attributes:
        thread: its name.
        text: a line for each call, the innermost first.
    """

    thread: str
    text: str


@dataclass(frozen=True)
class RankEnding:
    """How a rank is, or how it ended.

    Attributes:
        rank: its number.
        file: its run file.
        host, pid: the name of its machine, and the number of its process there.
        condition: in a word.
        exit_code, exception: of its program, where they are known.
        duration_ns: from the begin of its recording to its last sign of life.
        before_last_ns: how long its last sign of life was before the latest of any rank that ran on
            the same machine.
        silent_ns: how old its last sign of life was when this was written; missing if the rank ran
            on another machine.
        where: in words where it was.
        step: index of the step that was open, or of the last one.
        is_step_open: which of the two it is.
        path: the innermost phase that was open.
        stuck_ns: for how long no step or phase had begun, and no operation had been asked for, at
            its last sign of life.
        last_steps: the oldest first.
        collectives: by process group.
        waits_for: the ranks that it waits for.
        stacks: of its threads, if it hangs and its watchdog saw it.
    """

    rank: int
    file: str | None
    host: str | None
    pid: int | None
    condition: Condition
    exit_code: int | None
    exception: str | None
    duration_ns: int
    before_last_ns: int | None
    silent_ns: int | None
    where: str
    step: int | None
    is_step_open: bool
    path: str | None
    stuck_ns: int
    last_steps: tuple[LastStep, ...]
    collectives: tuple[LastCollective, ...]
    waits_for: tuple[int, ...]
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class JobEnding:
    """How a job ended, or why it does not go on.

    Attributes:
        version: of this format.
        verdict: in one sentence.
        outcome: in a word.
        rank: who is named; missing if nobody is.
        suspects: the ranks between which it can't be told, or that wait for each other.
        likely_rank: which of them most likely stopped first; missing if none is likelier.
        evidence: what the verdict rests on, in sentences.
        job: the launcher's id of it.
        world_size: how many ranks it had; 1 for a program that is no job of several.
        ranks: who is named or suspected first, then those that ended, then the others.
        missing: ranks without a run.
        notes: what else is known to be damaged, or different between ranks.
    """

    version: int
    verdict: str
    outcome: analysis.Outcome
    rank: int | None
    suspects: tuple[int, ...]
    evidence: tuple[str, ...]
    job: str | None
    world_size: int
    ranks: tuple[RankEnding, ...]
    missing: tuple[MissingRank, ...]
    notes: tuple[str, ...]
    likely_rank: int | None = None


def job_ending(job: JobData, sightings: Mapping[int, Sighting] | None = None) -> JobEnding:
    """The document of a job, or of a program alone as a job of one rank.

    Args:
        sightings: by rank what could be seen of it; nothing by default.
    """
    seen = {} if sightings is None else sightings
    found = analysis.ending(job, seen)
    words = EndingWords(job, found, seen)
    first = [*([] if found.rank is None else [found.rank]), *found.suspects]

    def interest(rank: RankData) -> tuple[int, bool, int]:
        number = rank.rank
        place = first.index(number) if number in first else len(first)
        return place, not found.conditions[number].has_ended, number

    before_last_ns = _before_last_ns(job)
    document = JobEnding(
        version=ENDING_VERSION,
        verdict=words.verdict(),
        outcome=found.outcome,
        rank=None if job.world_size == 1 else found.rank,
        suspects=found.suspects,
        evidence=tuple(words.evidence()),
        job=job.job_id,
        world_size=job.world_size,
        ranks=tuple(
            _rank(rank, found, seen, before_last_ns.get(rank.rank))
            for rank in sorted(job.ranks, key=interest)
        ),
        missing=missing_ranks(job),
        likely_rank=found.likely_rank,
        notes=tuple(note for note in job.notes if _SAID_OTHERWISE not in note),
    )
    return rounded(document)


def _before_last_ns(job: JobData) -> dict[int, int]:
    """By rank how long its last sign of life was before the latest on its machine."""
    machines = machines_of(job.ranks)
    ends_ns = {rank.rank: monotonic_end_ns(rank) for rank in job.ranks}
    latest_ns: dict[int, int] = {}
    for rank, machine in machines.items():
        latest_ns[machine] = max(latest_ns.get(machine, 0), ends_ns[rank] or 0)
    return {
        rank: latest_ns[machine] - end_ns
        for rank, machine in machines.items()
        if (end_ns := ends_ns[rank]) is not None
    }


def _rank(
    rank: RankData,
    found: analysis.Conclusion,
    seen: Mapping[int, Sighting],
    before_last_ns: int | None,
) -> RankEnding:
    end, environment = rank.end, rank.environment
    waits = [wait for wait in found.waits if wait.is_long and rank.rank in wait.waiting]
    stall = open_stall(rank)
    of_program = ProgramEnd.of(rank.environment)
    return RankEnding(
        rank=rank.rank,
        file=rank.file,
        host=environment.get("host"),
        pid=environment.get("pid"),
        condition=found.conditions[rank.rank],
        exit_code=of_program.exit_code,
        exception=of_program.exception,
        duration_ns=rank.duration_ns,
        before_last_ns=before_last_ns,
        silent_ns=seen[rank.rank].silent_ns if rank.rank in seen else None,
        where=place_of(rank),
        step=None if end.step is None else end.step.index,
        is_step_open=end.is_step_open,
        path=end.path,
        stuck_ns=stuck_ns(rank),
        last_steps=tuple(
            LastStep(step.index, step.end_ns - step.begin_ns, step.complete)
            for step in end.last_steps
        ),
        collectives=tuple(
            LastCollective(
                last.group.label,
                last.sequence,
                last.operation,
                None if last.created_ns < 0 else max(0, rank.duration_ns - last.created_ns),
                last.completed,
            )
            for last in last_collectives(rank)
        ),
        waits_for=tuple(sorted({other for wait in waits for other in wait.behind})),
        stacks=() if stall is None else tuple(Stack(*one) for one in stall.stacks),
    )
