# SPDX-License-Identifier: Apache-2.0
"""What `why` says of what is left of a job, for every way in which one may end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.aspects.memory.data import OutOfMemory
from pyinstrument_gpu.aspects.stalls.data import GroupProgress
from pyinstrument_gpu.core.file.json_document import PathName
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.ending_report import ending_report
from pyinstrument_gpu.job.job import RankData
from tests.helpers.job_endings import (
    ALIVE,
    GONE,
    HELD,
    MS,
    MUTE,
    S,
    asked,
    collectives,
    group,
    job,
    looked,
    outcome,
    rank,
    said,
    stalled,
    starting,
)

ALIKE = (
    "SIGKILL, SIGTERM, the kernel's out-of-memory killer, a crash of native code and a lost "
    "machine look alike in a file, which is up to 100 ms behind its process."
)
BY_STEPS = (
    "Collective operations were not recorded, so who waits for whom is judged by steps and phases "
    "alone."
)


# One rank that stopped


def test_one_was_killed_and_the_others_lost_it() -> None:
    lost = [rank(i, complete=True, lost_peer=True, exit_code=1) for i in (0, 2)]
    document = said(job(lost[0], rank(1, path="forward"), lost[1]), ALIVE, GONE, ALIVE)
    assert document.verdict == (
        "Rank 1 stopped first, last seen in forward of step 41: its file ends without a word, and "
        "its process 4001 is gone."
    )
    assert document.rank == 1
    assert document.evidence[0] == ALIKE
    assert document.evidence[-1] == (
        "Ranks 0 and 2 ended because another rank did not answer, as the exception says."
    )
    assert [one.rank for one in document.ranks] == [1, 0, 2]
    assert [one.condition for one in document.ranks] == ["cut off", "failed", "failed"]


def test_one_raised_and_the_others_lost_it() -> None:
    raised = rank(1, complete=True, exception="ValueError", path="forward")
    document = said(job(rank(0, complete=True, lost_peer=True), raised), GONE, GONE)
    assert document.verdict == (
        "Rank 1 failed first, in step 41, which was cut short in forward or after it: ValueError."
    )
    assert outcome(document) == ("stopped first", 1, ())


def test_one_ended_with_an_exit_code() -> None:
    ended = rank(1, complete=True, exit_code=3, path=None, is_cut_short=False)
    document = said(job(rank(0, complete=True, lost_peer=True), ended), GONE, GONE)
    assert document.verdict == "Rank 1 failed first, after step 41: exit code 3."


def test_one_is_held_by_a_signal_while_the_others_wait() -> None:
    others = [rank(i, stuck_ns=31 * S) for i in (0, 2)]
    document = said(job(others[0], rank(1, path="forward"), others[1]), ALIVE, HELD, ALIVE)
    assert document.verdict == (
        "Rank 1 stopped first, last seen in forward of step 41: its process 4001 is held by a "
        "signal (SIGSTOP) or a debugger."
    )
    assert [one.condition for one in document.ranks] == ["stopped", "hanging", "hanging"]
    assert [one.waits_for for one in document.ranks] == [(), (1,), (1,)]


def test_one_is_silent() -> None:
    document = said(job(rank(0, stuck_ns=31 * S), rank(1, path="forward")), ALIVE, MUTE)
    assert document.verdict == (
        "Rank 1 stopped first, last seen in forward of step 41: its process 4001 lives, and its "
        "recorder has written nothing for 31.0 s."
    )


def test_of_another_machine_it_can_not_be_seen_whether_it_lives() -> None:
    left = rank(1, path="forward", host="other")
    writing = ProcessObservation(is_writing=True)
    document = said(job(rank(0, stuck_ns=31 * S), left), writing, ProcessObservation())
    assert document.verdict == (
        "Rank 1 stopped first, last seen in forward of step 41: its file ends without a word, and "
        "whether its process 4001 lives can't be seen from here."
    )
    assert [one.condition for one in document.ranks] == ["lost", "hanging"]


def test_out_of_memory_is_said_where_it_was_noted() -> None:
    event = OutOfMemory(
        path=PathName("forward"),
        step=41,
        device=0,
        request_bytes=2 << 30,
        limit_bytes=8 << 30,
        free_bytes=1 << 30,
    )
    oom = rank(1, complete=True, exception="OutOfMemoryError")
    oom = replace(oom, end=replace(oom.end, out_of_memory=event))
    document = said(job(rank(0, complete=True, lost_peer=True), oom), GONE, GONE)
    assert document.rank == 1
    assert document.evidence[0] == (
        "Its GPU 0 ran out of memory in forward, step 41: 2.00 GiB were asked for and 1.00 GiB of "
        "8.00 GiB were free."
    )


# Several that stopped


@pytest.mark.parametrize(("apart_ns", "named"), [(320 * MS, 1), (300 * MS, None)])
def test_by_the_clock_of_one_machine(apart_ns: int, named: int | None) -> None:
    of = job(rank(0, at_ns=5 * S + apart_ns), rank(1, at_ns=5 * S))
    document = said(of, GONE, GONE)
    assert document.rank == named
    if named is None:
        assert document.verdict == (
            "Can't tell which of ranks 0-1 stopped first: their last heartbeats are "
            "300 ms apart, and a file may be 300 ms behind its process."
        )
        assert document.suspects == (0, 1)
    else:
        assert document.evidence[1] == (
            "Its last heartbeat is 320 ms before that of rank 0, the next to stop on its machine."
        )


def test_only_those_that_may_have_been_first_are_suspected() -> None:
    of = job(rank(0, at_ns=5 * S), rank(1, at_ns=5 * S + MS), rank(2, at_ns=9 * S))
    assert outcome(said(of, GONE, GONE, GONE)) == ("unknown", None, (0, 1))


@pytest.mark.parametrize(("stuck_ns", "likely"), [(520 * MS, 1), (480 * MS, None)])
def test_the_only_one_behind_is_the_likeliest(stuck_ns: int, likely: int | None) -> None:
    """Of two that were killed within 250 ms: the other had waited for five steps' time, or less."""
    waiting = rank(0, stuck_ns=stuck_ns)
    end_ns = waiting.duration_ns
    of = job(waiting, rank(1, step=40, path="forward", at_ns=end_ns - 250 * MS))
    document = said(of, GONE, GONE)
    assert (document.rank, document.suspects, document.likely_rank) == (None, (0, 1), likely)
    told = "; most likely rank 1 did, last seen in forward of step 40."
    assert document.verdict.endswith(told if likely else "behind its process.")


@pytest.mark.parametrize("left", [(0,), (1,), (0, 1), ()])
def test_the_only_one_that_no_exception_had_stopped_is_the_likeliest(left: tuple[int, ...]) -> None:
    """Of two that ended within 40 ms. Who left a step by an exception was still there then."""
    of = job(rank(0, at_ns=5 * S + 40 * MS), rank(1, at_ns=5 * S))
    ranks = [
        replace(one, end=replace(one.end, left_step_ns=one.duration_ns + MS))
        if one.rank in left
        else one
        for one in of.ranks
    ]
    document = said(job(*ranks), GONE, GONE)
    assert outcome(document) == ("unknown", None, (0, 1))
    assert document.likely_rank == (1 - left[0] if len(left) == 1 else None)
    told = "Rank 0 left the last step by an exception or a break."
    assert (told in document.evidence) == (left == (0,))


def test_a_rank_was_there_when_an_exception_left_its_step() -> None:
    """The last heartbeats are 300 ms apart, which alone could be either."""
    later, first = rank(0, at_ns=5 * S + 300 * MS), rank(1, at_ns=5 * S)
    later = replace(later, end=replace(later.end, left_step_ns=5 * S + 320 * MS))
    assert outcome(said(job(later, first), GONE, GONE)) == ("stopped first", 1, ())


def test_clocks_of_two_machines_are_never_compared() -> None:
    of = job(rank(0, at_ns=6 * S), rank(1, at_ns=5 * S, host="other"))
    document = said(of, GONE, GONE)
    assert document.verdict == (
        "Can't tell which of ranks 0-1 stopped first: they ran on machines whose clocks can't be "
        "compared, and were in step 41."
    )
    assert [one.before_last_ns for one in document.ranks] == [0, 0]


def test_a_machine_of_the_same_name_that_was_started_again_is_another_one() -> None:
    second = rank(1, at_ns=5 * S)
    anchor = {**second.end.anchor, "monotonic_ns": 20 * S}
    of = job(rank(0, at_ns=6 * S), replace(second, end=replace(second.end, anchor=anchor)))
    assert outcome(said(of, GONE, GONE)) == ("unknown", None, (0, 1))


def test_an_exception_can_be_older_than_the_end_of_its_recording() -> None:
    # Rank 1 was killed while rank 0 was in the step that it left by an exception.
    failed = rank(0, complete=True, exception="ValueError", at_ns=9 * S)
    assert outcome(said(job(failed, rank(1, at_ns=5 * S)), GONE, GONE))[1] == 1
    # Rank 0 had ended its recording when rank 1 still lived.
    failed = rank(0, complete=True, exception="ValueError", at_ns=5 * S)
    assert outcome(said(job(failed, rank(1, at_ns=5 * S + 50 * MS)), GONE, GONE))[1] == 0
    # Its last step had ended long before its recording did: its end lies somewhere in between.
    late = rank(0, complete=True, exception="ValueError", at_ns=5 * S)
    late = replace(late, duration_ns=9 * S)
    assert outcome(said(job(late, rank(1, at_ns=5 * S)), GONE, GONE))[1] is None


def test_all_lost_another_rank() -> None:
    of = job(
        *(rank(i, complete=True, lost_peer=True) for i in (0, 1)),
        world_size=3,
        missing={2: "there is no run file of it"},
    )
    document = said(of, GONE, GONE)
    assert document.verdict == (
        "Rank 2 is missing: ranks 0-1 ended because a rank that is not among them did not answer."
    )
    assert outcome(document) == ("absent", 2, ())
    assert document.evidence[-1] == "There is no run of rank 2."


def test_a_file_that_could_not_be_written_says_nothing_of_its_end() -> None:
    full = rank(0, at_ns=2 * S, error="No space left on device")
    document = said(job(full, rank(1, at_ns=5 * S)), GONE, GONE)
    assert outcome(document) == ("unknown", None, (0, 1))
    document = said(job(full, rank(1, complete=True, exit_code=0)), GONE, GONE)
    assert document.verdict == (
        "Can't tell whether rank 0 stopped: its file could not be written to its end."
    )
    # It lives, so it is none of those that stopped.
    assert outcome(said(job(full, rank(1, at_ns=5 * S)), ALIVE, GONE)) == ("stopped first", 1, ())


# Who waits for whom


def test_one_is_behind_and_lives() -> None:
    of = job(asked(0, 41, 31 * S), asked(1, 41, 31 * S, "data"), asked(2, 41, 30 * S), world_size=3)
    document = said(of, ALIVE, ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 1 holds up the job, in data of step 41: ranks 0 and 2 have waited 31.0 s for it in "
        "all_reduce 41 of group_0."
    )
    assert document.evidence == (
        "Its process 4001 lives. Nothing had happened in its file for 31.0 s.",
        "Ranks 0 and 2 had asked for all_reduce 41 of group_0, the earliest 31.0 s before its "
        "last heartbeat; rank 1 had not.",
    )
    assert [one.waits_for for one in document.ranks] == [(), (1,), (1,)]
    assert document.ranks[0].collectives[0].sequence == 40
    assert document.ranks[1].collectives[0].age_ns == 31 * S


def test_before_the_watchdog_looks_the_time_is_told() -> None:
    behind = asked(1, 41, 9 * S, "data", is_watched=False)
    of = job(asked(0, 41, 9 * S, is_watched=False), behind)
    document = said(of, ALIVE, ALIVE)
    assert outcome(document) == ("held up", 1, ())
    assert document.evidence[:2] == (
        "Its process 4001 lives. Nothing had happened in its file for 9.00 s.",
        "The step has taken 9 s so far; a step takes 100 ms at the median.",
    )


def test_who_has_never_asked_for_an_operation_of_a_group_is_behind_in_it() -> None:
    first, never = asked(0, 0, 31 * S), rank(1, step=0, path="data", stuck_ns=31 * S)
    first = replace(first, collectives=replace(first.collectives, groups=(group((0, 1)),)))
    never = stalled(replace(never, collectives=Collectives(was_read=True)), -1)
    assert outcome(said(job(first, never), ALIVE, ALIVE)) == ("held up", 1, ())
    # Some may have been missed.
    never = replace(never, stalls=())
    missed = replace(never, collectives=Collectives(was_read=True, missed=1))
    assert outcome(said(job(first, missed), ALIVE, ALIVE))[1] is None


def test_on_other_machines_lengths_of_time_say_who_had_stopped() -> None:
    waiting = [asked(i, 41, 31 * S, host=f"node{i}") for i in (0, 2)]
    gone = asked(1, 41, 200 * MS, "forward", host="node1")
    document = said(
        job(waiting[0], gone, waiting[1]),
        ProcessObservation(),
        ProcessObservation(),
        ProcessObservation(),
    )
    assert document.rank == 1
    assert document.outcome == "stopped first"
    assert document.evidence[1] == (
        "Its file ends 200 ms after the last thing that happened in it, and others waited "
        "31.0 s, so it had stopped by then."
    )
    # It lived on, and did nothing.
    hung = asked(1, 41, 31 * S, "forward", host="node1")
    document = said(
        job(waiting[0], hung, waiting[1]),
        ProcessObservation(),
        ProcessObservation(),
        ProcessObservation(),
    )
    assert document.verdict == (
        "Rank 1 held up the job, in forward of step 41: ranks 0 and 2 waited 31.0 s for it in "
        "all_reduce 41 of group_0."
    )


def test_waits_that_are_no_longer_than_steps_say_nothing() -> None:
    of = job(asked(0, 41, 900 * MS), asked(1, 41, 900 * MS, "forward"))
    assert outcome(said(of, ALIVE, ALIVE)) == ("running", None, ())


def test_who_has_gone_on_does_not_wait() -> None:
    # The recording of rank 1 was ended early: its file has only the first operations.
    stopped = rank(1, step=10, complete=True, is_cut_short=False, path=None)
    stopped = replace(stopped, collectives=collectives((9, S, "all_reduce")))
    document = said(job(asked(0, 41, 50 * MS), stopped), ALIVE, ALIVE)
    assert outcome(document) == ("running", None, ())


def test_who_ended_its_recording_early_is_waited_for() -> None:
    early = rank(1, step=40, complete=True, is_cut_short=False, path=None, at_ns=41 * 100 * MS)
    early = replace(early, collectives=collectives((40, 4 * S, "all_reduce")))
    document = said(job(asked(0, 41, 31 * S), early), ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 1 holds up the job, after step 40: rank 0 has waited 31.0 s for it in all_reduce "
        "41 of group_0."
    )
    assert document.evidence[0].startswith("Its recording was ended there. ")


def _joined(one: Collectives, other: Collectives) -> Collectives:
    """The operations of both, which have the same groups and one operation each."""
    events = np.concatenate([one.events, other.events])
    events["operation"][len(one.events) :] += len(one.operations)
    return replace(one, operations=one.operations + other.operations, events=events)


def test_the_rank_at_the_end_of_the_chain_is_named() -> None:
    # 0 waits for 1 in group 0, and 1 for 2 in group 1.
    groups = (group((0, 1), "a"), group((1, 2), "b"))
    first = replace(
        rank(0, stuck_ns=31 * S),
        collectives=collectives((7, 4180 * MS, "all_reduce"), groups=groups),
    )
    second = rank(1, stuck_ns=30 * S)
    both = collectives((6, 4 * S, "all_reduce"), groups=groups)
    more = collectives((3, second.duration_ns - 30 * S, "broadcast"), groups=groups, number=1)
    second = replace(second, collectives=_joined(both, more))
    third = replace(
        rank(2, path="data", stuck_ns=30 * S),
        collectives=collectives((2, 4 * S, "broadcast"), groups=groups, number=1),
    )
    ranks = stalled(first, 7, -1), stalled(second, 6, 3), stalled(third, -1, 2)
    document = said(job(*ranks), ALIVE, ALIVE, ALIVE)
    assert outcome(document) == ("held up", 2, ())
    assert {one.rank: one.waits_for for one in document.ranks} == {0: (1,), 1: (2,), 2: ()}


def test_ranks_that_wait_for_each_other() -> None:
    groups = (group((0, 1), "a"), group((0, 1), "b"))
    ranks = []
    for number in (0, 1):
        made = rank(number, stuck_ns=31 * S)
        now_ns = made.duration_ns - 31 * S
        own = collectives((5, now_ns, "all_reduce"), groups=groups, number=number)
        other = collectives((4, 4 * S, "all_reduce"), groups=groups, number=1 - number)
        enqueued = (5, 4) if number == 0 else (4, 5)
        ranks.append(stalled(replace(made, collectives=_joined(own, other)), *enqueued))
    document = said(job(*ranks), ALIVE, ALIVE)
    assert document.verdict == "Ranks 0-1 wait for each other."
    assert outcome(document) == ("deadlock", None, (0, 1))


def test_ranks_that_ask_for_different_operations() -> None:
    ranks = []
    for number, name in enumerate(("all_reduce", "broadcast", "broadcast")):
        made = rank(number, stuck_ns=31 * S)
        asked_for = collectives((41, made.duration_ns - 31 * S, name))
        ranks.append(replace(made, collectives=asked_for))
    document = said(job(*ranks), ALIVE, ALIVE, ALIVE)
    assert document.verdict == (
        "Ranks asked for different operations as number 41 of group_0: all_reduce on rank 0, "
        "broadcast on ranks 1-2."
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("apart_ns", [92 * MS, 400 * MS])
def test_gloo_ends_a_process_that_was_sent_more_than_it_asked_for(
    backend: str, apart_ns: int
) -> None:
    """Rank 1 has left an operation out, and goes on. What rank 0 asked for is not in its file."""
    groups = (replace(group((0, 1)), backend=backend),)
    before = rank(0, step=40, at_ns=5 * S)
    before = replace(before, collectives=collectives((35, 4 * S, "all_reduce"), groups=groups))
    after = rank(1, at_ns=5 * S + apart_ns)
    asked_for = collectives((36, after.duration_ns - 50 * MS, "all_reduce"), groups=groups)
    document = said(job(before, replace(after, collectives=asked_for)), GONE, GONE)
    of_gloo = ALIKE.replace(
        "native code",
        "native code, gloo's abort where ranks ask for different operations (its output then names "
        "EnforceNotMet)",
    )
    is_named = apart_ns > 300 * MS
    assert outcome(document)[0] == ("stopped first" if is_named else "unknown")
    assert (of_gloo in document.evidence) == (backend == "gloo")
    assert (ALIKE in document.evidence) == (backend == "nccl" and is_named)


def test_several_that_are_behind() -> None:
    of = job(asked(0, 41, 31 * S), asked(1, 41, 31 * S, "data"), asked(2, 41, 31 * S, "data"))
    document = said(of, ALIVE, ALIVE, ALIVE)
    assert document.verdict == ("Can't tell which rank holds up the job: ranks 1-2 are behind.")
    # Of these one has stopped.
    assert outcome(said(of, ALIVE, ALIVE, HELD)) == ("stopped first", 2, ())


def test_all_hang_and_nobody_is_behind() -> None:
    of = job(*(asked(number, 41, 31 * S) for number in range(3)))
    document = said(of, ALIVE, ALIVE, ALIVE)
    assert document.verdict == (
        "Can't tell what the job waits for: nothing has happened for 31.0 s on ranks 0-2, and no "
        "rank is known to be behind."
    )


def test_one_does_not_come_to_where_the_ranks_meet() -> None:
    """Before there is any operation, stacks say who waits."""
    meets = ("init_process_group", None)
    of = job(*(looked(starting(number), None if number == 1 else meets) for number in range(3)))
    document = said(of, ALIVE, ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 1 holds up the job, before the first step: ranks 0 and 2 have waited 31.0 s for it "
        "in init_process_group of torch.distributed."
    )
    assert document.evidence == (
        "Its process 4001 lives. Nothing had happened in its file for 31.0 s.",
        "As their watchdogs saw, ranks 0 and 2 had been in init_process_group of torch.distributed "
        "for 31.0 s; rank 1 had not.",
    )
    assert [one.waits_for for one in document.ranks] == [(), (1,), (1,)]
    # Of rank 1 nothing is known, as nobody has looked.
    quiet = (of.ranks[0], starting(1), of.ranks[2])
    assert outcome(said(job(*quiet), ALIVE, ALIVE, ALIVE)) == ("unknown", None, (0, 2))
    # It is at work.
    busy = replace(quiet[1], end=replace(quiet[1].end, active_ns=59 * S))
    document = said(job(quiet[0], busy, quiet[2]), ALIVE, ALIVE, ALIVE)
    assert outcome(document) == ("held up", 1, ())
    assert document.evidence[0] == ("Its process 4001 lives, and does something: it need not hang.")


def test_operations_that_have_not_ended_are_waited_for() -> None:
    """Of rank 1 no operation is known that rank 0 has not asked for, as it holds the GIL."""
    first = asked(0, 41, 31 * S)
    [stall] = first.stalls
    pending = GroupProgress("0", 41, None, 40, "all_reduce")
    first = replace(first, stalls=(structs.replace(stall, groups=(pending,)),))
    second = looked(rank(1, path=None, stuck_ns=31 * S, at_ns=first.duration_ns), None)
    assert outcome(said(job(first, second), ALIVE, ALIVE)) == ("held up", 1, ())


def test_ranks_that_receive_from_each_other() -> None:
    of = job(
        looked(rank(0, path=None, at_ns=60 * S), ("recv", 1)),
        looked(rank(1, path=None, at_ns=60 * S), ("recv", 0)),
    )
    document = said(of, ALIVE, ALIVE)
    assert document.verdict == "Ranks 0-1 wait for each other."
    assert document.evidence[1] == (
        "As their watchdogs saw, rank 1 had been in recv of torch.distributed with rank 0 for "
        "31.0 s."
    )
    assert "Python stack of ranks 0-1, MainThread" in ending_report(document, width=100)
    # One that computes is at the end of the chain.
    of = job(of.ranks[0], looked(rank(1, path="forward", at_ns=60 * S), None))
    document = said(of, ALIVE, ALIVE)
    assert outcome(document) == ("held up", 1, ())
    text = ending_report(document, width=100)
    assert "Python stack of rank 1, MainThread" in text
    assert "Python stack of rank 0, MainThread" in text


def sized(number: int, *sizes: int, name: str = "all_reduce", **parts: Any) -> RankData:
    """A rank that has asked for operations of these sizes, which hangs."""
    made = rank(number, stuck_ns=31 * S, **parts)
    found = collectives(*((i, i * 100 * MS, name) for i in range(len(sizes))))
    found.events["bytes"] = sizes
    return replace(made, collectives=found)


def test_one_has_left_out_an_operation() -> None:
    of = job(sized(0, 8, 8, 4, path=None), sized(1, 8, 8, 8), sized(2, 8, 8, 4, path=None))
    assert outcome(said(of, ALIVE, ALIVE, ALIVE)) == ("mismatch", None, ())
    of = job(
        sized(0, 8, 8, 4, step=40, path=None),
        sized(1, 8, 8, 8, step=41, path="backward"),
        sized(2, 8, 8, 4, step=40, path=None),
    )
    document = said(of, ALIVE, ALIVE, ALIVE)
    assert document.verdict == (
        "Ranks asked for different operations as number 2 of group_0: all_reduce of 4 bytes on "
        "ranks 0 and 2, all_reduce of 8 bytes on rank 1; rank 1 came further."
    )
    assert document.evidence == (
        "Rank 1 (in backward of step 41) was further on than ranks 0 and 2 (rank 0 in step 40, "
        "outside phases): an operation may be left out there, or be one too many on ranks 0 and 2.",
    )
    assert outcome(document) == ("mismatch", None, (1,))


def test_of_many_operations_the_sizes_may_differ() -> None:
    of = job(sized(0, 8, 4, name="all_to_all"), sized(1, 8, 8, name="all_to_all"))
    assert outcome(said(of, ALIVE, ALIVE)) == ("unknown", None, (0, 1))


def test_a_program_that_does_something_does_not_hang() -> None:
    evaluating = [rank(number, path=None, stuck_ns=40 * S) for number in (0, 1)]
    assert outcome(said(job(*evaluating), ALIVE, ALIVE))[0] == "unknown"
    busy = [replace(one, end=replace(one.end, active_ns=40 * S)) for one in evaluating]
    assert outcome(said(job(*busy), ALIVE, ALIVE)) == ("running", None, ())


def test_the_first_steps_do_not_say_how_long_steps_take() -> None:
    slow = [asked(0, 41, 5 * S), asked(1, 40, 5 * S, path="data", is_watched=False)]
    for one in slow:
        one.step_ns[0] = 10 * S
    # Waits of more than a second are long, not those of more than three times the first step.
    assert said(job(*slow), ALIVE, HELD).outcome == "stopped first"


def test_a_job_that_starts() -> None:
    of = job(starting(0), starting(1))
    assert said(of, ALIVE, ALIVE).verdict == (
        "The job is running: no rank has stopped or hangs, but nothing has happened for 60.0 s "
        "on ranks 0-1; until 10 steps have ended, the watchdog waits for three times its limit."
    )


def test_the_watchdog_knows_of_operations_that_have_not_ended() -> None:
    # With NCCL the others come into the file as they end.
    first = stalled(asked(0, 41, 31 * S), 42, stacks=(("MainThread", "wait (x.py:3)"),))
    second = asked(1, 41, 31 * S)
    document = said(job(first, second), ALIVE, ALIVE)
    assert outcome(document) == ("held up", 1, ())
    assert document.evidence[1] == (
        "Rank 0 had asked for all_reduce 42 of group_0, the earliest 31.0 s before its last "
        "heartbeat; rank 1 had not."
    )
    assert [(one.thread, one.text) for one in document.ranks[1].stacks] == [
        ("MainThread", "wait (x.py:3)")
    ]


def test_what_a_living_rank_has_not_asked_for_is_not_known_without_its_watchdog() -> None:
    of = job(asked(0, 41, 31 * S), asked(1, 41, 31 * S, "data", is_watched=False))
    document = said(of, ALIVE, ALIVE)
    assert document.verdict.startswith("Rank 1 is behind, in data of step 41: nothing has happened")
    of = job(asked(0, 41, 31 * S), asked(1, 40, 31 * S, "data", is_watched=False))
    assert said(of, ALIVE, HELD).outcome == "stopped first"


# Without collectives


def test_a_rank_that_is_a_step_behind() -> None:
    of = job(rank(0, stuck_ns=31 * S), rank(1, step=40, path="data", stuck_ns=31 * S))
    document = said(of, ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 1 is behind, in data of step 40: nothing has happened for 31.0 s on rank 0, "
        "further on."
    )
    assert BY_STEPS in document.evidence


def test_a_rank_that_is_a_phase_behind() -> None:
    others = [rank(i, stuck_ns=31 * S) for i in (0, 2)]
    of = job(others[0], rank(1, path="forward", stuck_ns=31 * S), others[1])
    assert outcome(said(of, ALIVE, ALIVE, ALIVE)) == ("held up", 1, ())
    # Phases of which the order is not known.
    unknown = [
        replace(one, paths=("data",), first_begin_ns=one.first_begin_ns[:1]) for one in of.ranks
    ]
    assert outcome(said(job(*unknown), ALIVE, ALIVE, ALIVE))[0] == "unknown"


# Nothing went wrong, or nothing is known


def test_all_finished() -> None:
    done = [rank(i, complete=True, is_cut_short=False, exit_code=0, path=None) for i in (0, 1)]
    assert said(job(*done), GONE, GONE).verdict == "All 2 ranks finished."
    done = [rank(i, complete=True, is_cut_short=False, path=None) for i in (0, 1)]
    assert said(job(*done), GONE, GONE).verdict == (
        "All 2 recordings were ended; with which exit codes the programs ended is not in the files."
    )
    missing = job(*done, world_size=3, missing={2: "there is no run file of it"})
    document = said(missing, GONE, GONE)
    assert document.verdict.startswith("All ranks whose runs are there finished")
    assert document.missing[0].rank == 2
    left = [rank(i, complete=True) for i in (0, 1)]
    assert said(job(*left), GONE, GONE).evidence == (
        "Ranks 0-1 left the last step by an exception or a break.",
    )


def test_missing_ranks_are_named_beside_the_first_of_the_others() -> None:
    of = job(
        rank(0, complete=True, lost_peer=True),
        rank(1),
        world_size=3,
        missing={2: "there is no run file of it"},
    )
    document = said(of, GONE, GONE)
    assert document.verdict.startswith("Of the ranks whose runs are there, rank 1 stopped first, ")


def test_a_job_that_runs() -> None:
    assert said(job(rank(0), rank(1)), ALIVE, ALIVE).verdict == (
        "The job is running: no rank has stopped or hangs."
    )
    of = job(rank(0, stuck_ns=9 * S), rank(1, stuck_ns=9 * S))
    assert said(of, ALIVE, ALIVE).verdict == (
        "The job is running: no rank has stopped or hangs, but rank 0 is in backward/allreduce of "
        "step 41: the step has taken 9 s so far; a step takes 100 ms at the median."
    )


# A program alone


@pytest.mark.parametrize(
    ("alone", "observation", "verdict"),
    [
        (
            rank(0),
            GONE,
            "The program stopped, last seen in backward/allreduce of step 41: its file ends "
            "without a word, and its process 4000 is gone.",
        ),
        (
            rank(0, complete=True, exception="Value\nError"),
            GONE,
            "The program failed, in step 41, which was cut short in backward/allreduce or after "
            "it: Value Error.",
        ),
        (rank(0), ALIVE, "The program is running, in backward/allreduce of step 41."),
        (
            rank(0, stuck_ns=31 * S),
            ALIVE,
            "The program hangs, in backward/allreduce of step 41: nothing has happened for 31.0 "
            "s; a step takes 100 ms at the median.",
        ),
        (
            rank(0, stuck_ns=9 * S),
            ALIVE,
            "The program is running, in backward/allreduce of step 41, but the step has taken 9 s "
            "so far; a step takes 100 ms at the median.",
        ),
        (
            rank(0, complete=True, is_cut_short=False, exit_code=0, path=None),
            GONE,
            "The program finished.",
        ),
        (
            rank(0, complete=True, is_cut_short=False, path=None),
            GONE,
            "The recording was ended; how the program ended is not in the file.",
        ),
    ],
)
def test_a_program_alone(alone: RankData, observation: ProcessObservation, verdict: str) -> None:
    document = said(job(alone), observation)
    assert document.verdict == verdict
    assert document.rank is None


def test_places() -> None:
    def where(**parts: Any) -> str:
        return said(job(rank(0, **parts)), GONE).ranks[0].where

    assert where() == "in backward/allreduce of step 41"
    assert where(path=None) == "in step 41, outside phases"
    assert where(complete=True, path=None) == "in step 41, which was cut short"
    assert where(complete=True, path=None, is_cut_short=False) == "after step 41"
    assert where(complete=True, path="data", is_cut_short=False) == "in data, after step 41"
    nothing = rank(0)
    for path, words in (
        (None, "before the first step"),
        ("data", "in data, before the first step"),
    ):
        end = replace(nothing.end, step=None, path=path, last_steps=())
        assert said(job(replace(nothing, end=end)), GONE).ranks[0].where == words
