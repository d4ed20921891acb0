# SPDX-License-Identifier: Apache-2.0
"""Who is waited for, in simulated jobs of which that is known.

The thresholds were set on other seeds: those below 1000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.collectives.data import Collectives, ProcessGroup
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.job.analysis import of
from pyinstrument_gpu.job.findings import (
    BETWEEN_STEPS,
    OUTSIDE_PHASES,
    PROCESSOR,
    STEP,
    LateStart,
    Pattern,
    Stragglers,
)
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.stragglers import binomial_tail
from tests.helpers.simulated_job import MS, WORK_NS, Slow, simulated_job

SEEDS = pytest.mark.parametrize(
    "seeds",
    [range(1000, 1001), pytest.param(range(1001, 1005), marks=pytest.mark.slow)],
    ids=["few", "more"],
)
NOT_SEEN = {True: Pattern.BALANCED, False: Pattern.UNKNOWN}
"""By whether arrivals are known: what is said where none is late. Otherwise one might be in the
phase in which the ranks meet."""
NOISE_OF_A_STEP = 0.0167
"""Of each phase: 1 % of a step's work, as the phases' noise is independent."""


def everywhere(factor: float) -> Mapping[str, float]:
    return dict.fromkeys(WORK_NS, factor)


def found(job: Job) -> tuple[Any, ...]:
    stragglers = of(job).stragglers
    if stragglers.straggler is None:
        return (stragglers.pattern,)
    return stragglers.pattern, stragglers.straggler.rank, stragglers.straggler.path


@SEEDS
@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (Slow(1, extra_ns={"data": 200 * MS}), (Pattern.ALWAYS, 1, "data")),
        (Slow(1, extra_ns={"data": 200 * MS}, every=10), (Pattern.SOME_STEPS, 1, "data")),
        (Slow(0, extra_ns={"forward": 200 * MS}, every=25), (Pattern.SOME_STEPS, 0, "forward")),
        (Slow(0, everywhere(1.3)), (Pattern.ALWAYS, 0, None)),
        (Slow(1, {"data": 3.0}), (Pattern.ALWAYS, 1, "data")),
    ],
)
def test_a_slow_rank_and_its_phase(
    slow: Slow, expected: tuple[Any, ...], ranks: int, has_arrivals: bool, seeds: range
) -> None:
    for seed in seeds:
        assert found(simulated_job(ranks, seed, slow, has_arrivals=has_arrivals)) == expected


@SEEDS
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_slow_phase_in_which_ranks_wait_is_seen_by_arrivals_alone(
    ranks: int, seeds: range
) -> None:
    slow = Slow(1, {"backward": 1.3})
    for seed in seeds:
        job = simulated_job(ranks, seed, slow)
        assert found(job) == (Pattern.ALWAYS, 1, "backward")
        assert of(job).stragglers.is_by_arrivals
        job = simulated_job(ranks, seed, slow, has_arrivals=False)
        assert found(job) == (Pattern.UNKNOWN,)


@SEEDS
@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_equal_noise_on_all_names_nobody(
    ranks: int, noise: float, has_arrivals: bool, seeds: range
) -> None:
    for seed in seeds:
        job = simulated_job(ranks, seed, noise=noise, has_arrivals=has_arrivals)
        assert of(job).stragglers.straggler is None
        if noise == 0.01:
            assert found(job) == (NOT_SEEN[has_arrivals],)


@SEEDS
@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize(("hiccups", "hiccup_ns"), [(0.02, 50 * MS), (0.003, 200 * MS)])
def test_hiccups_of_the_machine_name_nobody(
    hiccups: float, hiccup_ns: int, has_arrivals: bool, seeds: range
) -> None:
    for ranks in (2, 4, 8):
        for seed in seeds:
            job = simulated_job(
                ranks, seed, hiccups=hiccups, hiccup_ns=hiccup_ns, has_arrivals=has_arrivals
            )
            assert of(job).stragglers.straggler is None


@SEEDS
@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_slow_in_turn(ranks: int, has_arrivals: bool, seeds: range) -> None:
    for seed in seeds:
        job = simulated_job(
            ranks,
            seed,
            Slow(0, extra_ns={"data": 60 * MS}),
            is_turning=True,
            has_arrivals=has_arrivals,
        )
        assert found(job) == (Pattern.IN_TURN,)


def waiting(job: Job, *shares: float, every: int = 1) -> Job:
    """The same, of which the threads of ranks waited such a share of each step for a processor,
    which was read in every so-manieth one."""
    return replace(
        job,
        ranks=tuple(
            replace(
                rank,
                processor_wait_ns=np.where(rank.steps % every, np.nan, share * rank.step_ns),
            )
            for rank, share in zip(job.ranks, shares, strict=True)
        ),
    )


SLOWER = Slow(1, everywhere(1.25))
"""By 50 ms of a step of 254 ms, so that it is as the others but for 20 % of the step."""


@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("every", [1, 10])
def test_a_rank_that_waits_for_a_processor(every: int, ranks: int, has_arrivals: bool) -> None:
    job = simulated_job(ranks, 1000, SLOWER, has_arrivals=has_arrivals)
    alone = of(job).stragglers
    assert alone.processor_share is None and alone.straggler is not None
    # Half of what it does where ranks meet is not known without arrivals.
    shares = [0.0, 0.2 if has_arrivals else 0.11, *[0.0] * (ranks - 2)]
    job = waiting(job, *shares, every=every)
    stragglers = of(job).stragglers
    assert found(job) == (Pattern.ALWAYS, 1, PROCESSOR)
    assert stragglers.processor_share == 0 and not stragglers.is_busy
    assert stragglers.loss_ns == pytest.approx(alone.loss_ns)


def test_a_rank_that_waits_for_a_processor_as_others_do_is_not_named() -> None:
    for other in (0.04, 0.08):
        job = waiting(simulated_job(4, 1000, SLOWER), 0, 0.2, 0, other)
        assert found(job) == (Pattern.BALANCED,)


def test_too_few_steps_that_tell_waits_for_a_processor_tell_nothing() -> None:
    job = simulated_job(4, 1000, SLOWER)
    assert of(waiting(job, *[0.2] * 4, every=20)).stragglers == of(job).stragglers


def test_where_threads_wait_much_and_too_few_steps_tell_it_nobody_is_named() -> None:
    def busy(share: float, **slow: Any) -> Job:
        job = simulated_job(2, 1000, Slow(1, **slow))
        first, second = job.ranks
        return replace(job, ranks=(replace(first, thread_wait_share=share), second))

    slower = {"factor": everywhere(1.25)}
    assert of(busy(0.09, **slower)).stragglers.straggler is not None
    assert found(busy(0.28, **slower)) == (Pattern.UNKNOWN,)
    assert of(busy(0.28, **slower)).stragglers.reason == (
        "CPU contention: the thread of a rank waited 28% of the time for a processor, and too few "
        "steps tell how much of that was in steps"
    )
    # In one phase alone, it is no competition for the processors.
    assert found(busy(0.28, extra_ns={"data": 200 * MS})) == (Pattern.ALWAYS, 1, "data")
    # As long as such waits are, a delay in one phase says nothing either.
    assert found(busy(0.09, extra_ns={"data": 20 * MS})) == (Pattern.ALWAYS, 1, "data")
    assert found(busy(0.28, extra_ns={"data": 20 * MS})) == (Pattern.UNKNOWN,)


def test_on_a_busy_machine_a_rank_is_named_that_is_late_without_its_waits() -> None:
    busy = [0.12, 0.3, 0.12, 0.15]
    # It is slower everywhere, as those are that wait for a processor.
    for factor in (1.0, 1.25, 1.5):
        job = waiting(simulated_job(4, 1000, Slow(1, everywhere(factor))), *busy)
        stragglers = of(job).stragglers
        assert stragglers.straggler is None and not stragglers.several
        assert stragglers.is_busy and stragglers.processor_share == pytest.approx(0.12, abs=0.001)
    job = waiting(simulated_job(4, 1000, Slow(1, extra_ns={"data": 200 * MS})), *busy)
    assert found(job) == (Pattern.ALWAYS, 1, "data")


@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_slower_everywhere_is_named_if_it_is_so_throughout(ranks: int, has_arrivals: bool) -> None:
    def job(since: int, slow: Mapping[str, float]) -> Job:
        return simulated_job(ranks, 1000, Slow(1, slow, since=since), has_arrivals=has_arrivals)

    assert found(job(0, everywhere(1.3))) == (Pattern.ALWAYS, 1, None)
    assert of(job(120, everywhere(1.3))).stragglers.straggler is None
    # In one phase alone, it is no competition for the processors.
    assert found(job(120, {"data": 3.0})) == (Pattern.ALWAYS, 1, "data")


def together(job: Job) -> tuple[Any, ...]:
    stragglers = of(job).stragglers
    one = stragglers.straggler
    assert one is not None and one.rank == one.ranks[0]
    return one.ranks, one.host, one.group, one.path


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_half_of_the_ranks_are_slow(seed: int) -> None:
    """What would be gained if they were as quick as the others does not halve."""
    job = simulated_job(4, seed, Slow(0, everywhere(1.3)), Slow(2, everywhere(1.3)))
    assert together(job) == ((0, 2), None, None, None)
    assert of(job).stragglers.loss_share == pytest.approx(0.3 / 1.3, rel=0.05)


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (8, 4), (32, 8)])
@pytest.mark.parametrize("every", [1, 10])
def test_a_slow_host(ranks: int, per_host: int, every: int) -> None:
    those = range(per_host, 2 * per_host)
    slow = [Slow(rank, extra_ns={"data": 80 * MS}, every=every) for rank in those]
    job = simulated_job(ranks, 1000, *slow, ranks_per_host=per_host, noise=0.001)
    assert together(job) == (tuple(those), "host 1", None, "data")
    stragglers = of(job).stragglers
    assert stragglers.loss_ns == pytest.approx(80 * MS / every, rel=0.1)
    if every == 1:
        data = next(row for row in of(job).phases if row.path == "data")
        assert data.is_significant and data.slowest_rank in those
        assert data.distance_ns == pytest.approx(80 * MS, rel=0.05)
        assert data.imbalance_ns == pytest.approx(80 * MS, rel=0.05)


def test_a_slow_rank_of_a_host_is_no_slow_host() -> None:
    slow = Slow(5, extra_ns={"data": 60 * MS})
    assert together(simulated_job(8, 1000, slow, ranks_per_host=4))[:2] == ((5,), None)


def test_a_slow_process_group() -> None:
    slow = [Slow(rank, extra_ns={"data": 60 * MS}) for rank in (2, 3)]
    job = simulated_job(8, 1000, *slow, group_size=2)
    assert together(job) == ((2, 3), None, "tp", "data")


@SEEDS
@pytest.mark.parametrize(("ranks", "group_size"), [(2, 2), (4, 4), (4, 2), (8, 2)])
def test_waits_for_operations_within_a_phase_are_no_work(
    ranks: int, group_size: int, seeds: range
) -> None:
    """As with fully sharded models, tensor parallelism, and both on a mesh."""
    for seed in seeds:
        slow = Slow(1, extra_ns={"forward": 100 * MS})
        job = simulated_job(ranks, seed, slow, blocking=4, group_size=group_size)
        assert found(job) == (Pattern.ALWAYS, 1, "forward")
        assert of(job).stragglers.loss_ns == pytest.approx(100 * MS, rel=0.05)
        unseen = Job(tuple(replace(rank, waits=None) for rank in job.ranks), ranks)
        assert of(unseen).stragglers.straggler is None
        if group_size == ranks:
            assert unknown(unseen) == (
                "how long ranks wait for each other in forward is unknown, and none stands out "
                "in the rest"
            )
        job = simulated_job(ranks, seed, blocking=4, group_size=group_size)
        assert found(job) == (Pattern.BALANCED,)


def test_a_few_long_stalls_are_told_without_a_name() -> None:
    job = simulated_job(2, 1000, Slow(1, extra_ns={"forward": 800 * MS}, every=50), steps=200)
    stragglers = of(job).stragglers
    assert (stragglers.pattern, stragglers.straggler) == (Pattern.SOME_STEPS, None)
    assert stragglers.hint is not None
    assert (stragglers.hint.rank, stragglers.hint.path) == (1, "forward")
    assert stragglers.hint.steps == 4
    assert stragglers.hint.lateness_ns == pytest.approx(4 / 199 * 800 * MS, rel=0.02)
    # Also on a busy machine, where nobody waits as long as a step for a processor.
    first, second = job.ranks
    busy = of(replace(job, ranks=(replace(first, thread_wait_share=0.28), second))).stragglers
    assert (busy.pattern, busy.hint) == (Pattern.SOME_STEPS, stragglers.hint)


def test_what_a_straggler_costs() -> None:
    job = simulated_job(4, 1, Slow(1, extra_ns={"data": 200 * MS}))
    found = of(job).stragglers
    straggler = found.straggler
    assert straggler is not None and found.loss_ns is not None and found.loss_share is not None
    assert found.steps == 299 and found.reason is None
    assert found.loss_ns == pytest.approx(200 * MS, rel=0.01)
    assert found.loss_share == pytest.approx(200 / 405, rel=0.01)
    assert straggler.lateness_ns == pytest.approx(199 * MS, rel=0.01)
    assert straggler.steps == 299 and straggler.path_share > 0.98
    assert straggler.p_value is not None and straggler.p_value < 1e-9


def test_a_rare_long_step_is_in_the_loss_and_in_the_step() -> None:
    """A mean loss next to a median step would cost more than all."""
    slow = Slow(1, extra_ns={"data": 20_000 * MS}, every=40)
    found = of(simulated_job(2, 1, slow)).stragglers
    assert found.loss_share is not None and found.loss_ns is not None
    assert found.step_ns is not None
    assert found.step_ns == pytest.approx(7 / 299 * 20_000 * MS + 205 * MS, rel=0.02)
    assert found.loss_share == found.loss_ns / found.step_ns < 1


def test_the_time_of_a_slow_rank_does_not_hide_its_phase() -> None:
    """Of two, it alone makes a phase long in which the other has nothing to do."""
    work_ns = {"data": MS // 2, "forward": MS, "backward": 3 * MS}
    slow = Slow(1, {"backward": 1.9}, {"data": 20 * MS})
    expected = (Pattern.ALWAYS, 1, "data")
    assert found(simulated_job(2, 1, slow, work_ns=work_ns)) == expected


@pytest.mark.parametrize("has_arrivals", [True, False])
def test_phases_across_ranks(has_arrivals: bool) -> None:
    job = simulated_job(4, 1, Slow(1, extra_ns={"data": 200 * MS}), has_arrivals=has_arrivals)
    analysis = of(job)
    rows = {row.path: row for row in analysis.phases}
    assert [*rows] == [*WORK_NS, OUTSIDE_PHASES, BETWEEN_STEPS]
    data, forward, backward = (rows[path] for path in ("data", "forward", "backward"))
    assert (data.pattern, data.slowest_rank, data.ranks) == (Pattern.ALWAYS, 1, 4)
    assert data.is_significant and not forward.is_significant
    assert data.median_ns == pytest.approx(20 * MS, rel=0.01)
    assert data.high_ns == data.work_ns == pytest.approx(220 * MS, rel=0.01)
    assert data.distance_ns == pytest.approx(200 * MS, rel=0.01)
    assert data.imbalance_ns == pytest.approx(200 * MS, rel=0.01)
    assert sum(row.imbalance_ns or 0 for row in rows.values()) == pytest.approx(
        analysis.stragglers.loss_ns
    )
    assert data.waiting_ns == 0
    # Who waits for rank 1 has the longer backward.
    assert backward.low_ns == pytest.approx(102 * MS, rel=0.02)
    assert backward.median_ns == pytest.approx(302 * MS, rel=0.02)
    if has_arrivals:
        assert backward.waiting_ns == pytest.approx(200 * MS, rel=0.01)
        assert backward.work_ns == pytest.approx(100 * MS, rel=0.01)
        assert backward.pattern == Pattern.BALANCED
    else:
        assert (backward.waiting_ns, backward.pattern) == (None, Pattern.UNKNOWN)
        assert not backward.is_significant
    step = analysis.step
    assert step is not None
    assert (step.path, step.slowest_rank, step.pattern) == (STEP, 1, Pattern.ALWAYS)
    assert step.high_ns - step.low_ns < MS
    assert step.imbalance_ns == analysis.stragglers.loss_ns


def test_analysis_is_computed_once() -> None:
    job = simulated_job(2, 1)
    assert of(job) is of(job) and of(job).stragglers is of(job).stragglers


@SEEDS
@pytest.mark.parametrize("has_arrivals", [True, False])
def test_late_starters(has_arrivals: bool, seeds: range) -> None:
    for ranks in (2, 4, 8):
        for seed in seeds:
            slow = Slow(1, starts_ns=4000 * MS)
            late = of(simulated_job(ranks, seed, slow, has_arrivals=has_arrivals)).late_start
            assert late is not None
            assert (late.rank, late.began_late) == (1, True)
            assert late.lateness_ns == pytest.approx(4000 * MS, rel=0.01)
            job = simulated_job(ranks, seed, has_arrivals=has_arrivals)
            assert of(job).late_start is None


def test_a_rank_that_takes_long_until_the_first_collective() -> None:
    for ranks in (2, 4):
        job = simulated_job(ranks, 1, Slow(1, prepares_ns=4000 * MS))
        late = of(job).late_start
        assert late is not None
        assert late == LateStart(1, late.lateness_ns, began_late=False)
        assert late.lateness_ns == pytest.approx(4000 * MS, rel=0.01)
        job = simulated_job(ranks, 1, Slow(1, prepares_ns=4000 * MS), has_arrivals=False)
        assert of(job).late_start is None


def test_a_rank_that_takes_long_until_the_process_group() -> None:
    def job_with(*waits_ms: int | None) -> Job:
        job = simulated_job(len(waits_ms), 1)
        facts = [{} if wait is None else {"rendezvous_ns": wait * MS} for wait in waits_ms]
        return replace(
            job,
            ranks=tuple(
                replace(rank, environment={**rank.environment, KEY: known})
                for rank, known in zip(job.ranks, facts, strict=True)
            ),
        )

    assert of(job_with(3003, 3)).late_start == LateStart(1, 3000 * MS, began_late=False)
    assert of(job_with(3010, 3030, 10, 3020)).late_start == LateStart(2, 3000 * MS, False)
    assert of(job_with(3000, 2500, 10, 1000)).late_start is None  # each was late
    assert of(job_with(3003, None)).late_start is None


def test_clocks_of_ranks_do_not_matter() -> None:
    job = simulated_job(4, 1, Slow(1, {"backward": 1.3}))
    hour_ns = 3600 * 10**9
    moved = []
    for rank in job.ranks:
        later_ns = rank.rank * hour_ns
        events = rank.collectives.events.copy()
        events["created_ns"] += later_ns
        moved.append(
            replace(
                rank,
                step_begin_ns=rank.step_begin_ns + later_ns,
                first_begin_ns=rank.first_begin_ns + later_ns,
                last_end_ns=rank.last_end_ns + later_ns,
                collectives=replace(rank.collectives, events=events),
            )
        )
    apart = Job(tuple(moved), 4)
    assert of(apart).stragglers == of(job).stragglers and of(apart).phases == of(job).phases


def unknown(job: Job) -> str:
    stragglers = of(job).stragglers
    assert stragglers == Stragglers(
        Pattern.UNKNOWN,
        None,
        None,
        None,
        stragglers.steps,
        False,
        stragglers.reason,
        stragglers.left_out,
    )
    assert all(row.pattern == Pattern.UNKNOWN for row in of(job).phases)
    assert stragglers.reason is not None
    return stragglers.reason


def test_what_is_not_known() -> None:
    few = simulated_job(2, 1, steps=10)
    assert unknown(few) == "9 steps have records of all ranks, besides the first; 20 are needed"
    assert of(few).phases and of(few).step is not None
    one = Job(simulated_job(2, 1).ranks[:1], 2)
    assert unknown(one) == "there is the run of one rank alone"
    none = Job((), 2)
    assert unknown(none) == "there is the run of no rank"
    assert (of(none).phases, of(none).step, of(none).late_start) == ((), None, None)


def test_ranks_that_do_not_wait_for_each_other() -> None:
    jobs = [simulated_job(2, seed, has_arrivals=False) for seed in (1, 2)]
    free = Job((jobs[0].ranks[0], jobs[1].ranks[1]), 2)
    assert unknown(free) == "no phase was found in which the ranks wait for each other"


def cut(rank: RankData, steps: int) -> RankData:
    """The rank as if its file ended after so many steps."""
    columns = ("first_begin_ns", "last_end_ns", "self_ns", "device_ns")
    return replace(
        rank,
        steps=rank.steps[:steps],
        step_begin_ns=rank.step_begin_ns[:steps],
        step_ns=rank.step_ns[:steps],
        **{column: getattr(rank, column)[:, :steps] for column in columns},
    )


def test_a_rank_that_ended_early_is_left_out() -> None:
    job = simulated_job(4, 1, Slow(1, {"data": 3.0}))
    stragglers = of(Job((*job.ranks[:3], cut(job.ranks[3], 30)), 4)).stragglers
    assert stragglers.straggler is not None and stragglers.straggler.rank == 1
    assert (stragglers.left_out, stragglers.steps) == ((3,), 299)
    stragglers = of(Job((*job.ranks[:3], cut(job.ranks[3], 200)), 4)).stragglers
    assert (stragglers.left_out, stragglers.steps) == ((), 199)
    assert unknown(Job((job.ranks[0], cut(job.ranks[1], 30)), 2)) == (
        "no two ranks have the steps that are to be compared"
    )


def without_records_before(job: Job, moment_ns: int) -> Job:
    ranks = []
    for rank in job.ranks:
        events = rank.collectives.events
        kept = events[events["created_ns"] >= moment_ns]
        collectives = replace(rank.collectives, events=kept, missed=len(events) - len(kept))
        ranks.append(replace(rank, collectives=collectives))
    return Job(tuple(ranks), job.world_size)


def test_steps_whose_records_are_lost_are_not_judged() -> None:
    job = simulated_job(4, 1, Slow(1, {"backward": 1.3}))
    begins_ns = job.ranks[0].step_begin_ns
    stragglers = of(without_records_before(job, int(begins_ns[100]))).stragglers
    assert stragglers.is_by_arrivals and stragglers.straggler is not None
    assert 195 <= stragglers.steps <= 200 and stragglers.straggler.path == "backward"
    # With half of them lost, the rest may not be typical.
    stragglers = of(without_records_before(job, int(begins_ns[200]))).stragglers
    assert not stragglers.is_by_arrivals and stragglers.steps == 299


def test_one_rank_has_other_phases() -> None:
    job = simulated_job(2, 1, Slow(1, extra_ns={"data": 200 * MS}))
    other = replace(job.ranks[1], paths=("loading", *job.ranks[1].paths[1:]))
    analysis = of(Job((job.ranks[0], other), 2))
    assert analysis.stragglers.straggler is not None
    assert analysis.stragglers.straggler.path == "loading"
    assert {row.path: row.ranks for row in analysis.phases}["loading"] == 1


def test_operations_on_streams_are_no_arrivals() -> None:
    job = simulated_job(2, 1)
    group = ProcessGroup("0", "default_pg", (0, 1), "nccl")
    ranks = [
        replace(rank, collectives=replace(rank.collectives, groups=(group,))) for rank in job.ranks
    ]
    assert not of(Job(tuple(ranks), 2)).stragglers.is_by_arrivals
    nothing = [replace(rank, collectives=Collectives(was_read=True)) for rank in job.ranks]
    assert not of(Job(tuple(nothing), 2)).stragglers.is_by_arrivals


@pytest.mark.parametrize("has_arrivals", [True, False])
@pytest.mark.parametrize(
    ("ranks", "steps", "seeds"),
    [
        (256, 300, range(1000, 1001)),
        pytest.param(1024, 1000, range(1000, 1020), marks=pytest.mark.slow),
    ],
)
def test_one_of_many_ranks(ranks: int, steps: int, seeds: range, has_arrivals: bool) -> None:
    def job(*slow: Slow) -> Job:
        return simulated_job(
            ranks, seed, *slow, noise=NOISE_OF_A_STEP, steps=steps, has_arrivals=has_arrivals
        )

    for seed in seeds:
        slow = seed % ranks
        assert found(job(Slow(slow, everywhere(1.03)))) == (Pattern.ALWAYS, slow, None)
        assert found(job()) == (NOT_SEEN[has_arrivals],)


@pytest.mark.parametrize(
    ("hits", "trials", "chance"),
    [(0, 10, 0.5), (3, 10, 0.0), (10, 10, 0.5), (1, 10, 0.01), (12, 40, 0.2), (500, 1000, 0.5)],
)
def test_binomial_tail(hits: int, trials: int, chance: float) -> None:
    p = Fraction(chance)
    exact = sum(
        math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits, trials + 1)
    )
    assert binomial_tail(hits, trials, chance) == pytest.approx(float(exact))


def test_binomial_tail_that_is_next_to_nothing() -> None:
    assert 0 <= binomial_tail(999, 999, 1 / 1024) < 1e-300


def with_phases(rank: RankData, names: Mapping[str, str]) -> RankData:
    """The rank with some phases called otherwise, or, where there is no name, without."""
    rows = [row for row, path in enumerate(rank.paths) if names.get(path, path)]
    columns = ("first_begin_ns", "last_end_ns", "self_ns", "device_ns")
    waits = rank.waits
    if waits is not None:
        kept = [*rows, len(rank.paths), len(rank.paths) + 1]
        waits = replace(waits, total_ns=waits.total_ns[kept], collectives=waits.collectives[kept])
    return replace(
        rank,
        waits=waits,
        paths=tuple(names.get(rank.paths[row], rank.paths[row]) for row in rows),
        **{column: getattr(rank, column)[rows] for column in columns},
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("has_arrivals", [True, False])
def test_a_rank_without_phases_makes_nobody_slow(ranks: int, has_arrivals: bool) -> None:
    job = simulated_job(ranks, 1, has_arrivals=has_arrivals)
    bare = with_phases(job.ranks[1], dict.fromkeys(WORK_NS, ""))
    job = Job((job.ranks[0], bare, *job.ranks[2:]), ranks)
    assert of(job).stragglers.straggler is None
    assert not any(row.is_significant for row in of(job).phases)


@pytest.mark.parametrize("ranks", [2, 4])
def test_another_name_is_not_more_work(ranks: int) -> None:
    job = simulated_job(ranks, 1, Slow(1, {"data": 3.0}))
    renamed = with_phases(job.ranks[1], {"data": "load"})
    job = Job((job.ranks[0], renamed, *job.ranks[2:]), ranks)
    assert found(job) == (Pattern.ALWAYS, 1, None)
    job = simulated_job(ranks, 1)
    renamed = with_phases(job.ranks[1], {"data": "load"})
    job = Job((job.ranks[0], renamed, *job.ranks[2:]), ranks)
    assert found(job) == (Pattern.BALANCED,)
    assert not any(row.pattern == Pattern.ALWAYS for row in of(job).phases)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_phase_of_one_rank_alone_is_named(ranks: int) -> None:
    work_ns = {**WORK_NS, "checkpoint": 0}
    job = simulated_job(ranks, 1, Slow(0, extra_ns={"checkpoint": 50 * MS}), work_ns=work_ns)
    others = [with_phases(rank, {"checkpoint": ""}) for rank in job.ranks[1:]]
    job = Job((job.ranks[0], *others), ranks)
    assert found(job) == (Pattern.ALWAYS, 0, "checkpoint")
    row = next(row for row in of(job).phases if row.path == "checkpoint")
    assert row.is_significant and row.pattern == Pattern.ALWAYS and row.ranks == 1


def test_the_phase_of_a_straggler_has_the_pattern_of_the_straggler() -> None:
    """Small delays of others in a phase don't make its long ones come in turn."""
    often = Slow(0, extra_ns={"data": 30 * MS}, every=7)
    job = simulated_job(2, 1, Slow(1, extra_ns={"data": 400 * MS}, every=25), often)
    assert found(job) == (Pattern.SOME_STEPS, 1, "data")
    data = next(row for row in of(job).phases if row.path == "data")
    assert (data.slowest_rank, data.pattern) == (1, Pattern.SOME_STEPS)
