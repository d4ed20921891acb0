# SPDX-License-Identifier: Apache-2.0
"""What the document of a job says: never more than is known."""

from dataclasses import replace

import numpy as np
import pytest

from pyinstrument_gpu.job.findings import PROCESSOR, Pattern, Pipeline, Straggler, Stragglers
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.job.report import job_document_of, job_report
from tests.helpers.simulated_job import simulated_job
from tests.job.jobs import (
    MS,
    MadeJob,
    balanced,
    broken,
    in_turn,
    one_late,
    phase_of,
    rank_of,
)
from tests.job.jobs import unknown as unknown_job


def test_a_job_is_named_by_its_program_not_by_what_launched_it() -> None:
    assert balanced().document().job.command == ("train.py",)


LATE = Straggler(2, Pattern.ALWAYS, "data", 96, 29.0 * MS, 0.98, 1e-12, (2, 3))
ALONE = replace(LATE, ranks=(2,))
SHORT = replace(ALONE, path=PROCESSOR)


@pytest.mark.parametrize(
    ("stragglers", "verdict", "finding"),
    [
        (
            Stragglers(Pattern.ALWAYS, replace(LATE, host="b"), 29.0 * MS, 0.29, 99, True),
            "Ranks 2-3, those of host b, are waited for: one of them comes last in 96 of 99 steps, "
            "29.0 ms after the latest of the others on average, 98% of that in data; differences "
            "between ranks cost 29% of the step.",
            "ranks 2-3, those of host b, are slower in data",
        ),
        (
            Stragglers(Pattern.ALWAYS, replace(LATE, group="tp"), 29.0 * MS, 0.29, 99, True),
            "Ranks 2-3, those of group tp, are waited for: one of them comes last in 96 of 99 "
            "steps, 29.0 ms after the latest of the others on average, 98% of that in data; "
            "differences between ranks cost 29% of the step.",
            "ranks 2-3, those of group tp, are slower in data",
        ),
        (
            Stragglers(
                Pattern.SOME_STEPS,
                None,
                20.0 * MS,
                0.2,
                99,
                True,
                step_ns=100.0 * MS,
                hint=Straggler(1, Pattern.SOME_STEPS, "data", 3, 18.0 * MS, 1.0, 0.3, (1,)),
            ),
            "Rank 1 held up the others in 3 of 99 steps, by 594 ms on average, 100% of that in "
            "data, which costs 18% of the time; so few delays may be chance.",
            None,
        ),
        (
            Stragglers(Pattern.IN_TURN, None, 8.0 * MS, 0.08, 99, True, several=(0, 2)),
            "Several ranks (ranks 0 and 2) are waited for, together or in turn, and none can be "
            "named; differences between ranks cost 8% of the step.",
            None,
        ),
        (
            Stragglers(Pattern.BALANCED, None, 8.0 * MS, 0.08, 99, True, processor_share=0.23),
            "No rank can be named under CPU contention: steps waited 23% of the time for a "
            "processor; differences between ranks cost 8% of the step.",
            None,
        ),
        (
            Stragglers(Pattern.ALWAYS, ALONE, 29.0 * MS, 0.29, 99, True, processor_share=0.1),
            "Rank 2 is waited for: it comes last in 96 of 99 steps, 29.0 ms after the next rank "
            "on average, 98% of that in data; differences between ranks cost 29% of the step; "
            "besides, steps waited 10% of the time for a processor.",
            "rank 2 is slower in data",
        ),
        (
            Stragglers(Pattern.ALWAYS, SHORT, 29.0 * MS, 0.29, 99, True, processor_share=0.01),
            "Rank 2 is waited for: it comes last in 96 of 99 steps, 29.0 ms after the next rank "
            "on average, 98% of that waiting for a processor; differences between ranks cost 29% "
            "of the step.",
            "rank 2 is late waiting for a processor",
        ),
    ],
)
def test_several_ranks_in_words(stragglers: Stragglers, verdict: str, finding: str | None) -> None:
    document = balanced()._replace(stragglers=stragglers).document()
    assert document.verdict == verdict
    assert [one.about for one in document.findings] == ([] if finding is None else [finding])
    marked = {one.rank for one in document.ranks if one.remarks}
    late = stragglers.straggler or stragglers.hint
    assert marked == {*(stragglers.several if late is None else late.ranks)}


def test_a_pipeline_in_words() -> None:
    found = Pipeline((1,), 90.0 * MS, 40.0 * MS, 30.0 * MS, 0.3, 10.0 * MS)
    (finding,) = balanced()._replace(pipeline=found).document().findings
    assert finding.kind == "pipeline" and finding.cost_ns == 30 * MS
    assert finding.evidence == (
        "rank 1 limits the others: it works for 90.0 ms of each step, the median of the others "
        "for 40.0 ms; it waits for 10.0 ms itself, which nothing hides"
    )
    even = replace(found, limits=())
    (finding,) = balanced()._replace(pipeline=even).document().findings
    assert finding.evidence == (
        "no rank stands out: the longest works for 90.0 ms of each step, the median of the "
        "others for 40.0 ms; it waits for 10.0 ms itself, which nothing hides"
    )


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ((3,), "; rank 3 is not compared, as too few of the steps of the others are there of it."),
        ((1, 2), "; ranks 1-2 are not compared, as too few of the steps of the others are there"),
    ],
)
def test_of_ranks_that_were_not_compared_nothing_is_said(
    left_out: tuple[int, ...], words: str
) -> None:
    job = balanced()
    stragglers = replace(job.stragglers, left_out=left_out)
    verdict = job._replace(stragglers=stragglers).document().verdict
    assert words in verdict
    compared = f"{4 - len(left_out)} ranks compared"
    assert verdict.startswith(f"Of the {compared}, no rank stands out in 99 steps; ")


def test_all_shares_are_of_the_steps_that_were_judged() -> None:
    job = one_late()
    document = job._replace(stragglers=replace(job.stragglers, step_ns=120.0 * MS)).document()
    costs = [one for one in document.findings if one.cost_ns is not None]
    assert len(costs) > 1 and {one.of_ns for one in costs} == {120 * MS}


def test_what_is_uneven_is_told_without_waits() -> None:
    """The host time of a phase in which ranks wait is longest on the quick ones."""
    uneven = phase_of(
        "backward",
        imbalance_ns=5.0 * MS,
        is_significant=True,
        pattern=Pattern.IN_TURN,
        work_ns=30.0 * MS,
        distance_ns=4.0 * MS,
        high_ns=90.0 * MS,
    )
    (found,) = balanced()._replace(phases=(uneven,)).document().findings
    assert found.evidence == (
        "several ranks are slow there, together or in turn; the slowest works for 30.0 ms "
        "there, 4.00 ms more than the others on average"
    )


def test_a_pattern_of_one_rank_without_a_name_is_unknown() -> None:
    job = balanced()
    stragglers = replace(job.stragglers, pattern=Pattern.ALWAYS, loss_share=None)
    verdict = job._replace(stragglers=stragglers).document().verdict
    assert verdict == "Which rank is late is unknown: the runs don't show it."


def test_a_step_takes_as_long_as_on_the_latest_rank() -> None:
    """Also where each rank has others of the steps."""
    later = rank_of(1, steps=3, steps_ended=9, step_ns=np.array([3, 7, 8]) * MS)
    ranks = (
        rank_of(0, steps=3, step_ns=np.array([9, 5, 1]) * MS, steps_ended=4),
        replace(later, steps=np.array([1, 2, 3])),
    )
    document = balanced()._replace(data=Job(ranks, 2)).document()
    steps = document.steps
    assert steps is not None
    assert (steps.count, steps.mean_ns, steps.p50_ns) == (2, 6 * MS, 6 * MS)
    assert (steps.fewest_ended, steps.most_ended) == (4, 9)
    assert [rank.step_ns for rank in document.ranks] == [3 * MS, 5 * MS]


def test_a_rank_is_named_only_where_one_is_the_cause() -> None:
    remarks = [rank.remarks for rank in in_turn().document().ranks]
    assert remarks == [()] * 4
    (finding,) = in_turn().document().findings
    assert "rank 0" not in finding.evidence
    assert one_late().document().ranks[3].remarks == ("waited for", "slowest in data")


def test_findings_begin_with_what_went_wrong() -> None:
    kinds = [finding.kind for finding in broken().document().findings]
    assert kinds == ["failure"] * 3
    assert [one.kind for one in one_late().document().findings] == [
        "straggler",
        "collective",
        "start",
    ]


def test_missing_times_are_not_zero() -> None:
    document = unknown_job().document()
    assert document.steps is None
    assert [(rank.step_ns, rank.phases) for rank in document.ranks] == [(None, ())] * 2
    timed = np.array([[9, -1, 2 * MS], [9, -1, -1], [9, MS, MS]])
    rank = rank_of(0, steps=3, device_ns=timed)
    (found,) = MadeJob(Job((rank,), 2)).document().ranks
    assert [phase.device_ns for phase in found.phases] == [2 * MS, None, MS, None, None]


def test_notes_of_several_ranks_are_one() -> None:
    assert broken().document().notes == (
        "the ranks ran different code revisions",
        "ranks 0-1: cut off",
        "rank 0: not everything was kept: ring_full 5",
    )


def test_names_of_phases_are_harmless_in_a_terminal() -> None:
    job = simulated_job(2, 1, steps=30, work_ns={"\x1b[2J\n": MS, "backward": 100 * MS})
    report = job_report(job_document_of(job), 100, False)
    assert "\x1b" not in report and report.count(r"\x1b[2J\n") > 1


def test_steps_that_were_not_judged_are_told() -> None:
    job = balanced()
    stragglers = replace(job.stragglers, steps=60, step_ns=100.0 * MS)
    assert job._replace(stragglers=stragglers).document().notes == (
        "which rank is late is unknown for 39 of the 99 steps: some records of their collective "
        "operations are missing",
    )
