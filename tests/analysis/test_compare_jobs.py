# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks in a comparison: all ranks of one are one observation."""

import pytest

from pyinstrument_gpu.analysis.compare import Verdict, compare
from pyinstrument_gpu.analysis.differences import Difference
from pyinstrument_gpu.analysis.run_sample import OUTSIDE_PHASES, run_samples
from pyinstrument_gpu.core.run import Run
from tests.helpers.job_files import ANCHOR, rank_environment, rank_run

pytest.importorskip("scipy", reason="scipy is not installed")

MS = 1_000_000
STEPS = 20


def job(number: int, step_ms: int, ranks: int = 3, late_ms: int = 5) -> list[Run]:
    """A job whose last rank loads longer; the others wait for it in "backward"."""
    anchor = ANCHOR | {"realtime_ns": 10**18 + number * 10**12}
    noise_ns = 10_000 * (number % 3)
    return [
        rank_run(
            rank,
            {
                "data": [(1 + (late_ms if rank == ranks - 1 else 0)) * MS] * STEPS,
                "backward": [(step_ms - 1 - (late_ms if rank == ranks - 1 else 0)) * MS + noise_ns]
                * STEPS,
            },
            environment=rank_environment(
                rank, ranks, job=f"{number}", run_id=f"{number:08x}{rank:08x}", anchor=anchor
            ),
        )
        for rank in range(ranks)
    ]


def test_a_job_is_one_observation() -> None:
    jobs = [job(number, 20 + 10 * (number % 2)) for number in range(6)]
    comparison = compare(jobs[::2], jobs[1::2])
    assert len(comparison.elapsed.before_ns) == len(comparison.elapsed.after_ns) == 3
    assert comparison.verdict is Verdict.SLOWER
    assert comparison.inside.change == pytest.approx(0.5, rel=0.01)
    changes = {phase.path: phase.change_ns for phase in comparison.phases if not phase.is_outside}
    assert changes["backward"] == pytest.approx(10 * MS)
    assert changes["data"] == 0


def test_phases_are_those_of_the_median_rank_and_add_up_to_the_longest_step() -> None:
    ranks = [
        rank_run(0, {"data": [2 * MS] * STEPS, "backward": [8 * MS] * STEPS}),
        rank_run(1, {"data": [3 * MS] * STEPS, "backward": [8 * MS] * STEPS}),
        rank_run(2, {"data": [9 * MS] * STEPS}),
    ]
    (sample,) = run_samples([ranks])
    assert sample.step_ns == 11 * MS
    assert sample.phase_ns == {"data": 3 * MS, "backward": 8 * MS, OUTSIDE_PHASES: 0}


def test_ranks_are_compared_over_the_steps_that_all_have() -> None:
    ranks = job(0, 20)
    ranks[1].steps.array["index"] += 5
    (sample,) = run_samples([ranks])
    assert sample.steps == STEPS - 5 - 1
    ranks[1].steps.array["index"] += STEPS
    with pytest.raises(ValueError, match="the ranks of run 1 of 1 have no complete step in common"):
        run_samples([ranks])


def test_jobs_of_which_other_ranks_are_there_are_refused() -> None:
    before, after = job(0, 20), job(1, 20)
    with pytest.raises(ValueError, match=r"run 1 before is of all ranks, and run 1 after of ranks"):
        compare([before], [after[:2]])
    compare([before[:2]], [after[:2]])  # those of one machine of two


def test_all_ranks_of_jobs_of_other_sizes_can_be_compared() -> None:
    comparison = compare([job(0, 20)], [job(1, 20, ranks=2)])
    assert Difference("number of ranks", ("3",), ("2",)) in comparison.differences.found


def test_ranks_of_two_jobs_are_no_job() -> None:
    mixed = [job(0, 20)[0], *job(1, 20)[1:]]
    with pytest.raises(ValueError, match="run 1 after: rank 0 and rank 1 are not two ranks of one"):
        compare([job(2, 20)], [mixed])
