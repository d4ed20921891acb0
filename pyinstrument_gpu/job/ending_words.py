# SPDX-License-Identifier: Apache-2.0
"""Sentences on how a job ended, or why it does not go on."""

from __future__ import annotations

import ntpath
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from pyinstrument_gpu.core.condition import Condition, ProgramEnd
from pyinstrument_gpu.core.record import is_installed
from pyinstrument_gpu.job.condition import (
    FIRST_STEPS,
    FRESH_NS,
    LAG_NS,
    ProcessObservation,
    idle_ns,
    machines_of,
    monotonic_end_ns,
    open_stall,
    stuck_ns,
    was_cut_short,
)
from pyinstrument_gpu.job.ending import Conclusion, Doubt, Outcome
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.overdue import overdue_words, usual_words
from pyinstrument_gpu.job.waits import Wait
from pyinstrument_gpu.parts.words import capitalised, duration, ranks_text, size

_MOST_CHARACTERS = 200
_ALIKE = (
    "SIGKILL, SIGTERM, the kernel's out-of-memory killer, a crash of native code{gloo} and a lost "
    "machine look alike in a file, which is up to 100 ms behind its process."
)
_OF_GLOO = (
    ", gloo's abort where ranks ask for different operations (its output then names EnforceNotMet)"
)
"""What it had asked for is not in its file, and another rank may be the one that went astray."""

_UNEVEN = (
    "had fewer steps, as with fewer batches: give each rank as many (a DistributedSampler does, or "
    "drop_last=True where only the last ones differ), or put the loop into `with model.join():` of "
    "DistributedDataParallel."
)
_WITHOUT_A_WORD = {Condition.CUT_OFF, Condition.LOST}
_FRAME = re.compile(r'\s*File "(.+)", line (\d+),? in (.+)')


def line_of(rank: RankData) -> str | None:
    """Return the innermost line of the program in which its watchdog saw that nothing happened:
    "load (train.py:30)". None if there is no such line, or something has happened since."""
    stall = open_stall(rank)
    lines = [] if stall is None or not stall.stacks else stall.stacks[0][1].splitlines()
    for found in map(_FRAME.fullmatch, lines):
        if found is not None and not is_installed(found[1]):
            line = f"{ntpath.basename(found[1])}:{found[2]}"  # it knows both separators
            return line if found[3].startswith("<") else f"{found[3]} ({line})"
    return None


def place_of(rank: RankData) -> str:
    """Return where the rank was: "in backward/allreduce of step 1812"."""
    step, path = rank.end.step, rank.end.path
    if step is None:
        return "before the first step" if path is None else f"in {path}, before the first step"
    if rank.end.is_step_open:
        within = f"step {step.index}"
        return f"in {within}, outside phases" if path is None else f"in {path} of {within}"
    if not step.complete:
        where = "" if path is None else f" in {path} or after it"
        return f"in step {step.index}, which was cut short{where}"
    after = f"after step {step.index}"
    return after if path is None else f"in {path}, {after}"


class EndingWords:
    """The sentences of one job.

    Args:
        job: of one rank or more.
        found: what was concluded.
        observations: by rank what could be seen of it.
    """

    def __init__(
        self, job: Job, found: Conclusion, observations: Mapping[int, ProcessObservation]
    ) -> None:
        self._job = job
        self._found = found
        self._observations = observations
        self._ranks = {rank.rank: rank for rank in job.ranks}
        self._is_alone = job.world_size == 1
        conditions = found.conditions.values()
        self._is_going_on = any(
            one in (Condition.RUNNING, Condition.HANGING, Condition.STOPPED) for one in conditions
        )

    def verdict(self) -> str:
        """Return what became of the job, in one sentence."""
        outcome = self._found.outcome
        if outcome is Outcome.FINISHED:
            text = self._finished()
        elif outcome is Outcome.RUNNING:
            text = self._running()
        elif outcome is Outcome.STOPPED_FIRST:
            text = self._stopped_first()
        elif outcome is Outcome.HELD_UP:
            text = self._held_up()
        elif outcome is Outcome.DEADLOCK:
            wait = "wait" if self._is_going_on else "waited"
            text = f"{ranks_text(self._found.suspects)} {wait} for each other"
        elif outcome is Outcome.MISMATCH:
            text = self._mismatch()
        elif outcome is Outcome.FINISHED_EARLY:
            text = self._finished_early()
        elif outcome is Outcome.ABSENT:
            text = self._absent()
        else:
            text = f"can't tell {self._doubt()}"
        if self._job.missing and outcome in (Outcome.STOPPED_FIRST, Outcome.HELD_UP):
            text = f"of the ranks whose runs are there, {text}"
        return f"{capitalised(text).rstrip('.')}."

    def evidence(self) -> Iterator[str]:
        """Yield the evidence for that."""
        found = self._found
        if found.rank in self._ranks:
            yield from self._evidence_of(self._named())
        elif found.doubt is Doubt.TOO_CLOSE:
            conditions = {found.conditions[rank] for rank in found.suspects}
            if self._is_by_gloo and conditions & _WITHOUT_A_WORD:
                yield self._alike()
        is_first = found.outcome is Outcome.STOPPED_FIRST
        if found.outcome is Outcome.HELD_UP and found.rank is not None:
            yield from self._order(self._ranks[found.rank])
        if is_first and found.next_rank is not None and found.earlier_ns is not None:
            yield (
                f"Its last heartbeat is {duration(found.earlier_ns)} before that of rank "
                f"{found.next_rank}, the next to stop on its machine."
            )
        lost = [rank for rank in found.lost_peers if rank != found.rank]
        if lost:
            yield (
                f"{capitalised(ranks_text(lost))} ended because another rank did not answer, as "
                f"the exception says."
            )
        differs = found.mismatch
        if differs is not None and differs.ahead:
            asked = [rank for _, ranks in differs.operations for rank in ranks]
            behind = [rank for rank in asked if rank not in differs.ahead]
            were = "was" if len(differs.ahead) == 1 else "were"
            yield (
                f"{capitalised(self._place_of(differs.ahead))} {were} further on than "
                f"{self._place_of(behind)}: an operation may be left out there, or be one too many "
                f"on {ranks_text(behind)}."
            )
            if self._left_loop(behind, differs.ahead):
                yield f"The loop of {ranks_text(behind)} {_UNEVEN}"
        early = self._early()
        told = [wait for wait in found.waits if wait.is_long]
        told += [wait for rank in early or [found.rank] for wait in self._waits_for(rank)]
        told = [wait for wait in told if {*wait.behind} <= self._ranks.keys()]
        for wait in found.waits:
            # Under other numbers they need not have waited for each other.
            if wait in told and differs is None:
                yield self._wait(wait)
        others = [wait for wait in found.waits if not wait.is_long]
        if others and found.outcome is Outcome.UNKNOWN:
            yield from map(self._wait, others)
        cut_short = [
            rank.rank
            for rank in self._job.ranks
            if found.conditions[rank.rank] in (Condition.ENDED, *_WITHOUT_A_WORD)
            and was_cut_short(rank)
        ]
        if cut_short and not self._is_alone:
            yield (
                f"{capitalised(ranks_text(cut_short))} left the last step by an exception or a "
                "break."
            )
        is_by_steps = not any(rank.collectives.was_read for rank in self._job.ranks)
        is_judged = found.outcome in (Outcome.UNKNOWN, Outcome.HELD_UP)
        is_by_steps = is_by_steps and not any(wait.operation for wait in found.waits)
        if is_by_steps and is_judged and not self._is_alone:
            yield (
                "Collective operations were not recorded, so who waits for whom is judged by steps "
                "and phases alone."
            )
        if self._job.missing:
            yield f"There is no run of {ranks_text(self._job.missing)}."

    def _early(self) -> tuple[int, ...]:
        """Return the ranks that finished early."""
        if self._found.outcome is not Outcome.FINISHED_EARLY:
            return ()
        return self._found.suspects if self._found.rank is None else (self._found.rank,)

    def _left_loop(self, ranks: Sequence[int], others: Sequence[int]) -> bool:
        """Return whether the loop of some ranks had ended before steps that others began."""
        ends, began = ([self._ranks[rank].end.step for rank in some] for some in (ranks, others))
        least = min((-1 if step is None else step.index for step in began), default=-1)
        return all(
            step is not None and step.end_ns >= 0 and step.complete and step.index < least
            for step in ends
        )

    def _finished_early(self) -> str:
        early = self._early()
        waits = [wait for wait in self._waits_for(early[0]) if wait.waiting]
        wait = max(waits, key=lambda one: one.waited_ns)
        who, others = ranks_text(early), ranks_text(wait.waiting)
        has_finished = self._found.conditions[early[0]] is Condition.FINISHED
        subject = who if has_finished else f"the recording of {who}"
        verb, never = ("finished", "never did") if has_finished else ("ended", "had not by then")
        text = f"{subject} {verb} {place_of(self._ranks[early[0]])}"
        have = "has" if len(wait.waiting) == 1 else "have"
        had, waited = (have, f"{have} waited") if self._is_going_on else ("had", "waited")
        lost = {*wait.waiting} <= {*self._found.lost_peers}
        for_long = "" if lost else f", and {waited} {duration(wait.waited_ns)}"
        if wait.operation is not None:
            asked = "come to" if wait.group is None else "asked for"
            did = f"{had} {asked} {_operation(wait)}, which {who} {never}{for_long}"
            return f"{text}; {others} {did}"
        did_not_answer = ", and another rank did not answer" if lost else for_long
        return f"{text}; {others} went on to step {wait.sequence}{did_not_answer}"

    def _absent(self) -> str:
        wait = self._found.waits[-1]
        are, have = (
            "is" if len(wait.behind) == 1 else "are",
            "has" if len(wait.waiting) == 1 else "have",
        )
        text = f"{ranks_text(wait.behind)} {are} missing: {ranks_text(wait.waiting)}"
        if wait.operation is None:
            return f"{text} ended because a rank that is not among them did not answer"
        waited = f"{have} waited" if self._is_going_on else "waited"
        return (
            f"{text} {waited} {duration(wait.waited_ns)} in {_operation(wait)} for a rank that is "
            "not among them"
        )

    def _finished(self) -> str:
        codes = [ProgramEnd.of(rank.environment).exit_code for rank in self._job.ranks]
        are_known = None not in codes
        if self._is_alone and are_known:
            return "the program finished"
        if self._is_alone:
            return "the recording was ended; how the program ended is not in the file"
        text = f"all {len(codes):,} {'ranks finished' if are_known else 'recordings were ended'}"
        if self._job.missing:
            text = "all ranks whose runs are there finished"
        end = "" if are_known else "; with which exit codes the programs ended is not in the files"
        return text + end

    def _running(self) -> str:
        if self._is_alone:
            rank = self._job.ranks[0]
            overdue = self._overdue(rank)
            but = "" if overdue is None else f", but {overdue}"
            return f"the program is running, {place_of(rank)}{but}"
        text = "the job is running: no rank has stopped or hangs"
        starting = [rank for rank in self._job.ranks if rank.steps_ended < FIRST_STEPS]
        quiet_ns = min(map(idle_ns, starting), default=0)
        if quiet_ns < FRESH_NS:
            for one in self._job.ranks:
                words = self._overdue(one)
                if words is not None:
                    return f"{text}, but rank {one.rank} is {place_of(one)}: {words}"
            return text
        return (
            f"{text}, but nothing has happened for {duration(quiet_ns)} on "
            f"{ranks_text(rank.rank for rank in starting)}; until {FIRST_STEPS} steps have ended, "
            "the watchdog waits for three times its limit"
        )

    def _stopped_first(self) -> str:
        rank = self._named()
        condition = self._found.conditions[rank.rank]
        failed = condition is Condition.FAILED
        subject = "the program" if self._is_alone else f"rank {rank.rank}"
        first = "" if self._is_alone else " first"
        verb = "failed" if failed else "stopped"
        # A file is a little behind its process.
        seen = "" if rank.complete else "last seen "
        return f"{subject} {verb}{first}, {seen}{place_of(rank)}: {self._how(rank)}"

    def _how(self, rank: RankData) -> str:
        end, pid = ProgramEnd.of(rank.environment), rank.environment.get("pid")
        silent_ns = self._observations.get(rank.rank, ProcessObservation()).silent_ns
        process = "its process" if pid is None else f"its process {pid}"
        since = "" if silent_ns is None else f" for {duration(silent_ns)}"
        failure = f"exit code {end.exit_code}"
        no_word = "its file ends without a word"
        return {
            Condition.FAILED: failure if end.exception is None else _shortened(end.exception),
            Condition.CUT_OFF: f"{no_word}, and {process} is gone",
            Condition.LOST: f"{no_word}, and whether {process} lives can't be seen from here",
            Condition.STOPPED: f"{process} is held by a signal (SIGSTOP) or a debugger",
            Condition.SILENT: f"{process} lives, and its recorder has written nothing{since}",
            Condition.UNWRITTEN: f"its file could not be written any more ({rank.end.error})",
            Condition.ENDED: "its recording was ended there",
            Condition.FINISHED: "its recording was ended there",
            Condition.HANGING: f"{process} lives",
            Condition.RUNNING: f"{process} lives",
        }[self._found.conditions[rank.rank]]

    def _held_up(self) -> str:
        rank = self._named()
        stuck = duration(stuck_ns(rank))
        if self._is_alone:
            usual = usual_words(rank.step_ns)
            return f"the program {self._hangs()}, {place_of(rank)}: {self._nothing(stuck)}{usual}"
        place, then = place_of(rank), self._then(rank)
        if then:
            place += self._line_and_time(rank)
        waits = self._waits_for(rank.rank)
        if not waits and not self._gave_up():
            others = sorted(self._ranks.keys() - {rank.rank})
            have = "has" if len(others) == 1 else "have"
            have = have if self._is_going_on else "had"
            return (
                f"rank {rank.rank} {self._hangs()}, {place}: {self._nothing(stuck)}. "
                f"{capitalised(ranks_text(others))} {have} finished"
            )
        if not waits:
            return f"rank {rank.rank} held up the job, {place}: {self._who_gave_up()} for it{then}"
        wait = max(waits, key=lambda one: one.waited_ns)
        holds = "holds" if self._is_going_on else "held"
        waited = "waited"
        if self._is_going_on:
            waited = "has waited" if len(wait.waiting) == 1 else "have waited"
        text = f"rank {rank.rank} {holds} up the job, {place}"
        for_it = f"{ranks_text(wait.waiting)} {waited} {duration(wait.waited_ns)} for it"
        if wait.group is None and wait.operation is None:
            is_behind = "is" if self._is_going_on else "was"
            has = "has" if self._is_going_on or not then else "had"
            gave_up = ", which gave up" if then else ""
            return (
                f"rank {rank.rank} {is_behind} behind, {place}: nothing {has} happened for "
                f"{duration(wait.waited_ns)} on {ranks_text(wait.waiting)}, further on{gave_up}"
                f"{then}"
            )
        gave_up = ""
        lost = [one for one in wait.waiting if one in self._gave_up()]
        if lost and set(lost) == {*wait.waiting}:
            gave_up = " and gave up"
        elif lost:
            gave_up = f", and {ranks_text(lost)} gave up"
        return f"{text}: {for_it} in {_operation(wait)}{gave_up}{then}"

    def _waits_for(self, rank: int | None) -> list[Wait]:
        """Return the waits for a rank that are long, or ended when others gave up."""
        gave_up = {*self._found.lost_peers} if self._early() else self._gave_up()
        return [
            one
            for one in self._found.waits
            if rank in one.behind and (one.is_long or gave_up & {*one.waiting})
        ]

    def _waiting_for(self, rank: int) -> list[int]:
        return sorted({one for wait in self._waits_for(rank) for one in wait.waiting})

    def _gave_up(self) -> set[int]:
        """Return the ranks that gave up when who is named was still there."""
        return {*self._found.gave_up} & {*self._found.lost_peers}

    def _then(self, rank: RankData) -> str:
        """Return what became of who is named after others gave up, as the end of a sentence."""
        if not self._gave_up():
            return ""
        condition = self._found.conditions[rank.rank]
        if condition in _WITHOUT_A_WORD:
            return f"; then rank {rank.rank} was ended"
        too = ", too" if rank.rank in self._found.lost_peers else ""
        return f"; then rank {rank.rank} failed{too}" if condition is Condition.FAILED else ""

    def _line_and_time(self, rank: RankData) -> str:
        """Return in which line of the program it did nothing, and from when on."""
        line = line_of(rank)
        if line is None and stuck_ns(rank) < FRESH_NS:
            return ""
        since = ""
        if rank.began_realtime_ns is not None:
            at_ns = rank.began_realtime_ns + rank.duration_ns - stuck_ns(rank)
            moment = datetime.fromtimestamp(at_ns // 10**9, timezone.utc)
            since = f", from {moment:%H:%M:%S} UTC on"
        if line is None:
            return since
        return f", in {line}{since}" if line.endswith(")") else f" ({line}){since}"

    def _order(self, rank: RankData) -> Iterator[str]:
        """Yield when the others gave up, next to its own end."""
        found = self._found
        if found.outlived_ns is not None and found.gave_up:
            first = min(found.gave_up, key=lambda one: monotonic_end_ns(self._ranks[one]) or 0)
            gave_up = "gave up" if first in found.lost_peers else "ended"
            yield (
                f"It was still there {duration(found.outlived_ns)} after rank {first} {gave_up}, "
                "by the clock of their machine."
            )
            return
        lost = sorted({*self._waiting_for(rank.rank)} & {*found.lost_peers})
        machines = machines_of(self._ranks[one] for one in (rank.rank, *lost))
        if lost and all(machines.get(one) != machines.get(rank.rank, -1) for one in lost):
            who = ranks_text(lost)
            yield (
                f"It ran on another machine than {who}, and clocks of two machines can't be "
                f"compared: whether it was ended before {who} gave up, or after that, is not known."
            )

    def _who_gave_up(self) -> str:
        return f"{ranks_text(sorted(self._gave_up()))} gave up waiting"

    def _hangs(self) -> str:
        return "hangs" if self._is_going_on else "hung"

    def _nothing(self, stuck: str) -> str:
        """Return for how long nothing has happened, or had."""
        if self._is_going_on:
            return f"nothing has happened for {stuck}"
        return f"nothing had happened for {stuck} when it was ended"

    def _place_of(self, ranks: Sequence[int]) -> str:
        """Return some ranks, and where the first of them is."""
        place = place_of(self._ranks[ranks[0]])
        first = "" if len(ranks) == 1 else f"rank {ranks[0]} "
        return f"{ranks_text(ranks)} ({first}{place})"

    def _mismatch(self) -> str:
        found = self._found.mismatch
        assert found is not None
        parts = [f"{name} on {ranks_text(ranks)}" for name, ranks in found.operations]
        return (
            f"ranks asked for different operations as number {found.sequence} of {found.group}: "
            + ", ".join(parts)
            + ("" if not found.ahead else f"; {ranks_text(found.ahead)} came further")
        )

    def _doubt(self) -> str:
        found = self._found
        who = ranks_text(found.suspects)
        between = f"which of {who} stopped first"
        if found.doubt is Doubt.MACHINES:
            return f"{between}: they ran on machines whose clocks can't be compared{self._steps()}"
        if found.doubt is Doubt.TOO_CLOSE:
            ends_ns = [monotonic_end_ns(self._ranks[rank]) or 0 for rank in found.suspects]
            text = (
                f"{between}: their last heartbeats are {duration(max(ends_ns) - min(ends_ns))} "
                f"apart, and a file may be {duration(LAG_NS)} behind its process"
            )
            likely = found.likely_rank
            if likely is not None:
                seen = place_of(self._ranks[likely])
                text += f"; most likely rank {likely} did, last seen {seen}"
            return text
        if found.doubt is Doubt.SEVERAL_BEHIND:
            return f"which rank holds up the job: {who} are behind"
        if found.doubt is Doubt.NOBODY_BEHIND:
            stuck_for_ns = min(stuck_ns(self._ranks[rank]) for rank in found.suspects)
            waits, has = ("waits", "has") if self._is_going_on else ("waited", "had")
            return (
                f"what the job {waits} for: nothing {has} happened for {duration(stuck_for_ns)} on "
                f"{who}, and no rank is known to be behind"
            )
        if found.doubt is Doubt.LOST_PEERS:
            lost = [self._ranks[rank] for rank in found.suspects]
            are_apart = len({*machines_of(lost).values()}) > 1
            apart = ", and ran on machines whose clocks can't be compared" if are_apart else ""
            return (
                f"which rank stopped first: {who} ended because another rank did not answer{apart}"
            )
        if found.doubt is Doubt.OUTLIVED and found.outlived_ns is not None:
            were = "which was" if len(found.suspects) == 1 else "which were"
            return (
                f"which rank held up the job: {ranks_text(found.gave_up)} gave up "
                f"{duration(found.outlived_ns)} before the last heartbeat of {who}, {were} ended "
                "after that"
            )
        if found.doubt is Doubt.OUTLIVED:
            return f"what the job waited for: {who} gave up, though all had asked"
        if len(found.suspects) == 1:
            return f"whether {who} stopped: its file could not be written to its end"
        return f"{between}: a file could not be written to its end"

    def _steps(self) -> str:
        steps = {
            step.index
            for step in (self._ranks[rank].end.step for rank in self._found.suspects)
            if step is not None
        }
        return f", and were in step {steps.pop()}" if len(steps) == 1 else ""

    def _evidence_of(self, rank: RankData) -> Iterator[str]:
        condition = self._found.conditions[rank.rank]
        event = rank.end.out_of_memory
        if event is not None:
            where = "outside phases" if event.path is None else f"in {event.path}"
            step = "outside steps" if event.step is None else f"step {event.step}"
            yield (
                f"Its GPU {event.device} ran out of memory {where}, {step}: "
                f"{size(event.request_bytes)} were asked for and {size(event.free_bytes)} of "
                f"{size(event.limit_bytes)} were free."
            )
        if condition in _WITHOUT_A_WORD and not self._gave_up():
            yield self._alike()
        if self._is_alone:
            return
        if self._early() and self._left_loop([rank.rank], self._waiting_for(rank.rank)):
            yield f"Its loop {_UNEVEN}"
        if self._early():
            return
        waited_ns = max((one.waited_ns for one in self._waits_for(rank.rank)), default=None)
        if waited_ns is None:
            return
        stuck = duration(stuck_ns(rank))
        is_running = condition is Condition.RUNNING
        if self._found.outcome is Outcome.HELD_UP and is_running and idle_ns(rank) < FRESH_NS:
            yield f"{capitalised(self._how(rank))}, and does something: it need not hang."
        elif self._found.outcome is Outcome.HELD_UP:
            yield f"{capitalised(self._how(rank))}. Nothing had happened in its file for {stuck}."
            # Its watchdog has not yet looked, and there is no stack.
            overdue = self._overdue(rank) if is_running else None
            if overdue is not None:
                yield f"{capitalised(overdue)}."
        elif condition is not Condition.STOPPED:
            yield (
                f"Its file ends {stuck} after the last thing that happened in it, and others "
                f"waited {duration(waited_ns)}, so it had stopped by then."
            )

    def _alike(self) -> str:
        """Return what may have ended a process whose file ends without a word."""
        return _ALIKE.format(gloo=_OF_GLOO if self._is_by_gloo else "")

    @property
    def _is_by_gloo(self) -> bool:
        """True if gloo may have ended a process. It does so at once, so nobody has waited long."""
        of_ranks = [rank.collectives for rank in self._job.ranks]
        backends = {group.backend for one in of_ranks for group in one.groups}
        is_long = any(wait.is_long for wait in self._found.waits)
        # Of a job that has just begun, no group may have been read.
        return not is_long and backends <= {"gloo"} and any(one.was_read for one in of_ranks)

    def _wait(self, wait: Wait) -> str:
        behind, waiting = ranks_text(wait.behind), ranks_text(wait.waiting)
        waited = duration(wait.waited_ns)
        if wait.group is None and wait.operation is not None:
            text = f"As their watchdogs saw, {waiting} had been in {_operation(wait)}"
            if wait.is_for_peer:
                return f"{text} with {behind} for {waited}."
            return f"{text} for {waited}; {behind} had not."
        if wait.group is None:
            return (
                f"{capitalised(behind)} did not get as far in the steps as {waiting}, where "
                f"nothing had happened for {waited}."
            )
        if {*wait.waiting} <= self._gave_up():
            return (
                f"{capitalised(waiting)} had asked for {_operation(wait)}, and gave up {waited} "
                f"later; {behind} had not."
            )
        return (
            f"{capitalised(waiting)} had asked for {_operation(wait)}, the earliest {waited} "
            f"before its last heartbeat; {behind} had not."
        )

    def _overdue(self, rank: RankData) -> str | None:
        silent_ns = self._observations.get(rank.rank, ProcessObservation()).silent_ns or 0
        return overdue_words(rank.end.step, rank.step_ns, rank.duration_ns + silent_ns)

    def _named(self) -> RankData:
        assert self._found.rank is not None
        return self._ranks[self._found.rank]


def _operation(wait: Wait) -> str:
    if wait.group is None:
        return f"{wait.operation} of torch.distributed"
    return f"{wait.operation or 'operation'} {wait.sequence} of {wait.group}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
