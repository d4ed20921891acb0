# SPDX-License-Identifier: Apache-2.0
"""The report of `why` on how a job ended, or why it does not go on, as a document and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyinstrument_gpu.core.condition import Condition, ProgramEnd
from pyinstrument_gpu.core.file.attempts import EARLIER
from pyinstrument_gpu.job import ending as analysis
from pyinstrument_gpu.job.attempts import Attempt, attempts_parts
from pyinstrument_gpu.job.condition import (
    ProcessObservation,
    machines_of,
    monotonic_end_ns,
    open_stall,
    stuck_ns,
)
from pyinstrument_gpu.job.ending_words import EndingWords, place_of
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.ranks import MissingRank, missing_ranks
from pyinstrument_gpu.job.waits import last_collectives
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, Table, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    counted,
    duration,
    printable,
    ranks_text,
    reasons_of_ranks,
)
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.report.notes import notes_parts
from pyinstrument_gpu.report.plain import rounded

_MOST_RANKS = 16
_MOST_LINES = 12
_MOST_STACKS = 4
_STEPS = 3
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
    """The progress of a rank in a process group.

    Attributes:
        group: what the program calls it.
        sequence: number of the last operation that it had asked for; -1: of none.
        operation: such as "all_reduce".
        age_ns: how long before its last heartbeat it had asked for it.
        completed: number of the last one that was seen to end; missing if that is unknown.
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
    """The condition of a rank, or how it ended.

    Attributes:
        rank: its number.
        file: its run file.
        host, pid: the name of its machine, and the number of its process there.
        condition: in a word.
        exit_code, exception: of its program, where they are known.
        duration_ns: from the begin of its recording to its last heartbeat.
        before_last_ns: how long its last heartbeat was before the latest of any rank that ran on
            the same machine.
        silent_ns: how old its last heartbeat was when this was written; missing if the rank ran
            on another machine.
        where: in words where it was.
        step: index of the step that was open, or of the last one.
        is_step_open: which of the two it is.
        path: the innermost phase that was open.
        stuck_ns: for how long no step or phase had begun, and no operation had been asked for, at
            its last heartbeat.
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
    """The end of a job, or why it does not go on.

    Attributes:
        version: of this format.
        verdict: in one sentence.
        outcome: in a word.
        rank: who is named; missing if nobody is.
        suspects: the ranks between which it can't be told, that wait for each other, that are ahead
            of those that asked for another operation, that finished early or that are missing.
        likely_rank: which of them most likely stopped first; missing if none is likelier.
        evidence: what the verdict rests on, in sentences.
        job: the launcher's id of it.
        world_size: how many ranks it had; 1 for a program that is no job of several.
        ranks: who is named or suspected first, then those that ended, then the others.
        missing: ranks without a run.
        notes: what else is known to be damaged, or different between ranks.
        attempts: those after which the job was started again, the earliest first.
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
    attempts: tuple[Attempt, ...] = ()


def job_ending(
    job: Job,
    observations: Mapping[int, ProcessObservation] | None = None,
    attempts: Sequence[Attempt] = (),
) -> JobEnding:
    """The document of a job, or of a program alone as a job of one rank.

    Args:
        observations: by rank what could be seen of it; nothing by default.
        attempts: those before it.
    """
    seen = {} if observations is None else observations
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
        notes=tuple(
            note
            for note in job.notes
            if _SAID_OTHERWISE not in note and not note.startswith(EARLIER)
        ),
        attempts=tuple(attempts),
    )
    return rounded(document)


def _before_last_ns(job: Job) -> dict[int, int]:
    """Return by rank how long its last heartbeat was before the latest on its machine."""
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
    seen: Mapping[int, ProcessObservation],
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


def ending_report(ending: JobEnding, *, width: int | None = None, color: bool | None = None) -> str:
    """Return what `why` prints; `width` and `color` as in `for_terminal`."""
    return for_terminal(_parts(ending), width, color)


def _parts(ending: JobEnding) -> Iterator[Part]:
    yield Sentence(printable(ending.verdict), "title")
    for sentence in ending.evidence:
        yield Sentence(f"  {printable(sentence)}")
    yield Sentence()
    yield _table(ending.ranks[:_MOST_RANKS])
    others = Counter(rank.condition.value for rank in ending.ranks[_MOST_RANKS:])
    if others:
        parts = [f"{count:,} {condition}" for condition, count in others.items()]
        yield Sentence(f"... and {counted(sum(others.values()), 'more rank')}: {', '.join(parts)}")
    yield from _stacks(ending)
    yield from attempts_parts(ending.attempts)
    missing = reasons_of_ranks({one.rank: one.reason for one in ending.missing})
    yield from notes_parts([*missing, *ending.notes])


def _table(ranks: Sequence[RankEnding]) -> Table:
    headers = ["rank", "", "last heartbeat", "last steps", "collective"]
    rows = []
    for rank in ranks:
        last = max(rank.collectives, key=lambda one: -(one.age_ns or 0), default=None)
        operation = UNKNOWN
        if last is not None:
            operation = f"{last.operation or ''} {last.sequence}".strip()
        steps = [duration(one.duration_ns) for one in rank.last_steps[-_STEPS:]]
        cells = [
            rank.condition.value,
            _when(rank),
            ", ".join(steps) or UNKNOWN,
            operation if last is None or last.sequence >= 0 else "none",
        ]
        rows.append(Row(str(rank.rank), cells, note=rank.where))
    return table([*headers], [rows])


def _when(rank: RankEnding) -> str:
    if rank.silent_ns is not None:
        return f"{duration(rank.silent_ns)} ago"
    if rank.before_last_ns:
        return f"{duration(rank.before_last_ns)} before the last"
    return f"at {duration(rank.duration_ns)}"


def _stacks(ending: JobEnding) -> Iterator[Sentence]:
    """Yield what the watchdogs saw of the main threads, alike ones once; who is named or suspected
    comes first."""
    ranks_of: dict[Stack, list[int]] = {}
    for rank in ending.ranks:
        for stack in rank.stacks[:1]:
            ranks_of.setdefault(stack, []).append(rank.rank)
    for stack, ranks in list(ranks_of.items())[:_MOST_STACKS]:
        yield Sentence()
        of = "" if ending.world_size == 1 else f" of {ranks_text(sorted(ranks))}"
        yield Sentence(
            f"Python stack{of}, {printable(stack.thread)}, innermost call first", "title"
        )
        lines = stack.text.splitlines()
        for line in lines[:_MOST_LINES]:
            yield Sentence(f"  {printable(line.strip())}")
        if len(lines) > _MOST_LINES:
            yield Sentence(f"  ... and {counted(len(lines) - _MOST_LINES, 'more line')}", "note")
    if len(ranks_of) > _MOST_STACKS:
        yield Sentence(f"... and {counted(len(ranks_of) - _MOST_STACKS, 'more stack')}", "note")
