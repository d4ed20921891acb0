# SPDX-License-Identifier: Apache-2.0
"""What is said of pipelines, whose stages wait for each other's sends and receives."""

from collections.abc import Sequence

import numpy as np
import pytest

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.job.analysis import of
from pyinstrument_gpu.job.findings import Pattern, Pipeline
from pyinstrument_gpu.job.job import Job, RankWaits
from tests.job.jobs import MS, rank_of

STEPS = 40
MICRO_BATCHES = 8


def makespan_ns(works_ns: Sequence[int]) -> int:
    """Of all micro-batches forward through the stages, and then all backward."""
    ends_ns = [0] * len(works_ns)
    for order in (range(len(works_ns)), range(len(works_ns) - 1, -1, -1)):
        for _ in range(MICRO_BATCHES):
            before_ns = 0
            for stage in order:
                before_ns = ends_ns[stage] = max(before_ns, ends_ns[stage]) + works_ns[stage]
    return max(ends_ns)


def pipeline_job(works_ns: Sequence[int], loss_ns: int = 0, between_ns: int = 0) -> Job:
    """Stages that work so long for each micro-batch, forward and backward. The last one works also
    for the loss, in a phase of its own and between phases."""
    step_ns = makespan_ns(works_ns) + loss_ns + between_ns
    ranks = []
    for stage, work_ns in enumerate(works_ns):
        has_loss = loss_ns > 0 and stage == len(works_ns) - 1
        paths = ("forward", "backward", "loss") if has_loss else ("forward", "backward")
        times_ns = np.full((len(paths), STEPS), MICRO_BATCHES * work_ns)
        times_ns[2:] = loss_ns
        own_ns = 2 * MICRO_BATCHES * work_ns + has_loss * (loss_ns + between_ns)
        waits_ns = np.full(STEPS, step_ns - own_ns)
        total_ns = np.zeros((len(paths) + 2, STEPS), np.int64)
        total_ns[-2] = waits_ns
        ranks.append(
            rank_of(
                stage,
                steps=STEPS,
                step_ns=np.full(STEPS, step_ns),
                step_begin_ns=step_ns * np.arange(STEPS),
                paths=paths,
                self_ns=times_ns,
                first_begin_ns=np.zeros_like(times_ns),
                last_end_ns=np.zeros_like(times_ns),
                device_ns=np.full_like(times_ns, -1),
                collectives=Collectives(was_read=True),
                waits=RankWaits(0, total_ns, waits_ns, np.zeros(len(total_ns), np.int64)),
            )
        )
    return Job(tuple(ranks), len(works_ns))


def test_the_stage_that_limits_the_others() -> None:
    found = of(pipeline_job([5 * MS, 20 * MS, 5 * MS, 5 * MS]))
    assert found.stragglers.straggler is not None
    assert found.stragglers.straggler.ranks == (1,)
    # It works for 2 * 8 * 20 ms, and a step takes 15 ms more before and 15 ms after that.
    assert found.pipeline == Pipeline(
        limits=(1,),
        work_ns=320 * MS,
        others_ns=80 * MS,
        waiting_ns=210 * MS,
        waiting_share=0.6,
        exposed_ns=30 * MS,
    )
    assert found.stragglers.loss_ns == 240 * MS


@pytest.mark.parametrize(("loss_ns", "between_ns"), [(10 * MS, 0), (1 * MS, 9 * MS)])
def test_the_stage_that_computes_the_loss_is_not_slow(loss_ns: int, between_ns: int) -> None:
    """It works for 10 ms longer by nature: the stages differ, and nobody is named for that."""
    found = of(pipeline_job([10 * MS, 10 * MS], loss_ns, between_ns))
    assert found.stragglers.straggler is None
    assert found.stragglers.pattern == Pattern.BALANCED
    assert found.stragglers.loss_ns == 10 * MS
    assert found.pipeline is not None and found.pipeline.limits == ()
    assert found.pipeline.work_ns - found.pipeline.others_ns == 10 * MS
    # If it is slower in what all stages do as well, it is named.
    slow = of(pipeline_job([10 * MS, 11 * MS], loss_ns, between_ns)).stragglers.straggler
    assert slow is not None and slow.ranks == (1,)


def test_a_bubble_without_a_slow_stage() -> None:
    found = of(pipeline_job([10 * MS] * 4))
    assert found.stragglers.pattern == Pattern.BALANCED
    assert found.pipeline is not None and found.pipeline.limits == ()
    # Three stages' time before the first micro-batch has come through, of eight and three.
    assert found.pipeline.waiting_share == pytest.approx(3 / 11)


def test_without_sends_and_receives_there_is_no_pipeline() -> None:
    job = pipeline_job([10 * MS] * 4)
    for rank in job.ranks:
        assert rank.waits is not None
        rank.waits.p2p_ns[:] = 0
    assert of(job).pipeline is None
