# SPDX-License-Identifier: Apache-2.0
"""What `why` says of jobs in which ranks gave up waiting: who was waited for is the cause, whoever
ended first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.job import RankData
from tests.helpers.job_endings import (
    GONE,
    MS,
    S,
    asked,
    job,
    outcome,
    rank,
    said,
    stalled,
)

NOT_SEEN = ProcessObservation()
STACK = """\
File "/usr/lib/python3.11/threading.py", line 320, in wait
File "/home/me/train.py", line 30, in load
File "/home/me/train.py", line 50, in <module>"""


def gave_up(number: int, last: int = 21, waited_ns: int = 20 * S, **parts: Any) -> RankData:
    """A rank whose exception in an all-reduce says that another did not answer."""
    return asked(number, last, waited_ns, complete=True, lost_peer=True, **parts)


def hung(
    number: int, idle_ns: int = 22 * S, stack: str = STACK, last: int = 21, **parts: Any
) -> RankData:
    """A rank that did nothing in this step until it was ended."""
    made = asked(number, last, idle_ns, "data", **parts)
    return stalled(made, last - 1, stacks=(("MainThread", stack),))


def without_collectives(of: RankData) -> RankData:
    return replace(of, collectives=Collectives(), stalls=())


def test_the_others_gave_up_before_who_hung_was_ended() -> None:
    document = said(job(gave_up(0), hung(1)), GONE, GONE)
    assert document.verdict == (
        "Rank 1 held up the job, in data of step 21, in load (train.py:30), from 22:21:42 UTC on: "
        "rank 0 waited 20.0 s for it in all_reduce 21 of group_0 and gave up; then rank 1 was "
        "ended."
    )
    assert document.evidence == (
        "Its file ends without a word, and its process 4001 is gone. Nothing had happened in its "
        "file for 22.0 s.",
        "It was still there 1.92 s after rank 0 gave up, by the clock of their machine.",
        "Rank 0 ended because another rank did not answer, as the exception says.",
        "Rank 0 had asked for all_reduce 21 of group_0, and gave up 20.0 s later; rank 1 had not.",
    )
    assert outcome(document) == ("held up", 1, ())


def test_who_waited_itself_and_was_ended_with_it_is_not_named() -> None:
    waiting = asked(2, 21, 21 * S)
    document = said(job(gave_up(0), hung(1), waiting), GONE, GONE, GONE)
    assert document.verdict == (
        "Rank 1 held up the job, in data of step 21, in load (train.py:30), from 22:21:42 UTC on: "
        "ranks 0 and 2 waited 21.0 s for it in all_reduce 21 of group_0, and rank 0 gave up; then "
        "rank 1 was ended."
    )
    assert outcome(document) == ("held up", 1, ())


def test_a_rank_at_work_that_was_waited_for_too_long() -> None:
    """It evaluates in phases of its own, and its process is ended when the others give up."""
    working = hung(1)
    end = replace(working.end, path="forward", path_begin_ns=working.duration_ns - 50 * MS)
    working = replace(working, end=end, stalls=())
    document = said(job(gave_up(0), working), GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict.endswith(" and gave up; then rank 1 was ended.")
    # Of two machines only lengths of time are known.
    far = replace(working, environment={**working.environment, "host": "other"})
    document = said(job(gave_up(0), far), NOT_SEEN, NOT_SEEN)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict == (
        "Rank 1 held up the job, in forward of step 21: rank 0 waited 20.0 s for it in all_reduce "
        "21 of group_0."
    )
    assert document.evidence[2] == (
        "It ran on another machine than rank 0, and clocks of two machines can't be compared: "
        "whether it was ended before rank 0 gave up, or after that, is not known."
    )
    # It can't have lived for as long as the others waited.
    gone = asked(1, 21, 200 * MS, "forward", host="other")
    assert outcome(said(job(gave_up(0), gone), NOT_SEEN, NOT_SEEN)) == ("stopped first", 1, ())


def test_a_rank_that_came_too_late_finds_nobody() -> None:
    """All were told that another rank does not answer: the last to ask was the one waited for."""
    first, late = gave_up(0), gave_up(1, waited_ns=5 * MS, at_ns=25 * S + 85 * MS)
    document = said(job(first, late), GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict == (
        "Rank 1 held up the job, in step 21, which was cut short in backward/allreduce or after "
        "it: rank 0 waited 20.0 s for it in all_reduce 21 of group_0 and gave up; then rank 1 "
        "failed, too."
    )
    # Not so on two machines.
    far = gave_up(1, waited_ns=5 * MS, at_ns=25 * S + 85 * MS, host="other")
    document = said(job(first, far), NOT_SEEN, NOT_SEEN)
    assert document.verdict == (
        "Can't tell which rank stopped first: ranks 0-1 ended because another rank did not answer, "
        "and ran on machines whose clocks can't be compared."
    )
    # Two that gave up together had both asked.
    assert outcome(said(job(first, gave_up(1)), GONE, GONE)) == ("unknown", None, (0, 1))


def test_without_operations_of_two_ranks_the_other_one_is_meant() -> None:
    of = [without_collectives(one) for one in (gave_up(0), hung(1))]
    of[1] = replace(of[1], end=replace(of[1].end, step=None, path=None))
    document = said(job(*of), GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict == (
        "Rank 1 held up the job, before the first step, from 22:21:42 UTC on: rank 0 gave up "
        "waiting for it; then rank 1 was ended."
    )
    # It may be one of several,
    third = replace(of[1], rank=2, environment={**of[1].environment, "rank": 2})
    document = said(job(*of, third), GONE, GONE, GONE)
    assert document.verdict == (
        "Can't tell which rank held up the job: rank 0 gave up 1.92 s before the last heartbeat of "
        "ranks 1-2, which were ended after that."
    )
    assert outcome(document) == ("unknown", None, (1, 2))
    # or one whose file is not there.
    missing = {2: "there is no run file of it"}
    document = said(job(*of, world_size=3, missing=missing), GONE, GONE)
    assert outcome(document) == ("unknown", None, (1,))


def test_who_had_asked_as_well_is_not_named() -> None:
    """The network may have failed, for example."""
    document = said(job(gave_up(0), asked(1, 21, 22 * S)), GONE, GONE)
    assert (document.outcome, document.rank) == ("unknown", None)


def test_one_failed_by_itself_and_the_others_were_ended() -> None:
    """Rank 2 was ended by the launcher, after the others had ended because of rank 1."""
    raised = rank(1, step=21, path="forward", complete=True, exception="ValueError")
    lost = gave_up(0, waited_ns=200 * MS)
    waiting = asked(2, 21, 900 * MS)
    document = said(job(lost, raised, waiting), GONE, GONE, GONE)
    assert outcome(document) == ("stopped first", 1, ())
    # On another machine it may have lived on, and another may have been waited for.
    raised = rank(1, step=21, path="forward", host="other")
    document = said(job(lost, raised, without_collectives(waiting)), NOT_SEEN, NOT_SEEN, NOT_SEEN)
    assert outcome(document) == ("unknown", None, (1, 2))


@pytest.mark.parametrize("waited_ns", [100 * MS, 900 * MS])
def test_a_short_timeout_is_one_as_well(waited_ns: int) -> None:
    """No longer than long steps take: it is known that it gave up, and that the other lived."""
    document = said(job(gave_up(0, 21, waited_ns), hung(1, 5 * S)), GONE, GONE)
    assert outcome(document) == ("held up", 1, ())


def test_without_operations_steps_say_who_was_waited_for() -> None:
    of = [without_collectives(one) for one in (gave_up(0, 22), gave_up(2, 22), hung(1))]
    document = said(job(of[0], of[2], of[1]), GONE, GONE, GONE)
    assert outcome(document) == ("held up", 1, ())
    assert document.verdict == (
        "Rank 1 was behind, in data of step 21, from 22:21:42 UTC on: nothing had happened for "
        "20.0 s on ranks 0 and 2, further on, which gave up; then rank 1 was ended."
    )


def test_a_stack_without_a_line_of_the_program() -> None:
    library = 'File "/x/lib/python3.11/site-packages/torch/x.py", line 3, in run'
    document = said(job(gave_up(0), hung(1, stack=library)), GONE, GONE)
    assert "in data of step 21, from 22:21:42 UTC on: " in document.verdict
    # As faulthandler writes it, of the program's main part.
    main = 'File "train.py", line 7 in <module>'
    document = said(job(gave_up(0), hung(1, stack=main)), GONE, GONE)
    assert "in data of step 21 (train.py:7), from" in document.verdict
