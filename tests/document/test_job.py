# SPDX-License-Identifier: Apache-2.0
"""What the document of a job says: never more than is known."""

from dataclasses import replace

import numpy as np
import pytest

from pyinstrument_gpu.analysis.job.findings import Pattern
from pyinstrument_gpu.model.job_data import JobData
from tests.document.jobs import JOBS, MS, MadeJob, balanced, broken, in_turn, one_late, rank_of
from tests.document.jobs import unknown as unknown_job


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (
            "balanced",
            "No rank stands out in 99 steps; differences between ranks cost 0.1% of the step.",
        ),
        (
            "one late",
            "Rank 3 is waited for: it comes last in 96 of 99 steps, 29.500 ms after the next rank "
            "on average, 98% of that in data; differences between ranks cost 29% of the step.",
        ),
        (
            "some steps",
            "Rank 1 is waited for in some steps: it comes last in 7 of 99 steps, 4.000 ms after "
            "the next rank on average, and no single phase is the reason; differences between "
            "ranks cost 5% of the step.",
        ),
        (
            "in turn",
            "Ranks are waited for in turn, and none can be named; differences between ranks cost "
            "8% of the step.",
        ),
        ("unknown", "Which rank is late can't be told: no step ended on all ranks."),
        (
            "broken",
            "Ranks 0-1 stalled: no step of rank 0 began or ended for 32.000 s, in step 90, in "
            "backward. No rank stands out in 99 steps; differences between ranks cost 0.1% of the "
            "step; one that is slower in phases with collectives alone could not be seen; of 2 "
            "ranks that are missing, nothing is known.",
        ),
        ("nothing", "No run of the 2 ranks could be read."),
    ],
)
def test_verdict(name: str, verdict: str) -> None:
    assert JOBS[name]().document().verdict == verdict


def test_a_pattern_of_one_rank_without_a_name_is_unknown() -> None:
    job = balanced()
    stragglers = replace(job.stragglers, pattern=Pattern.ALWAYS, loss_share=None)
    verdict = job._replace(stragglers=stragglers).document().verdict
    assert verdict == "Which rank is late can't be told: the runs do not say it."


def test_a_step_takes_as_long_as_on_the_latest_rank() -> None:
    """Also where each rank has others of the steps."""
    later = rank_of(1, steps=3, steps_ended=9, step_ns=np.array([3, 7, 8]) * MS)
    ranks = (
        rank_of(0, steps=3, step_ns=np.array([9, 5, 1]) * MS, steps_ended=4),
        replace(later, steps=np.array([1, 2, 3])),
    )
    document = balanced()._replace(data=JobData(ranks, 2)).document()
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
    rank = rank_of(0, steps=3, stream_ns=timed)
    (found,) = MadeJob(JobData((rank,), 2)).document().ranks
    assert [phase.stream_ns for phase in found.phases] == [2 * MS, None, MS, None, None]


def test_notes_of_several_ranks_are_one() -> None:
    assert broken().document().notes == (
        "the ranks ran different code revisions",
        "ranks 0-1: cut off",
        "rank 0: not everything was kept: ring_full 5",
    )
