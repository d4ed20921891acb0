# SPDX-License-Identifier: Apache-2.0
"""What `why` says of jobs whose ranks wait for one that has finished, or was never there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from pyinstrument_gpu.aspects.stalls.data import GroupProgress
from pyinstrument_gpu.job.job import RankData
from tests.helpers.job_endings import (
    ALIVE,
    GONE,
    MS,
    S,
    asked,
    collectives,
    job,
    looked,
    outcome,
    rank,
    said,
    stalled,
    starting,
)
from tests.job.test_gave_up import NOT_SEEN, gave_up, hung, without_collectives

UNEVEN = (
    "Its loop had fewer steps, as with fewer batches: give each rank as many (a DistributedSampler "
    "does, or drop_last=True where only the last ones differ), or put the loop into `with "
    "model.join():` of DistributedDataParallel."
)
NO_FILE = "there is no run file of it"
MEETS = ("init_process_group", None)


def finished(number: int, step: int = 20, exit_code: int | None = 0) -> RankData:
    """A rank whose loop ended after this step, and then its program."""
    made = rank(
        number, step=step, path=None, is_cut_short=False, complete=True, exit_code=exit_code
    )
    events = [(i, i * 100 * MS + 80 * MS, "all_reduce") for i in range(step + 1)]
    return replace(made, collectives=collectives(*events))


def test_one_rank_had_fewer_batches() -> None:
    document = said(job(gave_up(0, waited_ns=690 * MS), finished(1)), GONE, GONE)
    assert document.verdict == (
        "Rank 1 finished after step 20; rank 0 had asked for all_reduce 21 of group_0, which rank "
        "1 never did."
    )
    assert document.evidence == (
        UNEVEN,
        "Rank 0 ended because another rank did not answer, as the exception says.",
        "Rank 0 had asked for all_reduce 21 of group_0, the earliest 690 ms before its last "
        "heartbeat; rank 1 had not.",
    )
    assert outcome(document) == ("finished early", 1, ())


def test_the_others_may_wait_for_who_finished() -> None:
    of = job(asked(0, 21, 31 * S), finished(1), asked(2, 21, 31 * S))
    document = said(of, ALIVE, GONE, ALIVE)
    assert document.verdict == (
        "Rank 1 finished after step 20; ranks 0 and 2 have asked for all_reduce 21 of group_0, "
        "which rank 1 never did, and have waited 31.0 s."
    )
    assert outcome(document) == ("finished early", 1, ())
    assert [one.waits_for for one in document.ranks] == [(), (1,), (1,)]
    # The same when they have been killed.
    document = said(of, GONE, GONE, GONE)
    assert document.verdict.endswith("which rank 1 never did, and waited 31.0 s.")
    assert outcome(document) == ("finished early", 1, ())


def test_several_had_fewer_batches() -> None:
    document = said(job(gave_up(0), finished(1), finished(2)), GONE, GONE, GONE)
    assert document.verdict.startswith("Ranks 1-2 finished after step 20; rank 0 had asked for ")
    assert outcome(document) == ("finished early", None, (1, 2))


def test_a_recording_that_ended_early_is_no_program_that_did() -> None:
    """Of two ranks it must be the other one, of three it may go on without being recorded."""
    early = finished(1, exit_code=None)
    document = said(job(gave_up(0, waited_ns=690 * MS), early), GONE, GONE)
    assert document.verdict == (
        "The recording of rank 1 ended after step 20; rank 0 had asked for all_reduce 21 of "
        "group_0, which rank 1 had not by then."
    )
    assert outcome(document) == ("finished early", 1, ())
    missing = {2: NO_FILE}
    of = job(gave_up(0, waited_ns=690 * MS), early, world_size=3, missing=missing)
    assert said(of, GONE, GONE).rank is None


def test_steps_say_who_finished_early_where_operations_were_not_recorded() -> None:
    of = [without_collectives(one) for one in (gave_up(0, waited_ns=690 * MS), finished(1))]
    document = said(job(*of), GONE, GONE)
    assert document.verdict == (
        "Rank 1 finished after step 20; rank 0 went on to step 21, and another rank did not answer."
    )
    assert outcome(document) == ("finished early", 1, ())


def test_who_was_ended_beside_a_rank_that_finished_early_is_not_named() -> None:
    """Rank 2 had not come to the operation either, or had; rank 1 never would."""
    first, early = gave_up(0, waited_ns=690 * MS), finished(1)
    for other in (asked(2, 21, 900 * MS), asked(2, 21, 900 * MS, "data")):
        document = said(job(first, early, other), GONE, GONE, GONE)
        assert outcome(document) == ("finished early", 1, ())
    # One that failed by itself may be why the others could not go on.
    raised = rank(2, step=20, path="forward", complete=True, exception="ValueError")
    assert outcome(said(job(first, early, raised), GONE, GONE, GONE)) == ("stopped first", 2, ())


def test_who_had_fewer_batches_may_go_on_to_something_else() -> None:
    """It meets the others in a barrier after its loop: they ask for different operations."""
    events = [(i, i * 100 * MS + 80 * MS, "all_reduce") for i in range(21)]
    met = collectives(*events, (21, 2150 * MS, "barrier"))
    left = replace(finished(1), collectives=met)
    document = said(job(gave_up(0), left), GONE, GONE)
    assert document.outcome == "mismatch"
    assert UNEVEN.replace("Its loop had", "The loop of rank 1 had") in document.evidence


def test_all_others_finished() -> None:
    done, last = finished(0, 41), stalled(asked(1, 42, 31 * S, "data"), 41)
    end = replace(last.end, step=done.end.step, path=None)
    last = replace(last, end=end)
    document = said(job(done, last), GONE, ALIVE)
    assert document.verdict == (
        "Rank 1 hangs, after step 41: nothing has happened for 31.0 s. Rank 0 has finished."
    )
    assert outcome(document) == ("held up", 1, ())
    document = said(job(done, last), GONE, GONE)
    assert document.verdict == (
        "Rank 1 hung, after step 41: nothing had happened for 31.0 s when it was ended. Rank 0 had "
        "finished."
    )
    # Two that hang may wait for each other.
    other = replace(last, rank=2, environment={**last.environment, "rank": 2})
    document = said(job(done, last, other), GONE, ALIVE, ALIVE)
    assert outcome(document) == ("unknown", None, (1, 2))


def test_one_is_not_there_where_the_ranks_meet() -> None:
    ranks = [looked(starting(number), MEETS) for number in (0, 1)]
    of = job(*ranks, world_size=3, missing={2: NO_FILE})
    document = said(of, ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 2 is missing: ranks 0-1 have waited 31.0 s in init_process_group of "
        "torch.distributed for a rank that is not among them."
    )
    assert outcome(document) == ("absent", 2, ())
    assert document.evidence == ("There is no run of rank 2.",)
    # The same when they have been killed.
    document = said(of, GONE, GONE)
    assert outcome(document) == ("absent", 2, ())
    assert "ranks 0-1 waited 31.0 s in init_process_group" in document.verdict
    # One of two that are missing.
    of = job(*ranks, world_size=4, missing={2: NO_FILE, 3: NO_FILE})
    document = said(of, ALIVE, ALIVE)
    assert document.verdict.startswith("Ranks 2-3 are missing: ")
    assert outcome(document) == ("absent", None, (2, 3))


def pending(of: RankData) -> RankData:
    """The same, where its watchdog has seen that the last operation has not ended."""
    [stall] = of.stalls
    [progress] = stall.groups
    return replace(of, stalls=(structs.replace(stall, groups=(not_ended(progress),)),))


def not_ended(progress: GroupProgress) -> GroupProgress:
    return structs.replace(progress, completed=(progress.enqueued or 0) - 1)


def test_one_is_not_there_in_an_operation() -> None:
    ranks = [pending(asked(number, 41, 31 * S)) for number in (0, 1)]
    of = job(*ranks, world_size=3, missing={2: NO_FILE})
    document = said(of, ALIVE, ALIVE)
    assert document.verdict == (
        "Rank 2 is missing: ranks 0-1 have waited 31.0 s in all_reduce 41 of group_0 for a rank "
        "that is not among them."
    )
    # Of rank 1 it is not known that it waits.
    of = job(ranks[0], asked(1, 41, 31 * S), world_size=3, missing={2: NO_FILE})
    assert said(of, ALIVE, ALIVE).rank is None


@pytest.mark.parametrize("host", ["box", "other"])
def test_who_gave_up_one_after_the_other_did_not_wait_for_one_that_is_missing(host: str) -> None:
    """Rank 1 began to wait when rank 0 had gone; of two machines that is not known."""
    first, later = gave_up(0), gave_up(1, at_ns=60 * S, host=host)
    ranks = map(without_collectives, (first, later))
    of = job(*ranks, world_size=3, missing={2: NO_FILE})
    assert outcome(said(of, NOT_SEEN, NOT_SEEN)) == ("unknown", None, (0, 1))


def test_a_job_that_hung_and_was_killed_is_told_as_one_that_hangs() -> None:
    of = job(*(stalled(asked(number, 41, 31 * S), 41) for number in range(3)))
    document = said(of, GONE, GONE, GONE)
    assert document.verdict == (
        "Can't tell what the job waited for: nothing had happened for 31.0 s on ranks 0-2, and no "
        "rank is known to be behind."
    )
    document = said(job(hung(0)), GONE)
    assert document.verdict == (
        "The program hung, in data of step 21: nothing had happened for 22.0 s when it was ended; "
        "a step takes 100 ms at the median."
    )


def test_who_did_not_come_to_where_the_ranks_meet_is_known_after_a_kill() -> None:
    of = job(*(looked(starting(number), None if number == 1 else MEETS) for number in range(3)))
    document = said(of, GONE, GONE, GONE)
    assert document.verdict == (
        "Rank 1 held up the job, before the first step: ranks 0 and 2 waited 31.0 s for it in "
        "init_process_group of torch.distributed."
    )
    assert outcome(document) == ("held up", 1, ())
    assert [one.waits_for for one in document.ranks] == [(), (1,), (1,)]
    # It began to hang later than they to wait, and was killed with them.
    [stall] = of.ranks[1].stalls
    late = replace(of.ranks[1], stalls=(structs.replace(stall, since_ns=stall.since_ns + 2 * S),))
    document = said(job(of.ranks[0], late, of.ranks[2]), GONE, GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    # It was at work when it was killed with them.
    busy = replace(starting(1), end=replace(starting(1).end, active_ns=59 * S))
    document = said(job(of.ranks[0], busy, of.ranks[2]), GONE, GONE, GONE)
    assert document.rank == 1
    # The others gave up by a timeout of the store.
    lost = looked(starting(0), MEETS)
    lost = replace(
        lost,
        complete=True,
        environment={**lost.environment, "program_end": {"exit_code": 1, "lost_peer": True}},
    )
    later = replace(of.ranks[1], duration_ns=62 * S)
    document = said(job(lost, later), GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict.endswith(
        "rank 0 waited 31.0 s for it in init_process_group of torch.distributed and gave up; then "
        "rank 1 was ended."
    )
